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
from .operator import rows_like

ROWS, WARPS = (4, 4) if interpreted() else (32, 4)
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
def _sees(row, other, length, numbers, own):
    """Whether rows see other ones, `length` of them valid: those of their documents, of the numbers `own`."""
    seen = (row < length) & (other >= 0) & (other < length)
    if numbers is not None:
        seen = seen & (tl.load(numbers + other, mask=seen, other=-1) == own)
    return seen


@triton.jit
def mix_near(query, key, value, estimate, bias, share, lengths, numbers, result, sizes, positions, heads, width,
             channels, places, before, scale, query_batch, query_head, query_row, key_batch, key_head, key_row,
             value_batch, value_head, value_row, estimate_batch, estimate_head, estimate_row, result_batch, result_head,
             result_row, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """The result, and the logarithm of the sum of each row's exponentials."""
    pair = tl.program_id(0)
    sample, head = pair // heads, pair % heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    feature, channel = tl.arange(0, WIDTH), tl.arange(0, CHANNELS)
    length = length_of(lengths, sample, positions)
    own = row
    if numbers is not None:
        numbers += sample.to(tl.int64) * positions
        own = tl.load(numbers + row, mask=row < length, other=-1)
    rows = _rows(query, sample, head, row, feature, query_batch, query_head, query_row)
    queries = _load(rows, row < length, feature, width, sizes)
    largest = tl.full([ROWS], NOTHING, queries.dtype)
    total = tl.zeros([ROWS], queries.dtype)
    near = tl.zeros([ROWS, CHANNELS], queries.dtype)
    for place in range(places):
        other = row + place - before
        seen = _sees(row, other, length, numbers, own)
        rows = _rows(key, sample, head, other, feature, key_batch, key_head, key_row)
        keys = _load(rows, seen, feature, width, sizes)
        rows = _rows(value, sample, head, other, channel, value_batch, value_head, value_row)
        values = _load(rows, seen, channel, channels, sizes)
        scores = tl.sum(queries * keys, 1) * scale + tl.load(bias + head * places + place)
        scores = tl.where(seen, scores, NOTHING)
        larger = tl.maximum(largest, scores)
        kept, weights = tl.exp(largest - larger), tl.where(seen, tl.exp(scores - larger), 0.0)
        total = total * kept + weights
        near = near * kept[:, None] + weights[:, None] * values
        largest = larger
    part = tl.load(share + head)
    near = near / tl.where(total > 0, total, 1.0)[:, None]
    rows = _rows(estimate, sample, head, row, channel, estimate_batch, estimate_head, estimate_row)
    mixed = (1 - part) * _load(rows, row < length, channel, channels, sizes) + part * near
    rows = _rows(result, sample, head, row, channel, result_batch, result_head, result_row)
    _store(rows, row < positions, channel, channels, mixed)
    size = largest + tl.log(tl.where(total > 0, total, 1.0))
    tl.store(sizes + pair.to(tl.int64) * positions + row, size, mask=row < positions)


@triton.jit
def unmix_near_queries(gradient, query, key, value, estimate, bias, share, lengths, numbers, sizes, of_query,
                       of_estimate, offsets, parts, positions, heads, width, channels, places, before, scale,
                       gradient_batch, gradient_head, gradient_row, query_batch, query_head, query_row, key_batch,
                       key_head, key_row, value_batch, value_head, value_row, estimate_batch, estimate_head,
                       estimate_row, of_query_batch, of_query_head, of_query_row, of_estimate_batch,
                       of_estimate_head, of_estimate_row, ROWS: tl.constexpr, WIDTH: tl.constexpr,
                       CHANNELS: tl.constexpr):  # fmt: skip
    """Gradients of queries and estimates; `offsets`, the mean of the gradients of each row's scores; and in `parts`
    (samples by blocks, H, K + 1) those of a block for bias and share.
    """
    pair = tl.program_id(0)
    sample, head = pair // heads, pair % heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    feature, channel = tl.arange(0, WIDTH), tl.arange(0, CHANNELS)
    length = length_of(lengths, sample, positions)
    valid = row < length
    own = row
    if numbers is not None:
        numbers += sample.to(tl.int64) * positions
        own = tl.load(numbers + row, mask=valid, other=-1)
    parts += ((sample * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * heads + head) * (places + 1)
    at = pair.to(tl.int64) * positions + row
    rows = _rows(query, sample, head, row, feature, query_batch, query_head, query_row)
    queries = _load(rows, valid, feature, width, sizes)
    rows = _rows(gradient, sample, head, row, channel, gradient_batch, gradient_head, gradient_row)
    gradients = _load(rows, valid, channel, channels, sizes)
    size = tl.load(sizes + at, mask=valid, other=0.0)
    near = tl.zeros([ROWS, CHANNELS], queries.dtype)
    for place in range(places):
        other = row + place - before
        seen = _sees(row, other, length, numbers, own)
        rows = _rows(key, sample, head, other, feature, key_batch, key_head, key_row)
        keys = _load(rows, seen, feature, width, sizes)
        rows = _rows(value, sample, head, other, channel, value_batch, value_head, value_row)
        values = _load(rows, seen, channel, channels, sizes)
        scores = tl.sum(queries * keys, 1) * scale + tl.load(bias + head * places + place)
        near += tl.where(seen, tl.exp(scores - size), 0.0)[:, None] * values
    part = tl.load(share + head)
    rows = _rows(estimate, sample, head, row, channel, estimate_batch, estimate_head, estimate_row)
    estimates = _load(rows, valid, channel, channels, sizes)
    tl.store(parts + places, tl.sum(tl.sum(gradients * (near - estimates), 1), 0))
    rows = _rows(of_estimate, sample, head, row, channel, of_estimate_batch, of_estimate_head, of_estimate_row)
    _store(rows, row < positions, channel, channels, (1 - part) * gradients)
    gradients = part * gradients
    offset = tl.sum(gradients * near, 1)
    tl.store(offsets + at, offset, mask=row < positions)
    of_queries = tl.zeros([ROWS, WIDTH], queries.dtype)
    for place in range(places):
        other = row + place - before
        seen = _sees(row, other, length, numbers, own)
        rows = _rows(key, sample, head, other, feature, key_batch, key_head, key_row)
        keys = _load(rows, seen, feature, width, sizes)
        rows = _rows(value, sample, head, other, channel, value_batch, value_head, value_row)
        values = _load(rows, seen, channel, channels, sizes)
        scores = tl.sum(queries * keys, 1) * scale + tl.load(bias + head * places + place)
        weights = tl.where(seen, tl.exp(scores - size), 0.0)
        of_scores = weights * (tl.sum(gradients * values, 1) - offset)
        tl.store(parts + place, tl.sum(of_scores, 0))
        of_queries += of_scores[:, None] * keys
    rows = _rows(of_query, sample, head, row, feature, of_query_batch, of_query_head, of_query_row)
    _store(rows, row < positions, feature, width, of_queries * scale)


@triton.jit
def unmix_near_keys(gradient, query, key, value, bias, share, lengths, numbers, sizes, offsets, of_key, of_value,
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
    own = row
    if numbers is not None:
        numbers += sample.to(tl.int64) * positions
        own = tl.load(numbers + row, mask=valid, other=-1)
    first = pair.to(tl.int64) * positions
    rows = _rows(key, sample, head, row, feature, key_batch, key_head, key_row)
    keys = _load(rows, valid, feature, width, sizes)
    rows = _rows(value, sample, head, row, channel, value_batch, value_head, value_row)
    values = _load(rows, valid, channel, channels, sizes)
    part = tl.load(share + head)
    of_keys, of_values = tl.zeros([ROWS, WIDTH], keys.dtype), tl.zeros([ROWS, CHANNELS], keys.dtype)
    for place in range(places):
        other = row - place + before
        seen = _sees(row, other, length, numbers, own)
        rows = _rows(query, sample, head, other, feature, query_batch, query_head, query_row)
        queries = _load(rows, seen, feature, width, sizes)
        rows = _rows(gradient, sample, head, other, channel, gradient_batch, gradient_head, gradient_row)
        gradients = part * _load(rows, seen, channel, channels, sizes)
        scores = tl.sum(queries * keys, 1) * scale + tl.load(bias + head * places + place)
        size = tl.load(sizes + first + other, mask=seen, other=0.0)
        weights = tl.where(seen, tl.exp(scores - size), 0.0)
        offset = tl.load(offsets + first + other, mask=seen, other=0.0)
        of_scores = weights * (tl.sum(gradients * values, 1) - offset)
        of_keys += of_scores[:, None] * queries
        of_values += weights[:, None] * gradients
    rows = _rows(of_key, sample, head, row, feature, of_key_batch, of_key_head, of_key_row)
    _store(rows, row < positions, feature, width, of_keys * scale)
    rows = _rows(of_value, sample, head, row, channel, of_value_batch, of_value_head, of_value_row)
    _store(rows, row < positions, channel, channels, of_values)


def near_attention(query, key, value, estimate, bias, share, before, lengths, numbers):
    """The result, and the logarithms of the rows' sums; see operator.py."""
    result, sizes = rows_like(value), bias.new_empty(query.shape[:3])
    grid, layout = _launch(query, value, bias, before)
    mix_near[grid](
        *(query, key, value, estimate, bias, share, lengths, numbers, result, sizes),
        *layout.values(),
        *_strides(query, key, value, estimate, result),
        **_blocks(query, value),
    )
    return result.transpose(1, 2), sizes


def near_attention_backward(gradient, query, key, value, estimate, bias, share, before, lengths, numbers, sizes):
    """Gradients of query, key, value, estimate, bias and share."""
    gradient = gradient.transpose(1, 2)
    of_query, of_key, of_value, of_estimate = (rows_like(x) for x in (query, key, value, estimate))
    grid, layout = _launch(query, value, bias, before)
    offsets = torch.empty_like(sizes)
    parts = bias.new_empty(query.shape[0] * grid[1], *bias.shape[:1], bias.shape[1] + 1)
    unmix_near_queries[grid](
        *(gradient, query, key, value, estimate, bias, share, lengths, numbers, sizes, of_query, of_estimate),
        *(offsets, parts, *layout.values()),
        *_strides(gradient, query, key, value, estimate, of_query, of_estimate),
        **_blocks(query, value),
    )
    unmix_near_keys[grid](
        *(gradient, query, key, value, bias, share, lengths, numbers, sizes, offsets, of_key, of_value),
        *layout.values(),
        *_strides(gradient, query, key, value, of_key, of_value),
        **_blocks(query, value),
    )
    return of_query, of_key, of_value, of_estimate, parts[..., :-1].sum(0), parts[..., -1].sum(0)


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
    return {"ROWS": ROWS, "WIDTH": width, "CHANNELS": channels, "num_warps": WARPS}


def _strides(*rows: torch.Tensor) -> list[int]:
    return [stride for x in rows for stride in x.stride()[:3]]
