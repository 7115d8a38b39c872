"""Dtypes under autocast: for functions whose derivative is written by hand, into which it does not see, and for those
who ask.
"""

import torch


def narrowed(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors as autocast would hand them to a product of matrices: as they are where it is off, and in float64."""
    narrow = _autocast_dtype(tensors[0])
    return list(tensors) if narrow is None else [tensor.to(narrow) for tensor in tensors]


def dtype_of_products(x: torch.Tensor) -> torch.dtype:
    """The dtype in which a product of matrices takes x."""
    return _autocast_dtype(x) or x.dtype


def _autocast_dtype(x: torch.Tensor) -> torch.dtype | None:
    kind = x.device.type
    narrows = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if narrows and x.dtype != torch.float64 else None
