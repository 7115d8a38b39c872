"""The linear attentions in Triton: one program for each head, which walks over its rows in pieces.

A piece has at most as many rows as a block. It ends with its document and, in a causal pass over logarithms, before the
first row with a feature LIMIT above what the piece's first row sees of it: relative to the largest key of each feature
(its peak) that the piece's last row sees, no row's own keys may vanish. What lies before a piece is one matrix of sums,
features by channels, and pairs inside it are taken one by one.
"""

import torch
import triton

from .programs_gpu import (
    causal_forward,
    causal_keys,
    causal_queries,
    whole_backward,
    whole_forward,
)

# More rows, or fewer warps, and a program's matrices no longer fit into its registers (benchmarks/gpu_model).
ROWS, WARPS = 16, 8


def attention(query, key, value, lengths, document_ids, causal, logarithms):
    """The operation on query and key (B, H, N, m) and value (B, H, N, d); see operator.py."""
    result = torch.zeros_like(value)
    kernel = causal_forward if causal else whole_forward
    channels = min(_block(value.shape[3]), 64)
    grid = (value.shape[0] * value.shape[1], triton.cdiv(value.shape[3], channels))
    kernel[grid](query, key, value, lengths, document_ids, result, **_options(query, value, channels, logarithms))
    return result


def attention_backward(gradient, query, key, value, lengths, document_ids, causal, logarithms):
    """Gradients of query, key and value."""
    gradients = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    options = _options(query, value, _block(value.shape[3]), logarithms)
    grid = (value.shape[0] * value.shape[1],)
    arguments = (gradient, query, key, value, lengths, document_ids, *gradients)
    if not causal:
        whole_backward[grid](*arguments, **options)
        return gradients
    # Of each row the inverse of its weight, its offset and its scale, and at the last row of a piece its size.
    inverse, offset, scale = (value.new_empty(value.shape[:3]) for _ in range(3))
    sizes = torch.empty(value.shape[:3], dtype=torch.int32, device=value.device)
    peaks = torch.empty_like(key) if logarithms else key  # written at the first row of a piece
    notes = (inverse, offset, scale, sizes, peaks)
    causal_queries[grid](*arguments, *notes, **options)
    causal_keys[grid](*arguments, *notes, **options)
    return gradients


def _options(query: torch.Tensor, value: torch.Tensor, channels: int, logarithms: bool) -> dict:
    _, heads, positions, features = query.shape
    options = {"heads": heads, "positions": positions, "features": features, "width": value.shape[3]}
    blocks = {"ROWS": ROWS, "FEATURES": _block(features), "CHANNELS": channels}
    return {**options, **blocks, "LOGS": logarithms, "num_warps": WARPS}


def _block(size: int) -> int:
    """The size of block for a matrix product of this size: a power of two, at least 16."""
    return max(16, triton.next_power_of_2(size))
