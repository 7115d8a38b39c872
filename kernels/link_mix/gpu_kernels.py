"""Paramixer's product of sparse factors in Triton: a program takes a few channels of a document through all factors.

What a factor gives is read by the next one at rows that lie far apart. So a program keeps its channels, a slab, as rows
that lie next to each other, few enough for its multiprocessor's cache; between two factors it waits for its own threads
and for no other program. The slabs have the dtype of value; sums are fp32, or float64 for float64.
"""

import torch
import triton

from ..common.grids import checked
from ..common.interpreter import interpreted
from ..common.tensor_cores import multiply_tf32
from .programs_gpu import mix_all, unmix_all
from .slabs import channels_of, groups_of, rows_of

# Registers of a thread, which has one row of a block: what was fastest on an H100. Most of the time programs wait for
# caches, so that many threads must be there at once. On cards before A100 so few registers spill: rows of a block and
# registers there.
REGISTERS, BEFORE_A100, INTERPRETED = 64, (256, 128), (64, 1, 64)
# Programs of a launch, where samples can be cut: two for each multiprocessor of the largest of our cards. And rows of
# such a piece, at least.
PROGRAMS, ROWS = (12, 4) if interpreted() else (264, 64)


def link_mix(value, weights, offsets, lengths, starts, counts, wrap):
    """All factors on value (B, N, D); see operator.py."""
    result = torch.empty_like(value)
    steps = _steps(offsets, value.shape[1], lengths, starts, wrap)
    _mix(value, _links(weights, value), steps, lengths, (starts, counts), wrap, min(2, weights.shape[2]), result)
    return result


def link_mix_backward(gradient, value, weights, offsets, lengths, starts, counts, wrap):
    """Gradients of value and weights; the factors' inputs are computed anew."""
    links, documents = _links(weights, value), (starts, counts)
    factors, count, _, positions = links.shape
    steps = _steps(offsets, positions, lengths, starts, wrap)
    states = _mix(value, links, steps, lengths, documents, wrap, factors + 1, None)
    slabs, groups, wide = states.shape[1], states.shape[3], states.shape[5]
    of_weights = torch.empty_like(links, dtype=weights.dtype)
    # Every slab writes what it adds to the weights' gradient: no two programs write to the same place. So many factors
    # at a time that this takes no more memory than their inputs, and no more than as few launches need.
    most = max(1, factors * groups * wide // count)
    most = triton.cdiv(factors, triton.cdiv(factors, most))
    for high in range(factors, 0, -most):
        low = max(0, high - most)
        parts = links.new_empty(slabs, high - low, *links.shape[1:])
        # The last launch alone writes it: until then there is none.
        of_value = states if low > 0 else torch.empty_like(value)
        _launch(
            *(unmix_all, states, documents, wrap),
            *(gradient, states, links, steps, _apart(steps), lengths, *documents, of_value, parts, low, high),
            sizes=(positions, value.shape[2], factors, count),
        )
        torch.sum(parts, 0, dtype=weights.dtype, out=of_weights[low:high])
        del parts  # before there are others
    return of_value, of_weights.permute(2, 3, 0, 1)


def _mix(value, links, steps, lengths, documents, wrap, slots, result):
    """Apply all factors to value, and return the slabs (B, D/C, slots, G, N, C/G) of what went into the last of them;
    without `result` all but the last, with a slot for what goes into each."""
    batch, positions, width = value.shape
    channels = channels_of(positions, value.element_size(), documents[0] is not None)
    groups, wide = groups_of(channels, value.element_size())
    states = value.new_empty(batch, triton.cdiv(width, channels), slots, groups, positions, wide)
    _launch(
        *(mix_all, states, documents, wrap),
        *(value, states, links, steps, _apart(steps), lengths, *documents, result, slots),
        sizes=(positions, width, *links.shape[:2]),
    )
    return states


def _launch(kernel, states, documents, wrap, *arguments, sizes):
    """One launch over slabs (B, D/C, .., G, N, C/G). `sizes`: N, D, M and K."""
    batch, slabs, _, groups, positions, wide = states.shape
    # A sample that has several documents is cut between them.
    pieces = 1 if documents[0] is None else min(triton.cdiv(PROGRAMS, batch * slabs), triton.cdiv(positions, ROWS))
    rows = triton.cdiv(positions, pieces)
    rows_of_block, warps, registers = _program(positions)
    kernel[checked(pieces, slabs, batch)](
        *(*arguments, rows, *sizes, wrap, rows_of_block, groups, wide),
        num_warps=warps,
        maxnreg=registers,
    )


def _program(positions: int) -> tuple[int, int, int]:
    """Rows of a block, threads by 32 and registers."""
    if interpreted():
        return INTERPRETED
    rows, registers = rows_of(positions), REGISTERS
    if not multiply_tf32():
        most, registers = BEFORE_A100
        rows = min(rows, most)
    return rows, rows // 32, registers


def _steps(offsets, positions, lengths, starts, wrap) -> torch.Tensor:
    """How far links lead, (M, K) or (B, M, K). Where they wrap in samples of one document, they lead forward, by less
    than its length; where they do not, no further than over all rows."""
    if not wrap:
        return offsets.clamp(-positions, positions)
    if starts is not None:
        return offsets
    return torch.remainder(offsets, positions if lengths is None else lengths.clamp(min=1)[:, None, None])


def _apart(steps: torch.Tensor) -> int:
    """How far the steps (M, K) or (B, M, K) of two samples are from each other."""
    return 0 if steps.dim() == 2 else steps.stride(0)


def _links(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """(B, N, M, K), which lie so already, -> (M, K, B, N), contiguous, in value's dtype."""
    return weights.to(value.dtype).permute(2, 3, 0, 1)
