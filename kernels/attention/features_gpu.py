"""Features of rows, (M, C), as the Triton programs of the linear attentions take them: from memory, or made of rows of
queries or keys where they are read."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..common.products_gpu import rounded
from ..common.tensor_cores import multiply_tf32
from .pieces import block_of
from .rows_gpu import load_rows, places_of, product, where_head_begins

NOTHING = tl.constexpr(-1e30)  # the scale of no key at all; finite, so that differences of scales are never NaN
# In place of `LOGS`: features are logarithms that programs make, and their tensor is a `Recipe`.
MADE = tl.constexpr(2)
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

    @property
    def recipe(self) -> Recipe:
        _, _, count, width = self.rows.shape
        of_bias, places = 0, count
        if self.bias is not None:
            of_bias, places = 0 if len(self.bias) == 1 else self.bias.stride(0), self.bias.shape[2]
        return Recipe(
            self.rows, *self.rows.stride()[:3], width, self.projection, self.projection.stride(0), self.bias, of_bias,
            places, self.positions, tl.constexpr(block_of(width)), tl.constexpr(width**-0.25),
            tl.constexpr(0.5 * width**-0.5) if self.has_norm else None, tl.constexpr(exact_rule(self.projection.dtype)),
        )  # fmt: skip


@triton.jit
def load_features(source, row, inside, feature, features, LOGS: tl.constexpr, heads=None, positions=None):
    """A block of features of a program's head, which begin at `source`, or which it makes, with (heads, positions)."""
    if LOGS == MADE:
        result = _made(source, heads, positions, row, inside, feature, features)
    else:
        places, mask = places_of(source, row, inside, feature, features, None)
        result = tl.load(tl.trans(places), mask=tl.trans(mask), other=absent(LOGS))
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
def store_features(tensor, matrix, row, inside, feature, features):
    places, mask = places_of(tensor, row, inside, feature, features, None)
    tl.store(tl.trans(places), matrix.to(tensor.dtype.element_ty), mask=tl.trans(mask))


# Features on the scale of the peaks, so that no exponential overflows; without LOGS they pass as they are.


@triton.constexpr_function
def absent(LOGS):
    """The value in place of a feature that is not there."""
    return float("-inf") if LOGS else 0.0


@triton.jit
def features_of_keys(keys, peak, inside, LOGS: tl.constexpr, RULE: tl.constexpr):
    keys = tl.where(inside[None, :], keys, absent(LOGS))
    if LOGS:
        keys = tl.exp(keys - peak[:, None])
    return rounded(keys, RULE)


@triton.jit
def scale_of_queries(queries, peak, LOGS: tl.constexpr):
    """Logarithm of the number (C) that each query's features are relative to."""
    return tl.maximum(tl.max(queries + peak[:, None], 0), NOTHING if LOGS else 0.0)


@triton.jit
def features_of_queries(queries, peak, scale, LOGS: tl.constexpr, RULE: tl.constexpr):
    if LOGS:
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
def to_logarithms(matrix, features, LOGS: tl.constexpr):
    """Gradients of features to those of their logarithms."""
    if LOGS:
        matrix *= features
    return matrix
