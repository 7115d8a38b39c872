"""Scaled dot-product attention, by whichever of PyTorch's ways is fast on the device."""

import torch
from torch.nn import functional

from longmix.kernels.selection import stands_for

# Up to so many keys, products in bf16 on a CPU take half of the time of its fused kernel or less: that one's backward
# pass is slower in bf16 than in fp32. With 2048 keys they are no faster, and they keep matrices of N^2 entries.
MOST_KEYS = 512


def dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> torch.Tensor:
    """softmax(Q K^T / sqrt(d)) V as `functional.scaled_dot_product_attention` gives it, up to the rounding in bf16.

    Args:
        query: (B, H, N, d).
        key: (B, H, M, d), and value (B, H, M, d').
        attn_mask: broadcast to (B, H, N, M): bool, the keys that a query sees, at least one; or, in the dtype of the
            query, what is added to its scores.
        dropout_p: probability for each weight.
        is_causal: a query sees no later key; without a mask only.

    Returns:
        (B, H, N, d').
    """
    if not _takes_products(query, key):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal
        )
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    scores = query @ (key * query.shape[-1] ** -0.5).transpose(-1, -2)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # A sum has no work to do in the backward pass. Infinity would spoil rows that see nothing.
        unseen = torch.zeros_like(attn_mask, dtype=scores.dtype)
        attn_mask = unseen.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    if attn_mask is not None:
        scores = scores + attn_mask
    # In bf16 as it is: PyTorch computes it in fp32 all the same, and copies of the scores in fp32 would take half of
    # all time here. The weights that the derivative reads are rounded, as the scores are.
    weights = scores.softmax(-1)
    return functional.dropout(weights, dropout_p, training=dropout_p > 0) @ value


def _takes_products(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether three products serve better than PyTorch's fused kernel."""
    if stands_for(query.device) != "cpu" or key.shape[-2] > MOST_KEYS:
        return False
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu") == torch.bfloat16
    return query.dtype == torch.bfloat16
