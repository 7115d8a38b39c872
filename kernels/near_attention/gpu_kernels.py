"""Attention to the nearest tokens in Triton: a program takes a block of rows of one head, and its keys place by place.

The rows of neighbouring places are nearly the same ones, which a multiprocessor's cache keeps. The backward pass has
one launch by queries, and one by keys, that compute the weights anew from the size of each row's sum.
"""

import torch
import triton
import triton.language as tl

from ..common.grids import checked
from ..common.interpreter import interpreted
from ..common.lengths_gpu import length_of
from ..common.rows import rows_like

ROWS, PARTS = (4, 8) if interpreted() else (32, 512)
# Without the limit ptxas may take a few registers less, and spill them.
WARPS, REGISTERS = 4, 255
NOTHING = tl.constexpr(-1e30)  # the score of no key; finite, so that differences are never NaN


@triton.jit
def _rows(x, sample, head, row, channel, batch_stride, head_stride, row_stride):
    """Pointers (rows, channels)."""
    start = sample.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride
    return x + start + row[:, None].to(tl.int64) * row_stride + channel[None, :]


@triton.jit
def _load(rows, valid, channel, width, like):
    mask = valid[:, None] & (channel < width)[None, :]
    return tl.load(rows, mask=mask, other=0.0).to(like.dtype.element_ty)


@triton.jit
def _store(rows, valid, channel, width, x):
    tl.store(rows, x.to(rows.dtype.element_ty), mask=valid[:, None] & (channel < width)[None, :])


@triton.jit
def _run(ids, row, length, before, behind):
    """The first and the last valid row of each one's run of equal ids, at most so many before it and behind it."""
    first, last = row, row
    if ids is not None:
        own = tl.load(ids + row, mask=row < length, other=0)
        for step in range(1, before + 1):
            more = (row - step >= 0) & (row - step + 1 == first) & (row < length)
            first = tl.where(more & (tl.load(ids + row - step, mask=more, other=0) == own), row - step, first)
        for step in range(1, behind + 1):
            more = (row + step < length) & (row + step - 1 == last)
            last = tl.where(more & (tl.load(ids + row + step, mask=more, other=0) == own), row + step, last)
    return first, last


@triton.jit
def _sees(row, other, length, ids, first, last):
    """Whether rows see other ones, `length` of them valid: those of their runs."""
    seen = (row < length) & (other >= 0) & (other < length)
    if ids is not None:
        seen = seen & (other >= first) & (other <= last)
    return seen


@triton.jit
def _share(share_logit, head, like):
    """How much of a head's attention is exact."""
    return 1 / (1 + tl.exp(-tl.load(share_logit + head).to(like.dtype.element_ty)))


@triton.jit
def _height(bias, head, places, place, like):
    return tl.load(bias + head * places + place).to(like.dtype.element_ty)


@triton.jit
def mix_near(query, key, value, estimate, bias, share_logit, lengths, ids, result, sizes, positions, heads, width,
             channels, places, before, scale, query_batch, query_head, query_row, key_batch, key_head, key_row,
             value_batch, value_head, value_row, estimate_batch, estimate_head, estimate_row, result_batch, result_head,
             result_row, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """The result, and the logarithm of the sum of each row's exponentials."""
    pair = tl.program_id(0)
    sample, head = pair // heads, pair % heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    feature, channel = tl.arange(0, WIDTH), tl.arange(0, CHANNELS)
    length = length_of(lengths, sample, positions)
    if ids is not None:
        ids += sample.to(tl.int64) * positions
    first, last = _run(ids, row, length, before, places - 1 - before)
    rows = _rows(query, sample, head, row, feature, query_batch, query_head, query_row)
    queries = _load(rows, row < length, feature, width, sizes)
    largest = tl.full([ROWS], NOTHING, queries.dtype)
    total = tl.zeros([ROWS], queries.dtype)
    near = tl.zeros([ROWS, CHANNELS], queries.dtype)
    for place in range(places):
        other = row + place - before
        seen = _sees(row, other, length, ids, first, last)
        rows = _rows(key, sample, head, other, feature, key_batch, key_head, key_row)
        keys = _load(rows, seen, feature, width, sizes)
        rows = _rows(value, sample, head, other, channel, value_batch, value_head, value_row)
        values = _load(rows, seen, channel, channels, sizes)
        scores = tl.sum(queries * keys, 1) * scale + _height(bias, head, places, place, sizes)
        scores = tl.where(seen, scores, NOTHING)
        larger = tl.maximum(largest, scores)
        kept, weights = tl.exp(largest - larger), tl.where(seen, tl.exp(scores - larger), 0.0)
        total = total * kept + weights
        near = near * kept[:, None] + weights[:, None] * values
        largest = larger
    part = _share(share_logit, head, sizes)
    near = near / tl.where(total > 0, total, 1.0)[:, None]
    rows = _rows(estimate, sample, head, row, channel, estimate_batch, estimate_head, estimate_row)
    mixed = (1 - part) * _load(rows, row < length, channel, channels, sizes) + part * near
    rows = _rows(result, sample, head, row, channel, result_batch, result_head, result_row)
    _store(rows, row < positions, channel, channels, mixed)
    size = largest + tl.log(tl.where(total > 0, total, 1.0))
    tl.store(sizes + pair.to(tl.int64) * positions + row, size, mask=row < positions)


@triton.jit
def unmix_near_queries(gradient, query, key, value, result, bias, share_logit, lengths, ids, sizes, of_query,
                       of_estimate, offsets, parts, positions, heads, width, channels, places, before, scale,
                       gradient_batch, gradient_head, gradient_row, query_batch, query_head, query_row, key_batch,
                       key_head, key_row, value_batch, value_head, value_row, result_batch, result_head,
                       result_row, of_query_batch, of_query_head, of_query_row, of_estimate_batch,
                       of_estimate_head, of_estimate_row, ROWS: tl.constexpr, WIDTH: tl.constexpr,
                       CHANNELS: tl.constexpr):  # fmt: skip
    """Gradients of queries and estimates; `offsets`, the mean of the gradients of each row's scores; and in `parts`
    (H, K + 1, samples by blocks) those of a block for bias and share_logit.
    """
    pair = tl.program_id(0)
    sample, head = pair // heads, pair % heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    feature, channel = tl.arange(0, WIDTH), tl.arange(0, CHANNELS)
    length = length_of(lengths, sample, positions)
    valid = row < length
    if ids is not None:
        ids += sample.to(tl.int64) * positions
    first, last = _run(ids, row, length, before, places - 1 - before)
    count = tl.num_programs(0).to(tl.int64) // heads * tl.num_programs(1)
    parts += head * (places + 1) * count + sample * tl.num_programs(1) + tl.program_id(1)
    at = pair.to(tl.int64) * positions + row
    rows = _rows(query, sample, head, row, feature, query_batch, query_head, query_row)
    queries = _load(rows, valid, feature, width, sizes)
    rows = _rows(gradient, sample, head, row, channel, gradient_batch, gradient_head, gradient_row)
    gradients = _load(rows, valid, channel, channels, sizes)
    size = tl.load(sizes + at, mask=valid, other=0.0)
    total = tl.zeros([ROWS], queries.dtype)
    near = tl.zeros([ROWS, CHANNELS], queries.dtype)
    for place in range(places):
        other = row + place - before
        seen = _sees(row, other, length, ids, first, last)
        rows = _rows(key, sample, head, other, feature, key_batch, key_head, key_row)
        keys = _load(rows, seen, feature, width, sizes)
        rows = _rows(value, sample, head, other, channel, value_batch, value_head, value_row)
        values = _load(rows, seen, channel, channels, sizes)
        scores = tl.sum(queries * keys, 1) * scale + _height(bias, head, places, place, sizes)
        weights = tl.where(seen, tl.exp(scores - size), 0.0)
        total += weights
        near += weights[:, None] * values
    # Of large scores the size is rounded so that weights do not sum to 1; what they would lack, a gradient of zero has.
    near = near / tl.where(total > 0, total, 1.0)[:, None]
    part = _share(share_logit, head, sizes)
    rows = _rows(result, sample, head, row, channel, result_batch, result_head, result_row)
    results = _load(rows, valid, channel, channels, sizes)
    # By the logit it is part (1 - part) (near - estimate), and near - result is (1 - part) (near - estimate).
    of_share = part * tl.sum(tl.sum(gradients * (near - results), 1), 0)
    tl.store(parts + places * count, of_share)
    rows = _rows(of_estimate, sample, head, row, channel, of_estimate_batch, of_estimate_head, of_estimate_row)
    _store(rows, row < positions, channel, channels, (1 - part) * gradients)
    gradients = part * gradients
    offset = tl.sum(gradients * near, 1)
    tl.store(offsets + at, offset, mask=row < positions)
    of_queries = tl.zeros([ROWS, WIDTH], queries.dtype)
    for place in range(places):
        other = row + place - before
        seen = _sees(row, other, length, ids, first, last)
        rows = _rows(key, sample, head, other, feature, key_batch, key_head, key_row)
        keys = _load(rows, seen, feature, width, sizes)
        rows = _rows(value, sample, head, other, channel, value_batch, value_head, value_row)
        values = _load(rows, seen, channel, channels, sizes)
        scores = tl.sum(queries * keys, 1) * scale + _height(bias, head, places, place, sizes)
        weights = tl.where(seen, tl.exp(scores - size), 0.0)
        of_scores = weights * (tl.sum(gradients * values, 1) - offset)
        tl.store(parts + place * count, tl.sum(of_scores, 0))
        of_queries += of_scores[:, None] * keys
    rows = _rows(of_query, sample, head, row, feature, of_query_batch, of_query_head, of_query_row)
    _store(rows, row < positions, feature, width, of_queries * scale)


@triton.jit
def unmix_near_keys(gradient, query, key, value, bias, share_logit, lengths, ids, sizes, offsets, of_key, of_value,
                    positions, heads, width, channels, places, before, scale, gradient_batch, gradient_head,
                    gradient_row, query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch,
                    value_head, value_row, of_key_batch, of_key_head, of_key_row, of_value_batch, of_value_head,
                    of_value_row, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """Gradients of keys and values, from the queries that see them."""
    pair = tl.program_id(0)
    sample, head = pair // heads, pair % heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    feature, channel = tl.arange(0, WIDTH), tl.arange(0, CHANNELS)
    length = length_of(lengths, sample, positions)
    valid = row < length
    if ids is not None:
        ids += sample.to(tl.int64) * positions
    first, last = _run(ids, row, length, places - 1 - before, before)
    of_head = pair.to(tl.int64) * positions
    rows = _rows(key, sample, head, row, feature, key_batch, key_head, key_row)
    keys = _load(rows, valid, feature, width, sizes)
    rows = _rows(value, sample, head, row, channel, value_batch, value_head, value_row)
    values = _load(rows, valid, channel, channels, sizes)
    part = _share(share_logit, head, sizes)
    of_keys, of_values = tl.zeros([ROWS, WIDTH], keys.dtype), tl.zeros([ROWS, CHANNELS], keys.dtype)
    for place in range(places):
        other = row - place + before
        seen = _sees(row, other, length, ids, first, last)
        rows = _rows(query, sample, head, other, feature, query_batch, query_head, query_row)
        queries = _load(rows, seen, feature, width, sizes)
        rows = _rows(gradient, sample, head, other, channel, gradient_batch, gradient_head, gradient_row)
        gradients = part * _load(rows, seen, channel, channels, sizes)
        scores = tl.sum(queries * keys, 1) * scale + _height(bias, head, places, place, sizes)
        size = tl.load(sizes + of_head + other, mask=seen, other=0.0)
        weights = tl.where(seen, tl.exp(scores - size), 0.0)
        offset = tl.load(offsets + of_head + other, mask=seen, other=0.0)
        of_scores = weights * (tl.sum(gradients * values, 1) - offset)
        of_keys += of_scores[:, None] * queries
        of_values += weights[:, None] * gradients
    rows = _rows(of_key, sample, head, row, feature, of_key_batch, of_key_head, of_key_row)
    _store(rows, row < positions, feature, width, of_keys * scale)
    rows = _rows(of_value, sample, head, row, channel, of_value_batch, of_value_head, of_value_row)
    _store(rows, row < positions, channel, channels, of_values)


@triton.jit
def add_parts(parts, of_bias, of_share, count, places, PARTS: tl.constexpr):
    """The sum of what blocks have found for one place of a head's bias, or for its share."""
    head, place = tl.program_id(0), tl.program_id(1)
    parts += (head * (places + 1) + place).to(tl.int64) * count
    total = tl.zeros([PARTS], parts.dtype.element_ty)
    for begin in range(0, count, PARTS):
        part = begin + tl.arange(0, PARTS)
        total += tl.load(parts + part, mask=part < count, other=0.0)
    found = tl.sum(total, 0)
    if place < places:
        tl.store(of_bias + head * places + place, found.to(of_bias.dtype.element_ty))
    else:
        tl.store(of_share + head, found.to(of_share.dtype.element_ty))


def near_attention(query, key, value, estimate, bias, share_logit, before, lengths, document_ids):
    """The result, and the logarithms of the rows' sums; see operator.py."""
    result = rows_like(value)
    sizes = query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
    grid, layout = _launch(query, value, bias, before)
    mix_near[grid](
        *(query, key, value, estimate, bias, share_logit, lengths, document_ids, result, sizes),
        *layout.values(),
        *_strides(query, key, value, estimate, result),
        **_blocks(query, value),
    )
    return result.transpose(1, 2), sizes


def near_attention_backward(
    gradient, query, key, value, bias, share_logit, before, lengths, document_ids, result, sizes
):
    """Gradients of query, key, value, estimate, bias and share_logit."""
    gradient, result = gradient.transpose(1, 2), result.transpose(1, 2)
    of_query, of_key, of_value, of_estimate = (rows_like(x) for x in (query, key, value, value))
    grid, layout = _launch(query, value, bias, before)
    offsets = torch.empty_like(sizes)
    heads, places = bias.shape
    parts = sizes.new_empty(heads, places + 1, len(query) * grid[1])
    unmix_near_queries[grid](
        *(gradient, query, key, value, result, bias, share_logit, lengths, document_ids, sizes, of_query),
        *(of_estimate, offsets, parts, *layout.values()),
        *_strides(gradient, query, key, value, result, of_query, of_estimate),
        **_blocks(query, value),
    )
    unmix_near_keys[grid](
        *(gradient, query, key, value, bias, share_logit, lengths, document_ids, sizes, offsets, of_key, of_value),
        *layout.values(),
        *_strides(gradient, query, key, value, of_key, of_value),
        **_blocks(query, value),
    )
    of_bias, of_share = torch.empty_like(bias), torch.empty_like(share_logit)
    add_parts[heads, places + 1](parts, of_bias, of_share, parts.shape[2], places, PARTS=PARTS)
    return of_query, of_key, of_value, of_estimate, of_bias, of_share


def _launch(query: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, before: int) -> tuple[tuple, dict]:
    """The grid, heads by blocks of rows, and the sizes that all programs are given, in their order."""
    batch, heads, positions, width = query.shape
    sizes = {"positions": positions, "heads": heads, "width": width, "channels": value.shape[3]}
    return checked(batch * heads, triton.cdiv(positions, ROWS)), {
        **sizes,
        "places": bias.shape[1],
        "before": before,
        "scale": width**-0.5,
    }


def _blocks(query: torch.Tensor, value: torch.Tensor) -> dict[str, int]:
    width, channels = (triton.next_power_of_2(x.shape[3]) for x in (query, value))
    return {"ROWS": ROWS, "WIDTH": width, "CHANNELS": channels, "num_warps": WARPS, "maxnreg": REGISTERS}


def _strides(*rows: torch.Tensor) -> list[int]:
    return [stride for x in rows for stride in x.stride()[:3]]
