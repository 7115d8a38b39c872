"""Paramixer's product of sparse factors in Triton: a program takes a few channels of whole documents through all factors.

What a factor gives is read by the next one at rows that lie far apart. So a program keeps its channels, a slab, as rows
that lie next to each other, few enough for its multiprocessor's cache; between two factors it waits for its own threads
and for no other program. The slabs have the dtype of value; sums are fp32, or float64 for float64.
"""

import torch
import triton

from ..common.grids import checked
from ..common.interpreter import interpreted
from .programs_gpu import mix_all, unmix_all
from .spans import spans

# Elements of a block of rows, and threads for it by 32.
BLOCK, WARPS = (256, 1) if interpreted() else (2048, 8)
# Of a thread. Without a bound the assembler takes fewer and spills some, for programs that it thinks there are.
REGISTERS = 128
# Bytes of a slab, so that a multiprocessor's cache has room for two, and its least and most channels.
SLAB, LEAST, MOST = 1 << 16, 8, 64
# Rows of a document in which all but few tokens of packed texts are.
USUAL_DOCUMENT = 2048
# Programs of a launch, where pieces of samples can be made: two for each multiprocessor of the largest of our cards.
PROGRAMS = 264


def link_mix(value, weights, offsets, lengths, document_ids, wrap):
    """All factors on value (B, N, D); see operator.py."""
    result = torch.empty_like(value)
    slots = min(2, weights.shape[2])
    _mix(value, _by_links(weights), offsets, lengths, _documents(value, lengths, document_ids), wrap, slots, result)
    return result


def link_mix_backward(gradient, value, weights, offsets, lengths, document_ids, wrap):
    """Gradients of value and weights; the factors' inputs are computed anew."""
    links, documents = _by_links(weights), _documents(value, lengths, document_ids)
    inputs = _mix(value, links, offsets, lengths, documents, wrap, weights.shape[2], None)
    batch, slabs, _, positions, channels = inputs.shape
    states = inputs.new_empty(batch, slabs, 2, positions, channels)
    # Every slab writes what it adds to the weights' gradient: no two programs write to the same place.
    of_value, of_weights = torch.empty_like(value), links.new_empty(slabs, *links.shape)
    _launch(
        *(unmix_all, states, documents, wrap),
        *(gradient, inputs, states, links, offsets, lengths, *documents, of_value, of_weights),
        sizes=(positions, value.shape[2], *weights.shape[2:]),
    )
    return of_value, of_weights.sum(0).permute(2, 3, 0, 1).contiguous()


def _mix(value, links, offsets, lengths, documents, wrap, slots, result):
    """Apply all factors to value; without `result` all but the last, for the returned slabs (B, D/C, slots, N, C)."""
    batch, positions, width = value.shape
    channels = _channels(value, documents)
    states = value.new_empty(batch, triton.cdiv(width, channels), slots, positions, channels)
    _launch(
        *(mix_all, states, documents, wrap),
        *(value, states, links, offsets, lengths, *documents, result),
        sizes=(positions, width, *links.shape[:2]),
    )
    return states


def _launch(kernel, states, documents, wrap, *tensors, sizes):
    """One launch over slabs (B, D/C, slots, N, C). `sizes`: N, D, M and K."""
    batch, slabs, slots, positions, channels = states.shape
    # A sample that has several documents is cut between them.
    pieces = 1 if documents[0] is None else min(triton.cdiv(PROGRAMS, batch * slabs), triton.cdiv(positions, MOST))
    rows = triton.cdiv(positions, pieces)
    kernel[checked(pieces, slabs, batch)](
        *(*tensors, slots, rows, *sizes, wrap, BLOCK // channels, channels), num_warps=WARPS, maxnreg=REGISTERS
    )


def _by_links(weights: torch.Tensor) -> torch.Tensor:
    """(B, N, M, K) -> (M, K, B, N), contiguous: the weights of one link lie next to each other."""
    return weights.permute(2, 3, 0, 1).contiguous()


def _documents(value, lengths, document_ids):
    """Start and length of each row's document, (B, N) int32 each; None twice: samples are documents."""
    if document_ids is None:
        return None, None
    return tuple(part.to(torch.int32) for part in spans(value.shape[1], lengths, document_ids, value.device))


def _channels(value: torch.Tensor, documents: tuple) -> int:
    """Channels of a slab, a power of 2."""
    positions, width = value.shape[1:]
    rows = positions if documents[0] is None else min(positions, USUAL_DOCUMENT)
    fitting = min(MOST, SLAB // (rows * value.element_size()), triton.next_power_of_2(width))
    return 1 << max(LEAST, fitting).bit_length() - 1
