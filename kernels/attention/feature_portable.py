"""Attention from log-features in time linear in N, every sum on the scale of its largest terms."""

from typing import NamedTuple

import torch
from torch.nn import functional

from ..common.scan import Items, entering
from .inputs import document_numbers, keep_rows, valid_rows, working_dtype

BLOCK = 64

# The scale where there is no key; finite, so that differences of scales are never NaN.
NOTHING = -1e30


def feature_attention(
    query_log: torch.Tensor,
    key_log: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None,
    causal: bool,
    document_ids: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.feature_attention`.

    Exponentials are taken relative to the largest key of each feature (its peak) and to the largest sum of a query
    and a peak (the row's scale), so that nothing overflows and the largest term is 1. Both cancel, so they are
    constants to the gradient.
    """
    positions, width = value.shape[2:]
    valid = valid_rows(lengths, positions)
    working = working_dtype(query_log, key_log, value)
    with torch.autocast(value.device.type, enabled=False):
        query, values = (keep_rows(tensor.to(working), valid) for tensor in (query_log, value))
        key = keep_rows(key_log.to(working), valid, -torch.inf)
        values = functional.pad(values, (0, 1), value=1.0)  # the last column sums the weights
        if causal or document_ids is not None:
            number = None if document_ids is None else document_numbers(document_ids)[:, None, :, None]
            sums = _in_blocks(query, key, values, number, causal)[:, :, :positions]
        else:
            source = _source(query, key).summed(values)
            sums = source.read(source.scale())
        mixed, total = sums.split([width, 1], -1)
        nothing = total == 0  # not `total > 0` elsewhere: NaN must come through
        result = torch.where(nothing, 0.0, mixed / torch.where(nothing, 1.0, total))
    return keep_rows(result, valid).to(value.dtype)


# Sources: a query weighs keys of very different sizes, so each group of keys is kept on a scale of its own, and a row
# reads all of its groups on the largest of their scales.


class Source(NamedTuple):
    """Keys that a group of n rows sees: all of them, or none in the rows that are not `seeing`.

    `content` (..., m, k) holds exp(key - peak), with a column for each key, or summed up with the keys' values.
    """

    query: torch.Tensor  # (..., n, m)
    peak: torch.Tensor  # (..., 1, m)
    content: torch.Tensor
    seeing: torch.Tensor | None  # (..., n, 1) bool; None: all

    def scale(self) -> torch.Tensor:
        """Logarithm of each row's largest feature, (..., n, 1)."""
        largest = (self.query.detach() + self.peak).amax(-1, keepdim=True)
        return _keep(largest, self.seeing, NOTHING).clamp(min=NOTHING)

    def read(self, scale: torch.Tensor) -> torch.Tensor:
        """Each row's features on the given scale, times the content: (..., n, k)."""
        # Masked before the exponential, which may overflow in rows that do not see the keys: its gradient would be NaN.
        return _keep(self.query + self.peak - scale, self.seeing, -torch.inf).exp() @ self.content

    def summed(self, values: torch.Tensor) -> "Source":
        """The content (..., m, n) of single keys, summed up with their values (..., n, d + 1)."""
        return self._replace(content=self.content @ values)


def _source(
    query: torch.Tensor,
    key: torch.Tensor,
    query_number: torch.Tensor | None = None,
    key_number: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
) -> Source:
    """The source for queries: all keys or, with numbers (..., n, 1), those of the document `shared` (..., 1, 1)."""
    seeing = None
    if shared is not None:
        seeing = query_number == shared
        key = torch.where(key_number == shared, key, -torch.inf)
    peak = key.detach().amax(-2, keepdim=True).clamp(min=NOTHING)
    return Source(query, peak, (key - peak).exp().transpose(-1, -2), seeing)


def _keep(tensor: torch.Tensor, condition: torch.Tensor | None, fill: float) -> torch.Tensor:
    return tensor if condition is None else torch.where(condition, tensor, fill)


# Blocks: rows see part of the keys, by causality or by documents. The rows of a block see one another through squares
# of pairs, everything outside of it through a state; that keeps the cost linear.


def _in_blocks(
    query: torch.Tensor, key: torch.Tensor, values: torch.Tensor, number: torch.Tensor | None, causal: bool
) -> torch.Tensor:
    """Weighted sums (B, H, N', d + 1), N' >= N: scores inside blocks of rows, and a state for what lies around a block.

    A key's peak must be among the keys that a row sees, or all that the row does see could vanish beside it. Inside a
    block the triangle of pairs is therefore cut into squares, the later half of 2, 4, 8, ... rows looking at the
    earlier half: a square's rows see all its keys. With documents, its rows and keys are those of the one document
    that both halves share.
    """
    missing = -query.shape[2] % BLOCK
    query, values = (functional.pad(tensor, (0, 0, 0, missing)) for tensor in (query, values))
    key = functional.pad(key, (0, 0, 0, missing), value=-torch.inf)
    if number is not None:
        number = functional.pad(number, (0, 0, 0, missing), value=-1)
    around = [_state(query, key, values, number)]
    if not causal:
        around.append(_state(query, key, values, number, backwards=True))
    squares = [_squares(query, key, number, 2**level, causal) for level in range(BLOCK.bit_length() - 1)]

    own = query + key
    scale = own.detach().amax(-1, keepdim=True)
    for source in around:
        scale = torch.maximum(scale, source.scale().flatten(2, 3))
    for later, earlier in squares:
        of_later = later.scale()
        of_earlier = torch.full_like(of_later, NOTHING) if earlier is None else earlier.scale()
        scale = torch.maximum(scale, torch.stack([of_earlier, of_later], 3).flatten(2, 4))

    scores = (own - scale).exp().sum(-1)[..., None, None]
    for later, earlier in squares:
        half = scores.shape[-1]
        of_earlier_rows, of_later_rows = _halves(scale, half)
        first, second = scores.unflatten(2, (-1, 2)).unbind(3)
        below = later.read(of_later_rows)
        above = torch.zeros_like(below) if earlier is None else earlier.read(of_earlier_rows)
        scores = torch.cat([torch.cat([first, above], -1), torch.cat([below, second], -1)], -2)
    sums = scores @ values.unflatten(2, (-1, BLOCK))
    for source in around:
        sums = sums + source.read(scale.unflatten(2, (-1, BLOCK)))
    return sums.flatten(2, 3)


def _halves(tensor: torch.Tensor | None, half: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """(B, H, N', k) -> earlier and later halves of every 2 * half rows, (B, H, N' / (2 half), half, k) each."""
    return (None, None) if tensor is None else tensor.unflatten(2, (-1, 2, half)).unbind(3)


def _squares(
    query: torch.Tensor, key: torch.Tensor, number: torch.Tensor | None, half: int, causal: bool
) -> tuple[Source, Source | None]:
    """Sources of the later half of every 2 * half rows in the earlier one and, unless causal, the other way round."""
    (query_0, query_1), (key_0, key_1), (number_0, number_1) = (_halves(part, half) for part in (query, key, number))
    later = _source(query_1, key_0, number_1, number_0, None if number is None else number_0[..., -1:, :])
    if causal:
        return later, None
    return later, _source(query_0, key_1, number_0, number_1, None if number is None else number_1[..., :1, :])


def _state(
    query: torch.Tensor, key: torch.Tensor, values: torch.Tensor, number: torch.Tensor | None, backwards: bool = False
) -> Source:
    """The source that the rows of each block have in all earlier blocks, or in all later ones.

    Of those a block sees one document, that of the last row before it, so a state holds one document.
    """
    query, key, values = (tensor.unflatten(2, (-1, BLOCK)) for tensor in (query, key, values))
    if number is None:
        number = query.new_zeros(1, 1, query.shape[2], 1, 1, dtype=torch.int64)
    else:
        number = number.unflatten(2, (-1, BLOCK))
    shared = number[..., :1, :] if backwards else number[..., -1:, :]
    inside = _source(query, key, number, number, shared).summed(values)
    items = (inside.peak, inside.content, shared)
    peak, content, shared = entering(_join, items, (NOTHING, 0.0, -1), backwards)
    return Source(query, peak, content, number == shared)


def _join(left: Items, right: Items) -> Items:
    """Peaks (B, H, C, 1, m), contents (B, H, C, m, d + 1) and the documents (B, 1, C, 1, 1) that they belong to."""
    before = torch.where(left[2] == right[2], left[0], -torch.inf)
    peak = torch.maximum(before, right[0])
    content = [(own - peak).exp().transpose(-1, -2) * side[1] for own, side in ((before, left), (right[0], right))]
    return peak, content[0] + content[1], right[2]
