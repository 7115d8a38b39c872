"""S3Attention's attention to a few channels of all tokens, with the rows' queries handed on."""

import torch

from ..derivatives import by_autograd

# Tokens: a score grows with the square root of their number, and with weights of 0.6 it is 41,502 here.
MOST_IN_FP16 = 16_384


def column_attention(
    projected: torch.Tensor, shares: torch.Tensor | None, own_heads: torch.Tensor, dropout: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every channel's attention to the chosen channels of its head, over all tokens.

    Args:
        projected: (B, N, D + 2 C), queries beside the C chosen channels of keys and of values.
        shares, own_heads: see Landmarks.
        dropout: probability for each weight.

    Returns:
        (B, N, D), the queries, and (B, N, D), what the channels get. Their gradients meet in one tensor.
    """
    return _ColumnAttention.apply(projected, shares, own_heads.to(projected.dtype), dropout)


class _ColumnAttention(torch.autograd.Function):
    """`column_attention`; the gradients are put side by side where they are made.

    Scores are scaled within their product, before they are rounded: a sum over the tokens would leave the range of
    fp16. All heads are in one product: what a head has of another's columns is hidden, and cheaper than copies that
    take the heads apart.
    """

    @staticmethod
    def forward(
        ctx, projected: torch.Tensor, shares: torch.Tensor | None, own_heads: torch.Tensor, dropout: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.scale = projected.shape[1] ** -0.5 if shares is None else 1
        ctx.keep = 1 - dropout
        query, _, value = _parts(projected, own_heads)
        weights = _weights(projected, shares, own_heads, ctx.scale)
        kept = None if dropout == 0 else torch.rand_like(weights) < ctx.keep
        given = _thinned(weights, kept, ctx.keep).to(value.dtype)
        ctx.save_for_backward(projected, shares, own_heads, weights, kept, given)
        return query, value @ given

    @staticmethod
    def backward(ctx, of_query: torch.Tensor, of_column: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        projected, shares, own_heads, weights, kept, given = ctx.saved_tensors
        if torch.is_grad_enabled():

            def again(projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                query, _, value = _parts(projected, own_heads)
                weights = _weights(projected, shares, own_heads, ctx.scale)
                return query, value @ _thinned(weights, kept, ctx.keep).to(value.dtype)

            return *by_autograd(again, [projected], [of_query, of_column]), None, None, None
        query, key, value = _parts(projected, own_heads)
        gradient = torch.empty_like(projected)
        to_query, to_key, to_value = _parts(gradient, own_heads)
        to_value.baddbmm_(of_column, given.mT, beta=0)
        of_weights = _thinned((value.mT @ of_column).to(weights.dtype), kept, ctx.keep)
        of_scores = torch._softmax_backward_data(of_weights, weights, 1, weights.dtype).to(query.dtype)
        to_key.baddbmm_(query, of_scores.mT, beta=0, alpha=ctx.scale)
        if shares is not None:
            key = key * shares
            to_key.mul_(shares)
        to_query.copy_(of_query).baddbmm_(key, of_scores, alpha=ctx.scale)
        return gradient, None, None, None


def _parts(projected: torch.Tensor, own_heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of (B, N, D + 2 C): queries, keys and values."""
    channels, width = own_heads.shape
    return projected.split([width, channels, channels], dim=2)


def _weights(
    projected: torch.Tensor, shares: torch.Tensor | None, own_heads: torch.Tensor, scale: float
) -> torch.Tensor:
    """(B, C, D), fp32 or wider: what each channel of the queries gives to the chosen channels of its head."""
    query, key, _ = _parts(projected, own_heads)
    if shares is not None:
        key = key * shares
    scores = _scores(query, key, own_heads, scale)
    return scores.softmax(1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _scores(query: torch.Tensor, key: torch.Tensor, own_heads: torch.Tensor, scale: float) -> torch.Tensor:
    """(B, C, D): scaled products over the tokens, in fp32 where those of all tokens may be too large for fp16."""
    if query.dtype != torch.float16 or query.shape[1] <= MOST_IN_FP16:
        return torch.baddbmm(own_heads, key.mT, query, alpha=scale)
    parts = zip(query.split(MOST_IN_FP16, 1), key.split(MOST_IN_FP16, 1), strict=True)
    found = (torch.baddbmm(own_heads, keys.mT, rows, beta=0, alpha=scale).float() for rows, keys in parts)
    return sum(found, own_heads.float())


def _thinned(weights: torch.Tensor, kept: torch.Tensor | None, keep: float) -> torch.Tensor:
    """Weights after dropout that keeps some, each with probability `keep`; None: all."""
    return weights if kept is None else weights * kept / keep
