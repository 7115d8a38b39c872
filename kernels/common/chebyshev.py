"""Sums of Chebyshev polynomials, with a gradient written by hand."""

from collections.abc import Iterator

import torch


def chebyshev_series(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """sum_k w_k T_k(x): x (B, H, N), weights (H, K + 1) with K at least 1 -> (B, H, N) in the dtype of x."""
    return _ChebyshevSeries.apply(x, weights)


class _ChebyshevSeries(torch.autograd.Function):
    """A pass over x for each T_k and one to add it; the T_k are kept, (K + 1, B, H, N), for the weights' gradient.

    Who differentiates that gets them made anew, as functions of x.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        terms = x.new_empty(weights.shape[1], *x.shape)
        terms[0].fill_(1)
        terms[1].copy_(x)
        # In their own dtype: sums have that of x.
        columns = weights[..., None].unbind(1)
        result, factors = columns[0].expand_as(x), [1.0]
        chebyshev = _chebyshev(x, 1, terms[0, :1, :1, :1], len(columns) - 1, terms)
        for column, (factor, term) in zip(columns[1:], chebyshev, strict=True):
            result = torch.addcmul(result, column, term, value=factor)
            factors.append(factor)
        ctx.save_for_backward(x, weights, terms)
        ctx.factors = factors
        return result

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weights, terms = ctx.saved_tensors
        if torch.is_grad_enabled():
            made = _chebyshev(x, 1, terms[0, :1, :1, :1], len(terms) - 1)
            terms = torch.stack([terms[0], *(term for _, term in made)])
        columns = weights[..., None].unbind(1)
        # T_k' = k U_{k-1}, of which U_0 is one and U_1 is 2 x.
        slope = columns[1]
        chebyshev = _chebyshev(x, 2, terms[0, :1, :1, :1], len(columns) - 2)
        for k, (factor, term) in enumerate(chebyshev, 2):
            slope = torch.addcmul(slope, columns[k], term, value=factor * k)
        of_weights = (gradient * terms).sum((1, 3)).T
        for k, factor in enumerate(ctx.factors):
            if factor != 1:
                of_weights[:, k].mul_(factor)
        return gradient * slope, of_weights.to(weights.dtype, memory_format=torch.contiguous_format)


def _chebyshev(
    x: torch.Tensor, factor: float, one: torch.Tensor, count: int, into: torch.Tensor | None = None
) -> Iterator[tuple[float, torch.Tensor]]:
    """(f_k, P_k / f_k) of P_1 = `factor` x and on, for P_0 = 1 and P_{k+1} = 2 x P_k - P_{k-1}: one pass for each.

    `count` of them: torch.compile before 2.13 would ask an endless generator for one more than are used.

    Where `into` is given, P_k / f_k for k > 1 is put into its entry k.
    """
    (previous_factor, previous), current = (1.0, one), x
    for k in range(1, count + 1):
        if k > 1:
            value = -2 * factor / previous_factor
            following = torch.addcmul(previous, x, current, value=value, out=None if into is None else into[k])
            (previous_factor, previous), (factor, current) = (factor, current), (-previous_factor, following)
        yield factor, current
