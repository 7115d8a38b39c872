"""Attention from random features in Triton: the launches of `feature_attention`, whose programs make the logarithms of
queries and keys where they read them, but where these would be made several times, and behind the backward pass one
that takes the logarithms' gradients back.

It takes rows in pieces, for which a program holds the projection. The gradient of a table of biases is a sum over
samples, for which the logarithms' gradients pass through memory. It is not added up between programs: each of them has
some rows of the table, and walks over the tokens that read these.
"""

import torch
import triton
import triton.language as tl

from ..attention.features_gpu import RandomFeatures, exact_rule, load_features, store_features
from ..attention.gpu_kernels import attend, unattend
from ..attention.pieces import block_of, channels_of
from ..attention.rows_gpu import length_of, product
from ..common.interpreter import interpreted
from ..common.rows import rows_like
from .operator import heads_lie_apart
from .tables import tables_of

# Rows of a block, and programs of a launch: 16 for each multiprocessor of the largest of our cards, since of packed
# documents only the first places have tokens. Of the projection a program holds as many features as fit into the
# registers of its threads, as benchmarks/gpu_model shows.
ROWS, PROGRAMS, PROJECTION_BYTES = (4, 64, 1024) if interpreted() else (16, 2112, 16384)
FEWEST = 16  # that a product of matrices takes
MADE_FEATURES = 64  # that a program makes for memory
# Without the limit ptxas may take the fewest registers, and spill most of them.
WARPS, REGISTERS = 8, 255
# Of the launch behind the backward pass on tensor cores: a multiprocessor runs three programs of it, where it would run
# one of twice as many threads, and the next rows are on their way meanwhile.
ON_TENSOR_CORES = {"num_warps": 4, "maxnreg": 168, "num_stages": 2}


@triton.jit
def _load(rows, inside, column, columns, like):
    mask = inside[:, None] & (column < columns)[None, :]
    return tl.load(rows, mask=mask, other=0.0).to(like.dtype.element_ty)


@triton.jit
def _rows(x, sample, head, row, column, batch_stride, head_stride, row_stride):
    """Pointers (rows, columns) of rows of samples, which are vectors or numbers."""
    start = sample.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride + row.to(tl.int64) * row_stride
    return x + start[:, None] + column[None, :]


@triton.jit
def _projected(projection, apart, feature, features, channel, width, scale):
    """The projection, whose rows are so far from each other."""
    mask = (feature < features)[:, None] & (channel < width)[None, :]
    return tl.load(projection + feature[:, None] * apart + channel[None, :], mask=mask, other=0.0) * scale


@triton.jit
def make_features(
    query, key, lengths, query_logs, key_logs, heads, positions, features, rows,
    ROWS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """The logarithms (B, H, N, m) of a block of features of a piece of a head's rows."""
    head = tl.program_id(0).to(tl.int64)
    query_logs, key_logs = query_logs + head * positions * features, key_logs + head * positions * features
    row = tl.program_id(1) * rows
    end = tl.minimum(row + rows, length_of(lengths, head // heads, positions))
    feature = tl.program_id(2) * FEATURES + tl.arange(0, FEATURES)
    while row < end:
        inside = row + tl.arange(0, ROWS) < end
        logs = load_features(query, row, inside, feature, features, "made", heads, positions)
        store_features(query_logs, logs, row, inside, feature, features)
        logs = load_features(key, row, inside, feature, features, "made", heads, positions)
        store_features(key_logs, logs, row, inside, feature, features)
        row += ROWS


@triton.jit(do_not_specialize=["shares"])
def unmake_features(of_query_logs, of_key_logs, key, projection, order, starts, lengths, of_query, of_key,
                    of_query_bias, of_key_bias, heads, count, width, features, places, samples, rows, shares, of_share,
                    apart, bias_batch, key_batch, key_head, key_row, of_block, of_batch, of_head, of_row,
                    SCALE: tl.constexpr, PER_ROOT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
                    FEATURES: tl.constexpr, RULE: tl.constexpr):  # fmt: skip
    """Gradients of the tokens at a piece of a head's places, and of these rows of the tables of biases.

    A place is that of `samples` samples, or has the tokens order[starts[place]] .. order[starts[place + 1] - 1], of
    which each of `shares` programs has a part, and its own table, so far from the next one.
    Where there are several blocks of features, each has a part of the tokens' gradients.
    """
    group, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    channel, feature = tl.arange(0, WIDTH), tl.program_id(2) * FEATURES + tl.arange(0, FEATURES)
    of_query += tl.program_id(2).to(tl.int64) * of_block
    of_key += tl.program_id(2).to(tl.int64) * of_block
    weights = _projected(projection, apart, feature, features, channel, width, SCALE)
    first_place, share = tl.program_id(1) // shares * rows, tl.program_id(1) % shares
    end = tl.minimum(first_place + rows, places)
    for begin in range(first_place, end, ROWS):
        place = begin + tl.arange(0, ROWS)
        first = place.to(tl.int64) * 0
        number = tl.where(place < end, samples, 0)
        if order is not None:
            first = tl.load(starts + place, mask=place < end, other=0)
            number = (tl.load(starts + place + 1, mask=place < end, other=0) - first).to(tl.int32)
        of_queries = tl.zeros((ROWS, FEATURES), of_query_logs.dtype.element_ty)
        of_keys = tl.zeros((ROWS, FEATURES), of_query_logs.dtype.element_ty)
        for turn in range(share, tl.max(number, 0), shares):
            inside = turn < number
            if order is not None:
                # No batch has 2^31 tokens, and a division of 64 bits is long.
                token = tl.load(order + first + turn, mask=inside, other=0).to(tl.int32)
                sample, row = (token // count).to(tl.int64), token % count
            else:
                sample, row = first + group * samples + turn, place
            known = inside
            if lengths is not None:
                known = inside & (row < tl.load(lengths + sample, mask=inside, other=0))
            # All is read before anything is written, so that the reads wait for memory together.
            at = ((sample * heads + head) * count + row)[:, None] * features + feature[None, :]
            query_gradients = _load(of_query_logs + at, known, feature, features, of_query_logs)
            key_gradients = _load(of_key_logs + at, known, feature, features, of_key_logs)
            pointers = _rows(key, sample, head, row, channel, key_batch, key_head, key_row)
            keys = _load(pointers, known, channel, width, of_key_logs)
            of_queries += query_gradients
            of_keys += key_gradients
            written = inside[:, None] & (channel < width)[None, :]
            pointers = _rows(of_query, sample, head, row, channel, of_batch, of_head, of_row)
            tl.store(pointers, product(query_gradients, weights, RULE).to(of_query.dtype.element_ty), mask=written)
            of_rows = product(key_gradients, weights, RULE) - keys * tl.sum(key_gradients, 1)[:, None] * PER_ROOT
            pointers = _rows(of_key, sample, head, row, channel, of_batch, of_head, of_row)
            tl.store(pointers, of_rows.to(of_key.dtype.element_ty), mask=written)
        if of_query_bias is not None:
            at = share.to(tl.int64) * of_share + group.to(tl.int64) * bias_batch + head.to(tl.int64) * places * features
            at += place[:, None].to(tl.int64) * features + feature[None, :]
            written = (place < end)[:, None] & (feature < features)[None, :]
            tl.store(of_query_bias + at, of_queries, mask=written)
            tl.store(of_key_bias + at, of_keys, mask=written)


def random_attention(
    query, key, value, projection, waves, columns, positions, order, starts, lengths, document_ids, causal
):
    """The operator of operator.py."""
    _options(projection, query.shape[3])  # so that nothing is launched for what has no backward pass
    tables = None if waves is None else tables_of(waves, columns)
    kind, features = _features_of_both(query, key, value, projection, tables, positions, lengths, causal)
    apart = heads_lie_apart(projection, causal)
    result = torch.empty_like(value) if apart else rows_like(value)
    attend(result, *features, value, lengths, document_ids, causal, kind)
    return result if apart else result.transpose(1, 2)


def random_attention_backward(
    gradient, query, key, value, projection, tables, positions, order, starts, lengths, document_ids, causal
):
    """Gradients of query, key, value and tables, and of the logarithms."""
    apart = heads_lie_apart(projection, causal)
    of_value = torch.empty_like(value) if apart else rows_like(value)
    gradient = gradient if apart else gradient.transpose(1, 2)
    kind, features = _features_of_both(query, key, value, projection, tables, positions, lengths, causal)
    of_logs = unattend(gradient, of_value, *features, value, lengths, document_ids, causal, kind)
    batch, heads, count, width = query.shape
    blocks, options = _options(projection, width)
    of_rows = [rows_like(x) for x in (query, key)]
    parts = [x[None] if blocks == 1 else projection.new_empty(blocks, *x.shape) for x in of_rows]
    groups, places = (batch, count) if tables is None else (len(tables), tables.shape[3])
    pieces, rows = _pieces(groups * heads * blocks, places)
    # Many short documents have all their tokens at few places.
    shares = 1 if order is None else max(1, triton.cdiv(PROGRAMS, groups * heads * blocks) // pieces)
    of_tables, biases, of_share, of_sample = projection.new_empty(1, 0), (None, None), 0, 0
    if tables is not None:
        of_tables = tables.new_empty(shares, *tables.shape)
        biases, of_share, of_sample = of_tables.unbind(2), of_tables.stride(0), of_tables.stride(1)
    unmake_features[groups * heads, pieces * shares, blocks](
        *of_logs, key, projection, order, starts, lengths, *parts, *biases, heads, count, width, len(projection),
        places, batch // groups, rows, shares, of_share, projection.stride(0), of_sample, *key.stride()[:3],
        *parts[0].stride()[:4], width**-0.25, width**-0.5, **options,
    )  # fmt: skip
    if blocks > 1:
        of_rows = [x.copy_(part.sum(0)) for x, part in zip(of_rows, parts, strict=True)]
    return *of_rows, of_value, of_tables[0] if shares == 1 else of_tables.sum(0), *of_logs


def _features_of_both(
    query, key, value, projection, tables, positions, lengths, causal
) -> tuple[str, list[RandomFeatures] | list[torch.Tensor]]:
    """The kind of features of queries and of keys, to be made where they are read, or their logarithms (B, H, N, m)."""
    biases = (None, None) if tables is None else tables.unbind(1)
    of_queries = RandomFeatures(query, projection, biases[0], positions, has_norm=False)
    features = [of_queries, RandomFeatures(key, projection, biases[1], positions, has_norm=True)]
    channels = channels_of(len(projection), value.shape[3], projection.itemsize)
    if not causal and value.shape[3] <= channels:
        return "made", features
    # Causal programs have no registers for more, and those of several blocks of channels would make the same features:
    # so the logarithms, of valid rows, stand in memory.
    logs = [projection.new_empty(of.shape) for of in features]
    batch, heads, count, _ = query.shape
    size = min(block_of(len(projection)), MADE_FEATURES)
    blocks = triton.cdiv(len(projection), size)
    pieces, rows = _pieces(batch * heads * blocks, count)
    recipes = (of.recipe() for of in features)
    make_features[batch * heads, pieces, blocks](
        *recipes, lengths, *logs, heads, count, len(projection), rows, ROWS, size, num_warps=WARPS, maxnreg=REGISTERS
    )
    return "logarithms", logs


def _pieces(heads: int, rows: int) -> tuple[int, int]:
    """How many pieces the rows of each head are cut into, and rows of a piece: whole blocks."""
    wanted = triton.cdiv(PROGRAMS, heads)
    size = ROWS * max(1, rows // (wanted * ROWS))
    return triton.cdiv(rows, size), size


def _options(projection: torch.Tensor, width: int) -> tuple[int, dict]:
    """How many blocks the features are cut into, and sizes of blocks.

    Raises:
        ValueError: channels of which no block is known to fit into a program of every card.
    """
    channels = max(FEWEST, triton.next_power_of_2(width))
    features = PROJECTION_BYTES // (channels * projection.itemsize)
    if features < FEWEST and not interpreted():
        most = PROJECTION_BYTES // (FEWEST * projection.itemsize)
        raise ValueError(
            f"the Triton kernel of random features has queries of {width} channels in {projection.dtype}; allowed: "
            f"at most {most}; set LONGMIX_KERNELS=portable"
        )
    features = min(max(features, FEWEST), max(FEWEST, triton.next_power_of_2(len(projection))))
    rule = exact_rule(projection.dtype)
    blocks = {"ROWS": ROWS, "WIDTH": channels, "FEATURES": features, "RULE": rule}
    # Of more features there are no registers for it.
    fits = rule != "ieee" and features <= MADE_FEATURES
    settings = ON_TENSOR_CORES if fits else {"num_warps": WARPS, "maxnreg": REGISTERS, "num_stages": 1}
    return triton.cdiv(len(projection), features), {**blocks, **settings}
