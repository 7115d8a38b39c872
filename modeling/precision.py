"""Dtypes under autocast, for functions whose derivative is written by hand: autocast sees into none of them."""

import torch


def narrowed(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors as autocast would hand them to a product of matrices: as they are where it is off, and in float64."""
    kind = tensors[0].device.type
    narrows = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    if not narrows or tensors[0].dtype == torch.float64:
        return list(tensors)
    narrow = torch.get_autocast_dtype(kind)
    return [tensor.to(narrow) for tensor in tensors]
