"""Which tokens and channels S3Attention's layers attend to in a batch, and the projections that only those need."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from longmix.kernels import ops

from ..context import BatchContext
from ..plain_linear import are_bare
from ..precision import narrowed

# Landmarks are stored as whole multiples of 2^-32: integers survive every change of floating dtype.
FRACTION_BITS = 32


class Landmarks(NamedTuple):
    """Landmarks of a layer in a batch, with s1 tokens and s2 channels of each of H heads.

    Args:
        tokens: (B s1,) int64, the tokens' places among all B N.
        counts: (B, 1, 1, s1), added to a query's scores: zero where it sees the token, else minus infinity.
        shares: (B, N, 1), n_b^(-1/2), zero on padding; None without padding.
        columns: (2 H s2,) int64, where the chosen channels' weights lie in those of keys, then values.
        dense: (D + 2 H s2,) int64, all queries' weights and the columns' in those of keys, values and queries.
        own_heads: (H s2, D), zero where chosen channel and channel have one head, else minus infinity.
    """

    tokens: torch.Tensor
    counts: torch.Tensor
    shares: torch.Tensor | None
    columns: torch.Tensor
    dense: torch.Tensor
    own_heads: torch.Tensor


def make_landmarks(
    fractions: Sequence[torch.Tensor],
    channels: Sequence[torch.Tensor],
    heads: int,
    hidden_states: torch.Tensor,
    context: BatchContext,
) -> list[Landmarks]:
    """Landmarks of each of several layers, made at once: nothing of them depends on what a layer has computed.

    Args:
        fractions: of each layer, (s1,) int64 in units of 2^-32.
        channels: of each layer, (s2,) int64 below the size of a head.
        heads: H.
        hidden_states: (B, N, D), any of the batch; read are shape, dtype and device.
        context: of the batch.
    """
    batch, positions, width = hidden_states.shape
    (like,) = narrowed(hidden_states.new_empty(0))
    dtype, device = like.dtype, hidden_states.device
    if context.lengths is None:
        lengths, shares = torch.full((1,), positions, device=device), None
    else:
        lengths = context.lengths.clamp(min=1)
        shares = lengths.to(torch.promote_types(dtype, torch.float32)).rsqrt()[:, None, None].to(dtype)
        shares = torch.where(context.mask[:, :, None], shares, 0)
    index, unseen = landmark_tokens(torch.stack(list(fractions)), lengths, positions)
    step = max(1, positions)
    tokens = index + torch.arange(0, batch * step, step, device=device)[:, None]
    counts = torch.zeros(unseen.shape, dtype=dtype, device=device).masked_fill_(unseen, -torch.inf)
    starts = torch.arange(0, 2 * width, width // heads, device=device)
    columns = (starts[:, None] + torch.stack(list(channels))[:, None]).flatten(1)
    queries = torch.arange(2 * width, 3 * width, device=device)
    dense = torch.cat([queries.expand(len(columns), -1), columns], dim=1)
    chosen = columns.shape[1] // (2 * heads)
    own_heads = torch.full((heads, chosen, heads, width // heads), -torch.inf, dtype=dtype, device=device)
    own_heads.diagonal(dim1=0, dim2=2).zero_()
    of_layers = zip(tokens.flatten(1), counts[:, :, None, None], columns, dense, strict=True)
    return [Landmarks(places, seen, shares, *both, own_heads.view(-1, width)) for places, seen, *both in of_layers]


def landmark_tokens(
    fractions: torch.Tensor, lengths: torch.Tensor, positions: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fractions (L, s1) of lengths (B,), at least 1, -> positions of the landmark tokens, (L, B, s1) int64, and which
    of them do not count, (L, B, s1) bool; the first always does.
    """
    lengths = lengths[:, None]
    order = torch.arange(fractions.shape[1], device=fractions.device)
    drawn = (fractions[:, None] * lengths) >> FRACTION_BITS
    # One of each of s1 parts of a sequence lies at its number or behind, where there are more tokens than parts, and
    # before it where there are fewer: then all tokens are landmarks.
    index = torch.maximum(order, drawn).clamp(max=positions - 1)
    unseen = order.expand_as(index) >= lengths
    unseen[..., 1:] |= index[..., 1:] == index[..., :-1]
    return index, unseen


def project_to_landmarks(
    hidden_states: torch.Tensor,
    tokens: torch.Tensor,
    columns: torch.Tensor,
    dense: torch.Tensor,
    projections: Sequence[nn.Linear],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries of all tokens with their keys and values in some channels, and all keys and values of some tokens.

    Args:
        hidden_states: (B, N, D).
        tokens, columns, dense: of one layer, see Landmarks.
        projections: D to D, of queries, keys and values.

    Returns:
        (B, N, D + 2 H s2), queries beside the columns of keys and of values; and (B s1, 2 D), keys beside values.
    """
    query, key, value = projections
    if not are_bare(projections):
        others = torch.cat([key(hidden_states), value(hidden_states)], dim=2)
        chosen = others.index_select(2, columns)
        return torch.cat([query(hidden_states), chosen], dim=2), others.flatten(0, 1).index_select(0, tokens)
    ordered = (key, value, query)
    (narrow,) = narrowed(hidden_states)
    # Parameters as they are: what is kept of them until the backward pass costs nothing.
    parameters = [*(layer.weight for layer in ordered), *(layer.bias for layer in ordered)]
    return _Projected.apply(tokens, columns, dense, narrow, *parameters)


class _Projected(torch.autograd.Function):
    """`project_to_landmarks` as two products; gradients of few rows are added to those of all, in place."""

    @staticmethod
    def forward(
        ctx,
        tokens: torch.Tensor,
        columns: torch.Tensor,
        dense: torch.Tensor,
        hidden_states: torch.Tensor,
        *parameters: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        width = hidden_states.shape[2]
        landmarks, weight, bias, of_all = _gathered(tokens, dense, hidden_states, parameters)
        ctx.save_for_backward(tokens, columns, dense, hidden_states, landmarks, weight, of_all, *parameters)
        return (
            ops.linear(hidden_states, of_all, bias.index_select(0, dense)),
            ops.linear(landmarks, weight[:-width], bias[:-width]),
        )

    @staticmethod
    def backward(ctx, of_dense: torch.Tensor, of_rows: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tokens, columns, dense, hidden_states, landmarks, weight, of_all, *parameters = ctx.saved_tensors
        width = hidden_states.shape[2]
        if torch.is_grad_enabled():  # who differentiates the gradient gets these as functions of the inputs
            landmarks, weight, _, of_all = _gathered(tokens, dense, hidden_states, parameters)
        of_dense = of_dense.reshape(-1, of_all.shape[0])
        of_hidden = ops.linear(of_dense, of_all.T)
        of_hidden.index_add_(0, tokens, ops.linear(of_rows, weight[:-width].T))
        of_queries = ops.weight_gradient(of_dense, hidden_states.reshape(-1, width))
        of_others = ops.weight_gradient(of_rows, landmarks).index_add_(0, columns, of_queries[width:])
        of_query_bias = of_dense.sum(0)
        of_other_bias = of_rows.sum(0).index_add_(0, columns, of_query_bias[width:])
        of_weights = (of_others[:width], of_others[width:], of_queries[:width])
        of_biases = (of_other_bias[:width], of_other_bias[width:], of_query_bias[:width])
        pairs = zip((*of_weights, *of_biases), parameters, strict=True)
        of_parameters = (gradient.to(parameter.dtype) for gradient, parameter in pairs)
        return None, None, None, of_hidden.view(hidden_states.shape), *of_parameters


def _gathered(
    tokens: torch.Tensor, dense: torch.Tensor, hidden_states: torch.Tensor, parameters: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Chosen tokens (B s1, D), weights (3 D, D) and biases (3 D) one below the other, and the rows for all tokens, all
    in the dtype of the tokens."""
    width = hidden_states.shape[2]
    flat = torch.cat([parameter.to(hidden_states.dtype).flatten() for parameter in parameters])
    weight, bias = flat[: -3 * width].view(-1, width), flat[-3 * width :]
    return hidden_states.reshape(-1, width).index_select(0, tokens), weight, bias, weight.index_select(0, dense)
