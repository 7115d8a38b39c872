"""Which tokens and channels S3Attention's layers attend to in a batch, and the projections that only those need."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from ..context import BatchContext
from ..precision import narrowed

# Landmarks are stored as whole multiples of 2^-32: integers survive every change of floating dtype.
FRACTION_BITS = 32


class Landmarks(NamedTuple):
    """Landmarks of a layer in a batch, with s1 tokens and s2 channels of each of H heads.

    Args:
        tokens: (B s1,) int64, the tokens' places among all B N.
        counts: (B, 1, 1, s1) bool, which of the tokens a query sees.
        shares: (B, N, 1), or (1, 1, 1) without padding: n_b^(-1/2), zero on padding.
        columns: (2 H s2,) int64, where the chosen channels' weights lie in those of keys, then values.
        dense: (D + 2 H s2,) int64, all queries' weights and the columns' in those of queries, keys and values.
        own_heads: (H s2, D) in fp32 or wider, zero where chosen channel and channel have one head, else minus infinity.
    """

    tokens: torch.Tensor
    counts: torch.Tensor
    shares: torch.Tensor
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
    dtype, device = hidden_states.dtype, hidden_states.device
    wide = torch.promote_types(dtype, torch.float32)
    lengths = context.lengths
    if lengths is None:
        lengths = torch.full((1,), positions, device=device)
    index, allowed = landmark_tokens(torch.stack(list(fractions)), lengths, positions)
    tokens = index + positions * torch.arange(batch, device=device)[:, None]
    shares = lengths.clamp(min=1).to(wide).rsqrt()[:, None, None].to(dtype)
    if context.mask is not None:
        shares = torch.where(context.mask[:, :, None], shares, 0)
    head_size = width // heads
    starts = torch.arange(0, width, head_size, device=device)
    columns = (starts[:, None] + torch.stack(list(channels))[:, None]).flatten(1)
    queries = torch.arange(width, device=device)
    of_others = columns[0, :, None] // head_size != queries // head_size
    columns = torch.cat([columns, width + columns], dim=1)
    dense = torch.cat([queries.expand(len(columns), -1), width + columns], dim=1)
    own_heads = torch.zeros(of_others.shape, dtype=wide, device=device).masked_fill_(of_others, -torch.inf)
    of_layers = zip(tokens.flatten(1), allowed[:, :, None, None], columns, dense, strict=True)
    return [Landmarks(places, counts, shares, *projected, own_heads) for places, counts, *projected in of_layers]


def landmark_tokens(
    fractions: torch.Tensor, lengths: torch.Tensor, positions: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fractions (L, s1) of lengths (B,) -> positions of the landmark tokens, (L, B, s1) int64, and which of them count,
    (L, B, s1) bool; the first always does.
    """
    lengths = lengths[:, None]
    order = torch.arange(fractions.shape[1], device=fractions.device)
    drawn = (fractions[:, None] * lengths) >> FRACTION_BITS
    short = lengths <= fractions.shape[1]
    index = torch.where(short, order, drawn).clamp(max=positions - 1)
    repeated = functional.pad(index[..., 1:] == index[..., :-1], (1, 0))
    return index, torch.where(short, order < lengths.clamp(min=1), ~repeated)


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
    tensors = [hidden_states, *(layer.weight for layer in projections), *(layer.bias for layer in projections)]
    return _Projected.apply(tokens, columns, dense, *narrowed(*tensors))


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
        weight, bias = torch.cat(parameters[:3]), torch.cat(parameters[3:])
        landmarks = hidden_states.reshape(-1, width).index_select(0, tokens)
        of_all = weight.index_select(0, dense)
        ctx.save_for_backward(tokens, columns, hidden_states, landmarks, weight, of_all)
        return (
            functional.linear(hidden_states, of_all, bias.index_select(0, dense)),
            functional.linear(landmarks, weight[width:], bias[width:]),
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, of_dense: torch.Tensor, of_rows: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tokens, columns, hidden_states, landmarks, weight, of_all = ctx.saved_tensors
        width = hidden_states.shape[2]
        of_dense = of_dense.reshape(-1, of_all.shape[0])
        of_hidden = of_dense @ of_all
        of_hidden.index_add_(0, tokens, of_rows @ weight[width:])
        of_queries = of_dense.T @ hidden_states.reshape(-1, width)
        of_others = (of_rows.T @ landmarks).index_add_(0, columns, of_queries[width:])
        of_query_bias = of_dense.sum(0)
        of_other_bias = of_rows.sum(0).index_add_(0, columns, of_query_bias[width:])
        return (
            None,
            None,
            None,
            of_hidden.view(hidden_states.shape),
            of_queries[:width],
            of_others[:width],
            of_others[width:],
            of_query_bias[:width],
            of_other_bias[:width],
            of_other_bias[width:],
        )
