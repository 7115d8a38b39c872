"""The valid rows of a padded batch, where rows of heads lie, and results that need no computation."""

import torch


def valid_rows(lengths: torch.Tensor | None, positions: int) -> torch.Tensor | None:
    """(B,) -> (B, N) bool, true on the first lengths[b] rows; None: all."""
    return None if lengths is None else torch.arange(positions, device=lengths.device) < lengths[:, None]


def keep_valid(tensor: torch.Tensor, valid: torch.Tensor | None, fill: float = 0, axis: int = 1) -> torch.Tensor:
    """`tensor` (B, ...) with `fill` in the rows, along `axis`, where `valid` (B, N) is false; None: all are valid.

    A selection, not a product: NaN and infinities vanish too, and no gradient reaches them.
    """
    if valid is None:
        return tensor
    shape = [valid.shape[0], *[1] * (tensor.dim() - 1)]
    shape[axis] = valid.shape[1]
    return torch.where(valid.reshape(shape), tensor, fill)


def rows_like(x: torch.Tensor) -> torch.Tensor:
    """Empty, of the shape (B, H, N, d) of x, the heads of a row side by side, as the layer around them has them."""
    batch, heads, positions, width = x.shape
    return x.new_empty(batch, positions, heads, width).transpose(1, 2)


def of_nothing(result: torch.Tensor, *tensors: torch.Tensor | None) -> torch.Tensor:
    """`result`, in the graph of all floating `tensors`, (n, ...) each: their gradients are zeros, none is missing."""
    for tensor in tensors:
        if tensor is not None:
            result = result + tensor[..., :0].sum().to(result.dtype)
    return result
