# Part of longmix 0.1.0, longmix.modeling.masking. Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0.
# Changed by longmix export: its imports.
"""Valid tokens: their masks, their right-padded form, and means over them."""

import torch


def as_mask(attention_mask: torch.Tensor) -> torch.Tensor:
    """attention_mask (B, N) of any dtype, non-zero on valid tokens -> (B, N) bool.

    Raises:
        ValueError: a mask that is not of shape (B, N).
    """
    if attention_mask.dim() != 2:
        raise ValueError(f"attention_mask has shape {tuple(attention_mask.shape)}; allowed: (batch, positions)")
    return attention_mask if attention_mask.dtype == torch.bool else attention_mask != 0


def right_padded(attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """attention_mask (B, N) of any dtype, or None for all valid -> (B, N) bool, or None. Waits for the device.

    Raises:
        ValueError: a mask that is not of shape (B, N), or that has a valid token behind padding.
    """
    if attention_mask is None:
        return None
    mask = as_mask(attention_mask)
    if (mask[:, 1:] & ~mask[:, :-1]).any():
        raise ValueError("attention_mask has valid tokens behind padding; allowed: padding on the right alone")
    return mask


def keep_valid(tensor: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """`tensor` (B, N, ...) with zeros where `mask` (B, N) is false.

    A selection, not a product: NaN and infinities in the padding vanish too, and no gradient reaches it.
    """
    if mask is None:
        return tensor
    return torch.where(mask.reshape(mask.shape + (1,) * (tensor.dim() - 2)), tensor, 0)


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Mean of the valid rows, (B, N, D) -> (B, D); zero for a sample without any. Sums in fp32 or wider."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    if mask is None:
        return (tensor.sum(1, dtype=wide) / max(tensor.shape[1], 1)).to(tensor.dtype)
    count = mask.sum(1, keepdim=True).clamp(min=1)
    return (keep_valid(tensor, mask).sum(1, dtype=wide) / count).to(tensor.dtype)


class Compaction:
    """The right-padded form of a batch with padding anywhere: valid tokens first, in their order.

    Computed on the device without waiting for it. `mask` (B, N) is the mask of the compact form.
    """

    def __init__(self, mask: torch.Tensor):
        positions = torch.arange(mask.shape[1], device=mask.device)
        self.original_mask = mask
        lengths = mask.sum(1, keepdim=True)
        before = mask.cumsum(1)
        # Valid tokens go to their rank, padding keeps its order behind them.
        self.target = torch.where(mask, before - 1, lengths + positions - before)
        self.source = torch.empty_like(self.target).scatter_(1, self.target, positions.expand_as(self.target))
        self.mask = positions < lengths

    def compact(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """(B, N, ...) in the given order -> (B, N, ...) compact; None stays None."""
        return None if tensor is None else _permute(tensor, self.source)

    def restore(self, tensor: torch.Tensor) -> torch.Tensor:
        """(B, N, ...) compact -> (B, N, ...) in the given order, padding zero."""
        return keep_valid(_permute(tensor, self.target), self.original_mask)


def _permute(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of each sample in the order of `index` (B, N)."""
    if tensor.dim() == 2:
        return tensor.gather(1, index)
    batch, positions = index.shape
    rows = index + positions * torch.arange(batch, device=index.device)[:, None]
    return tensor.reshape(batch * positions, *tensor.shape[2:]).index_select(0, rows.flatten()).view_as(tensor)
