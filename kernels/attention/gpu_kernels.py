"""The linear attentions in Triton: a program for each head, or for a piece of its rows, which it walks over in steps.

A step has at most as many rows as a block. It ends with its document and, in a causal pass over logarithms, before the
first row with a feature LIMIT above what the step's first row sees of it: relative to the largest key of each feature
(its peak) that the step's last row sees, no row's own keys may vanish. What lies before a step is one matrix of sums,
features by channels, and pairs inside it are taken one by one.
"""

import torch
import triton

from ..common.interpreter import interpreted
from ..common.tensor_cores import multiply_tf32
from .causal_gpu import causal_forward, causal_keys, causal_later, causal_queries, causal_sums
from .features_gpu import MappedFeatures, MappedRows, RandomFeatures, Recipe
from .pieces import block_of, channels_of, pieces_of
from .pieces_gpu import piece_forward, piece_keys, piece_queries, piece_sums
from .programs_gpu import document_keys, document_sums, whole_backward, whole_forward

# Rows that a program holds of a head. More do not fit into the registers of its threads, as benchmarks/gpu_model shows,
# beside a state of STATE_BYTES, but on tensor cores without causality: there a step takes as long for twice as many.
# Without the limit ptxas may take the fewest registers, and spill most of them.
ROWS, TENSOR_CORE_ROWS, TENSOR_CORE_FEATURES = 16, 16 if interpreted() else 32, 64
STAGES = 2  # with the rows of the next step on their way meanwhile; three do not fit into every card's shared memory
WARPS, REGISTERS = 8, 255
FEATURES_OF_A_WARP = 16  # on tensor cores, at least
CAUSAL_FEATURES = 128  # on tensor cores, at most: of more, the backward pass spills
# Bytes of a row of features, padded: the most that is known to fit into the shared memory of a V100.
CAUSAL_ROW_BYTES, WHOLE_ROW_BYTES = 1024, 2048

Features = torch.Tensor | RandomFeatures | MappedFeatures


def attention(query, key, value, lengths, document_ids, causal, kind):
    """The operation on query and key (B, H, N, m) and value (B, H, N, d); see operator.py."""
    result = torch.empty_like(value)
    attend(result, query, key, value, lengths, document_ids, causal, kind)
    return result


def attention_backward(gradient, query, key, value, lengths, document_ids, causal, kind):
    """Gradients of query, key and value."""
    of_value = torch.empty_like(value)
    arguments = query, key, value, lengths, document_ids, causal, kind
    return *unattend(gradient, of_value, *arguments), of_value


def attend(result, query, key, value, lengths, document_ids, causal, kind) -> None:
    """Write the result of `attention`. Without causality, rows of value and of the result may lie anywhere, and queries
    and keys may be `RandomFeatures`, or, without documents too, `MappedFeatures`.
    """
    if lengths is not None:
        result.zero_()  # rows of padding are not written
    grid, options = _launch(query, value, causal, kind, document_ids)
    if causal:
        sums = _sums_of_documents(causal_sums, grid, options, key, value, lengths, document_ids)
        causal_forward[grid](query, key, value, lengths, document_ids, *sums, result, **options)
    elif document_ids is None and grid[2] > 1:
        sums = _sums_of_pieces(grid, options, key, value, lengths)
        piece_forward[grid](*_taken(query), lengths, *sums, result, **_apart("mixed", result), **options)
    else:
        apart = _apart("value", value) | _apart("mixed", result)
        sums = _sums_of_documents(document_sums, grid, options, key, value, lengths, document_ids)
        whole_forward[grid](*_taken(query, key), value, lengths, document_ids, *sums, result, **apart, **options)


def unattend(
    gradient, of_value, query, key, value, lengths, document_ids, causal, kind
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write the gradient of value, whose rows lie as those of the result's gradient, and return those of query, key:
    of `RandomFeatures` those of the logarithms, of `MappedFeatures` those of the rows, a token's heads side by side.
    """
    grid, options = _launch(query, value, causal, kind, document_ids)
    blocks = grid[1]
    shares = [_room_for_gradients(features, blocks, lengths is not None) for features in (query, key)]
    if lengths is not None:
        of_value.zero_()
    of_query, of_key = (_target(features, share) for features, share in zip((query, key), shares, strict=True))
    of_rows = of_query, of_key, of_value
    apart = {} if causal else _apart("mixed", gradient)
    if causal:
        _unattend_causally(grid, options, gradient, *of_rows, query, key, value, lengths, document_ids)
    elif document_ids is None and grid[2] > 1:
        states, totals, peaks = _sums_of_pieces(grid, options, key, value, lengths)
        later = torch.empty_like(states), torch.empty_like(totals)
        piece_queries[grid](
            gradient, *_taken(query), lengths, states, totals, peaks, of_query, *later, **apart, **options
        )
        of_keys = *_taken(key), value, lengths, peaks, of_key, of_value
        piece_keys[grid](*of_keys, *later, **_apart("value", value), **apart, **options)
    else:
        apart |= _apart("value", value)
        arguments = value, lengths, document_ids
        sums = states, totals, peaks, joined = _sums_of_documents(document_sums, grid, options, key, *arguments)
        later = (None, None) if states is None else (torch.empty_like(states), torch.empty_like(totals))
        whole_backward[grid](gradient, *_taken(query, key), *arguments, *sums, *of_rows, *later, **apart, **options)
        if states is not None:
            document_keys[grid](*_taken(key), *arguments, peaks, joined, of_key, of_value, *later, **apart, **options)
    return tuple(_sum_of(features, share) for features, share in zip((query, key), shares, strict=True))


def _unattend_causally(
    grid, options, gradient, of_query, of_key, of_value, query, key, value, lengths, document_ids
) -> None:
    """Write the gradients, of queries and keys those of each block of channels."""
    # What values get from queries of their own step; in half precision it would be rounded twice.
    own_of_value = of_value if of_value.dtype == query.dtype else torch.empty_like(of_value, dtype=query.dtype)
    # Of each row the inverse of its weight, its offset and its scale, and at the last row of a step its size.
    inverse, offset, scale = (query.new_empty(grid[1], *query.shape[:3]) for _ in range(3))
    sizes = torch.empty(inverse.shape, dtype=torch.int32, device=value.device)
    # Written at the first row of a step.
    peaks = torch.empty_like(of_key) if options["KIND"] == "logarithms" else key
    notes = inverse, offset, scale, sizes, peaks
    sums = _sums_of_documents(causal_sums, grid, options, key, value, lengths, document_ids)
    arguments = gradient, query, key, value, lengths, document_ids
    causal_queries[grid](*arguments, *sums, of_query, of_key, own_of_value, *notes, **options)
    states, totals, _, passing = sums
    if states is not None:  # they have been read
        causal_later[grid](gradient, query, lengths, document_ids, *notes, states, totals, passing, **options)
    causal_keys[grid](*arguments, of_key, own_of_value, of_value, *notes, states, totals, passing, **options)


def _taken(*features: Features) -> tuple[torch.Tensor | Recipe | MappedRows, ...]:
    """As kernels take them."""
    return tuple(each if isinstance(each, torch.Tensor) else each.recipe() for each in features)


def _like(features: Features) -> torch.Tensor:
    """Of the dtype in which features are summed up."""
    if isinstance(features, MappedFeatures):
        return features.rows.new_empty(0, dtype=torch.promote_types(features.rows.dtype, torch.float32))
    return features.projection if isinstance(features, RandomFeatures) else features


# Gradients of features: those of each block of channels are a share of them.


def _room_for_gradients(features: Features, shares: int, zero: bool) -> torch.Tensor:
    """Room for so many shares (B, H, N, m), zeros where not all rows are written; of `MappedFeatures` (B, N, H, m), and
    a single one in the dtype of the rows.
    """
    like, shape = _like(features), features.shape
    if isinstance(features, MappedFeatures):
        batch, heads, positions, width = shape
        like, shape = features.rows if shares == 1 else like, (batch, positions, heads, width)
    return (like.new_zeros if zero else like.new_empty)((shares, *shape))


def _target(features: Features, shares: torch.Tensor) -> torch.Tensor | MappedRows:
    """Room for them as kernels take it."""
    return features.recipe(shares.transpose(2, 3)) if isinstance(features, MappedFeatures) else shares


def _sum_of(features: Features, shares: torch.Tensor) -> torch.Tensor:
    """(B, H, N, m); a single one, the usual case, is the sum of itself."""
    total = shares[0] if len(shares) == 1 else shares.sum(0)
    return total.transpose(1, 2) if isinstance(features, MappedFeatures) else total


def _apart(name: str, rows: torch.Tensor) -> dict[str, int]:
    """How far samples, heads and rows of a tensor (B, H, N, d) are from each other."""
    of_sample, of_head, of_row, _ = rows.stride()
    return {f"{name}_sample": of_sample, f"{name}_head": of_head, f"{name}_row": of_row}


def _sums_of_pieces(grid: tuple[int, int, int], options: dict, key, value, lengths) -> tuple[torch.Tensor, ...]:
    """States, totals and peaks of all pieces alone; see pieces_gpu.py."""
    sums = _room_for_sums(grid, options, _like(key))
    piece_sums[grid](*_taken(key), value, lengths, *sums, **_apart("value", value), **options)
    return sums


def _sums_of_documents(
    program, grid: tuple[int, int, int], options: dict, key, value, lengths, document_ids
) -> tuple[torch.Tensor | None, ...]:
    """States, totals and peaks that pieces hand to each other, where there are several, and which of them have a
    document that began before and goes on to their end; see `document_sums`, `causal_sums`.
    """
    if grid[2] == 1:
        return None, None, None, None
    joined = None if document_ids is None else torch.empty((grid[2], *grid[:2]), dtype=torch.int32, device=value.device)
    sums = *_room_for_sums(grid, options, _like(key), 2 if program is document_sums else 1), joined
    program[grid](*_taken(key), value, lengths, document_ids, *sums, **_apart("value", value), **options)
    return sums


def _room_for_sums(
    grid: tuple[int, int, int], options: dict, like: torch.Tensor, of_a_piece: int = 1
) -> tuple[torch.Tensor, ...]:
    heads, blocks, pieces = grid
    totals, peaks = like.new_empty(2, of_a_piece * pieces, heads, blocks, options["FEATURES"]).unbind(0)
    return like.new_empty(*totals.shape, options["CHANNELS"]), totals, peaks


def _launch(
    query: Features, value: torch.Tensor, causal: bool, kind: str, document_ids: torch.Tensor | None
) -> tuple[tuple[int, ...], dict]:
    """The grid, heads by blocks of channels by pieces of rows, and the arguments behind the tensors.

    Raises:
        ValueError: more features than are known to fit into the shared memory of every card.
    """
    batch, heads, positions, features = query.shape
    width, block = value.shape[3], block_of(features)
    itemsize = _like(query).itemsize
    most = (CAUSAL_ROW_BYTES if causal else WHOLE_ROW_BYTES) // itemsize
    if block > most and not interpreted():
        raise ValueError(
            f"the Triton kernel of {'causal ' if causal else ''}linear attention has {features} features in "
            f"{value.dtype}; allowed: at most {most}; set LONGMIX_KERNELS=portable"
        )
    channels = channels_of(features, width, itemsize)
    options = {"heads": heads, "positions": positions, "features": features, "width": width}
    blocks = {"ROWS": ROWS, "FEATURES": block, "CHANNELS": channels, "KIND": kind}
    # Half precision has no more digits than tensor cores.
    on_tensor_cores = value.itemsize == 2 and multiply_tf32() and not (causal and block > CAUSAL_FEATURES)
    blocks["RULE"] = "tf32" if on_tensor_cores else "ieee"
    warps = min(WARPS, block // FEATURES_OF_A_WARP) if on_tensor_cores else WARPS
    settings = {"num_warps": warps, "maxnreg": REGISTERS, "num_stages": 1}
    if on_tensor_cores and not causal and block <= TENSOR_CORE_FEATURES:
        blocks["ROWS"], settings["num_stages"] = TENSOR_CORE_ROWS, STAGES
    grid = batch * heads, triton.cdiv(width, channels)
    pieces = pieces_of(grid[0] * grid[1], positions)
    rows = blocks["ROWS"] * triton.cdiv(positions, pieces * blocks["ROWS"])
    name = "rows" if document_ids is None and not causal and pieces > 1 else "rows_of_piece"
    return (*grid, triton.cdiv(positions, rows)), {**options, name: rows, **blocks, **settings}
