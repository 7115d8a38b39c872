"""Features of rows, (M, C), as the Triton programs of the linear attentions take them.

`KIND` says what they find: "given", features in memory; "logarithms" of positive ones; "made", logarithms of random
features that they make of the rows of a `Recipe`; "mapped", features of `MappedRows`, made one by one.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..common.exact_gpu import exact
from ..common.products_gpu import rounded
from ..common.tensor_cores import multiply_tf32
from .feature_maps import RELU_SHIFT, relu_scale
from .pieces import block_of
from .rows_gpu import load_rows, places_of, product, where_head_begins

NOTHING = tl.constexpr(-1e30)  # the scale of no key at all; finite, so that differences of scales are never NaN
SHIFT = tl.constexpr(RELU_SHIFT)
# Channels of a row that a program multiplies at a time without tensor cores: of more it has no registers for the
# projection.
PART = tl.constexpr(16)


def exact_rule(dtype: torch.dtype) -> str:
    """How matrices are multiplied whose product becomes an exponent, so that it may not be rounded; see rows_gpu.py."""
    return "tf32x3" if dtype == torch.float32 and multiply_tf32() else "ieee"


class Recipe(NamedTuple):
    """What programs make logarithms of: rows (B, H, N, d) that are so far from each other, and the projection (m, d).

    `bias` (1 or B, H, P, m) lies at the places `positions` (B, N), None: at the rows themselves. `HALF`: what the
    squares of a row count, None: nothing. These are constants, for Triton takes other numbers of Python for fp32. A
    `NamedTuple` is what it takes for several arguments.
    """

    rows: torch.Tensor
    of_sample: int
    of_head: int
    of_row: int
    width: int
    projection: torch.Tensor
    apart: int
    bias: torch.Tensor | None
    of_bias: int
    places: int
    positions: torch.Tensor | None
    BLOCK: tl.constexpr
    SCALE: tl.constexpr
    HALF: tl.constexpr | None
    RULE: tl.constexpr


@dataclass(frozen=True)
class RandomFeatures:
    """Logarithms (B, H, N, m) of random features, which lie in no memory; see `random_feature_attention`.

    Args:
        rows: (B, H, N, d), whose channels lie side by side.
        projection: (m, d), fp32 or float64, whose channels lie side by side.
        bias: (1 or B, H, P, m), of whose samples each is contiguous; None: none.
        positions: (B, N), the place of each row's bias; None: its row.
        has_norm: with the norm of each row, which for queries cancels.
    """

    rows: torch.Tensor
    projection: torch.Tensor
    bias: torch.Tensor | None
    positions: torch.Tensor | None
    has_norm: bool

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (*self.rows.shape[:3], len(self.projection))

    def recipe(self) -> Recipe:
        """As kernels take it."""
        _, _, count, width = self.rows.shape
        of_bias, places = 0, count
        if self.bias is not None:
            of_bias, places = 0 if len(self.bias) == 1 else self.bias.stride(0), self.bias.shape[2]
        return Recipe(
            self.rows, *self.rows.stride()[:3], width, self.projection, self.projection.stride(0), self.bias, of_bias,
            places, self.positions, tl.constexpr(block_of(width)), tl.constexpr(width**-0.25),
            tl.constexpr(0.5 * width**-0.5) if self.has_norm else None, tl.constexpr(exact_rule(self.projection.dtype)),
        )  # fmt: skip


class MappedRows(NamedTuple):
    """Rows (B, H, N, m) of which features are made one by one, or of their gradients, which lie so far from each other;
    of gradients there are several shares.
    """

    rows: torch.Tensor
    of_share: int
    of_sample: int
    of_head: int
    of_row: int
    MAP: tl.constexpr
    SCALE: tl.constexpr


@dataclass(frozen=True)
class MappedFeatures:
    """Features (B, H, N, m) that lie in no memory: `feature_map` of each number of `rows`, whose channels lie side by
    side; see `feature_map_attention`.
    """

    rows: torch.Tensor
    feature_map: str

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape

    def recipe(self, rows: torch.Tensor | None = None) -> MappedRows:
        """As kernels take it, or room for shares (.., B, H, N, m) of the gradients of its rows."""
        rows = self.rows[None] if rows is None else rows
        constants = tl.constexpr(self.feature_map), tl.constexpr(relu_scale(rows.shape[4]))
        return MappedRows(rows, *rows.stride()[:4], *constants)


@triton.constexpr_function
def logarithmic(KIND):
    """Whether features are summed up on the scale of their peaks."""
    return KIND in ("logarithms", "made")


@triton.constexpr_function
def in_memory(KIND):
    """Whether a program's features begin where its head does, in (B, H, N, m)."""
    return KIND in ("given", "logarithms")


@triton.jit
def load_features(source, row, inside, feature, features, KIND: tl.constexpr, heads=None, positions=None):
    """A block of features of a program's head, which begin at `source`, or which it makes, with (heads, positions)."""
    if KIND == "made":
        result = _made(source, heads, positions, row, inside, feature, features)
    elif KIND == "mapped":
        result = _mapped(source, heads, row, inside, feature, features)
    else:
        places, mask = places_of(source, row, inside, feature, features, None)
        result = tl.load(tl.trans(places), mask=tl.trans(mask), other=absent(KIND))
    return result


@triton.jit
def _made(recipe, heads, positions, row, inside, feature, features):
    dtype: tl.constexpr = recipe.projection.dtype.element_ty
    rows = where_head_begins(recipe.rows, heads, recipe.of_sample, recipe.of_head)
    found = tl.zeros((feature.shape[0], inside.shape[0]), dtype)
    norm = tl.zeros((inside.shape[0],), dtype)
    STEP: tl.constexpr = PART if recipe.RULE == "ieee" else recipe.BLOCK
    for first in tl.static_range(0, recipe.BLOCK, STEP):
        channel = first + tl.arange(0, STEP)
        known = load_rows(rows, row, inside, channel, recipe.width, recipe.of_row).to(dtype)
        weights = recipe.projection + feature[:, None] * recipe.apart + channel[None, :]
        mask = (feature < features)[:, None] & (channel < recipe.width)[None, :]
        found += product(tl.load(weights, mask=mask, other=0.0), tl.trans(known), recipe.RULE)
        if recipe.HALF is not None:
            norm += tl.sum(known * known, 1)
    found *= recipe.SCALE
    if recipe.HALF is not None:
        found -= norm[None, :] * recipe.HALF
    there = (feature < features)[:, None] & inside[None, :]
    if recipe.bias is not None:
        place = row + tl.arange(0, inside.shape[0])
        if recipe.positions is not None:
            own = recipe.positions + (tl.program_id(0) // heads).to(tl.int64) * positions
            place = tl.load(own + place, mask=inside, other=0).to(tl.int32)
        of_head = tl.cast(recipe.places, tl.int64) * features
        bias = where_head_begins(recipe.bias, heads, recipe.of_bias, of_head)
        bias += place[None, :].to(tl.int64) * features + feature[:, None]
        found += tl.load(bias, mask=there, other=0.0)
    return tl.where(there, found, float("-inf"))


@triton.jit
def _mapped(source, heads, row, inside, feature, features):
    x, mask = _rows_of(source, heads, row, inside, feature, features)
    # By comparisons, which let NaN through where maxima would not.
    if source.MAP == "elu":
        found = tl.where(x > 0, x + 1, tl.exp(tl.where(x > 0, 0.0, x)))
    else:
        found = tl.where(x < 0, 0.0, x * source.SCALE) + SHIFT
    return tl.where(mask, found, 0.0)


@triton.jit
def _rows_of(source, heads, row, inside, feature, features):
    """A block of the numbers that features are made of, (M, C) in fp32 or wider, and where there are some."""
    rows = where_head_begins(source.rows, heads, source.of_sample, source.of_head)
    places, mask = places_of(rows, row, inside, feature, features, source.of_row)
    return exact(tl.load(tl.trans(places), mask=tl.trans(mask), other=0.0)), tl.trans(mask)


@triton.jit
def _slopes(found, source, heads, row, inside, feature, features):
    """Derivatives of features that a program has found by the numbers that they are made of."""
    if source.MAP == "elu":
        slopes = tl.minimum(found, 1.0)
    else:  # beside the shift a feature does not tell small numbers from none
        x, _ = _rows_of(source, heads, row, inside, feature, features)
        slopes = tl.where(x > 0, source.SCALE, 0.0)
    return slopes


@triton.jit
def store_features(tensor, matrix, row, inside, feature, features):
    places, mask = places_of(tensor, row, inside, feature, features, None)
    tl.store(tl.trans(places), matrix.to(tensor.dtype.element_ty), mask=tl.trans(mask))


@triton.jit
def store_gradients(
    target, matrix, found, source, row, inside, feature, features, heads, KIND: tl.constexpr
):  # fmt: skip
    """Write gradients of features that a program has found: those of logarithms, and of rows that features are made of
    where these are.
    """
    if KIND == "mapped":
        rows = where_head_begins(target.rows, heads, target.of_sample, target.of_head)
        rows += tl.program_id(1).to(tl.int64) * target.of_share
        places, mask = places_of(rows, row, inside, feature, features, target.of_row)
        matrix *= _slopes(found, source, heads, row, inside, feature, features)
        tl.store(tl.trans(places), matrix.to(rows.dtype.element_ty), mask=tl.trans(mask))
    else:
        store_features(target, to_logarithms(matrix, found, KIND), row, inside, feature, features)


# Logarithms on the scale of the peaks, so that no exponential overflows; features pass as they are.


@triton.constexpr_function
def absent(KIND):
    """The value in place of a feature that is not there."""
    return float("-inf") if logarithmic(KIND) else 0.0


@triton.jit
def features_of_keys(keys, peak, inside, KIND: tl.constexpr, RULE: tl.constexpr):
    keys = tl.where(inside[None, :], keys, absent(KIND))
    if logarithmic(KIND):
        keys = tl.exp(keys - peak[:, None])
    return rounded(keys, RULE)


@triton.jit
def scale_of_queries(queries, peak, KIND: tl.constexpr):
    """Logarithm of the number (C) that each query's features are relative to."""
    return tl.maximum(tl.max(queries + peak[:, None], 0), NOTHING if logarithmic(KIND) else 0.0)


@triton.jit
def features_of_queries(queries, peak, scale, KIND: tl.constexpr, RULE: tl.constexpr):
    if logarithmic(KIND):
        queries = tl.exp(queries + peak[:, None] - scale[None, :])
    return rounded(queries, RULE)


@triton.jit
def weights_of_queries(queries, total):
    """What the queries (M, C) sum to with all keys' features: (C)."""
    return tl.sum(queries * total[:, None], 0)


@triton.jit
def lower_triangle(scores, index):
    return tl.where(index[:, None] >= index[None, :], scores, 0.0)


@triton.jit
def inverse_of(weight):
    return tl.where(weight <= 0, 0.0, 1 / tl.where(weight <= 0, 1.0, weight))


@triton.jit
def to_logarithms(matrix, features, KIND: tl.constexpr):
    """Gradients of features to those of their logarithms."""
    if logarithmic(KIND):
        matrix *= features
    return matrix
