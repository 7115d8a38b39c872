"""The kernel polynomial method: Chebyshev polynomials with learnable, damped coefficients."""

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from transformers import initialization as init

from .configuration_converter import ConverterConfig


def gibbs_factors(config: ConverterConfig) -> list[float]:
    """The damping factors g_0 .. g_K of config.gibbs_kernel (Converter, table 6, CV-8); g_0 is 1."""
    order = config.polynomial_order
    return [1.0] + [_gibbs_factor(config, k, order) for k in range(1, order + 1)]


def _gibbs_factor(config: ConverterConfig, k: int, order: int) -> float:
    """g_k for 1 <= k <= K = `order`."""
    kind = config.gibbs_kernel
    fraction = k / (order + 1)
    if kind == "fejer":
        return 1 - fraction
    if kind == "jackson":
        angle = math.pi / (order + 2)
        return ((order + 2 - k) * math.cos(k * angle) + math.sin(k * angle) / math.tan(angle)) / (order + 2)
    if kind == "lanczos":
        return (math.sin(math.pi * fraction) / (math.pi * fraction)) ** config.lanczos_power
    if kind == "lorentz":
        return math.sinh(config.lorentz_width * (1 - fraction)) / math.sinh(config.lorentz_width)
    if kind == "vekic":
        return 0.5 - 0.5 * math.tanh((fraction - 0.5) / (fraction * (1 - fraction)))
    if kind == "wang":
        return math.exp(-((config.wang_scale * fraction) ** config.wang_power))
    return 1.0  # dirichlet


class KernelPolynomial(nn.Module):
    """p(x) = w_0 + sum_{k=1}^{K} g_k w_k T_k(x) for each head, with learnable w (Converter, eqs. 9 and 10).

    - The coefficients belong to heads, not to the samples of a batch (CV-6).
    - w_0 is half of the paper's mu_0 (CV-7). They start at 1 / (K + 1) and 2 / (K + 1), as in the published code: the
      coefficients of an interpolation whose target is one in the first node.
    """

    def __init__(self, config: ConverterConfig):
        super().__init__()
        self.damping = gibbs_factors(config)
        self.has_loss = config.gibbs_kernel == "dirichlet"
        self.coefficients = nn.Parameter(torch.empty(config.num_attention_heads, config.polynomial_order + 1))
        self.reset()

    def reset(self) -> None:
        """Set the coefficients."""
        count = self.coefficients.shape[1]
        start = torch.full_like(self.coefficients, 2 / count)
        start[:, 0] = 1 / count
        init.copy_(self.coefficients, start)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, H, N), from -1 to 1 -> (B, H, N)."""
        return _ChebyshevSeries.apply(x, self.coefficients, self.damping)


def kernel_polynomial_loss(polynomials: Sequence[KernelPolynomial]) -> torch.Tensor | None:
    """sum_{k=1}^{K} pi k^2 w_k^2, averaged over the heads (eq. 11) and summed over the polynomials, all of one form.

    None without any, and for a kernel that damps by itself. The loss stands for a kernel: a penalty on higher
    coefficients instead of their damping. Eq. 11 is stated as the integral of p'^2, which it is not (CV-9), and kept as
    it is stated.
    """
    if not polynomials or not polynomials[0].has_loss:
        return None
    weights = torch.stack([polynomial.coefficients for polynomial in polynomials])
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    _, heads, count = weights.shape
    # The mean and pi are in what multiplies the weights.
    last = (count - 1) * math.sqrt(math.pi / heads)
    return (torch.linspace(0, last, count, device=weights.device, dtype=weights.dtype) * weights).square().sum()


class _ChebyshevSeries(torch.autograd.Function):
    """sum_k g_k w_k T_k(x) of x (B, H, N), weights (H, K + 1) and numbers g.

    A pass over x for each T_k and one to add it; the T_k are kept, (K + 1, B, H, N), for the gradient of the weights.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, weights: torch.Tensor, damping: list[float]) -> torch.Tensor:
        terms = x.new_empty(len(damping), *x.shape)
        terms[0].fill_(1)
        terms[1].copy_(x)
        # In their own dtype: sums have that of x.
        columns = weights[..., None].unbind(1)
        result, factors = columns[0].expand_as(x), [1.0]
        chebyshev = _chebyshev(x, 1, terms[0, :1, :1, :1], terms)
        for column, damped, (factor, term) in zip(columns[1:], damping[1:], chebyshev, strict=False):
            result = torch.addcmul(result, column, term, value=factor * damped)
            factors.append(factor * damped)
        ctx.save_for_backward(x, weights, terms)
        ctx.damping, ctx.factors, ctx.dtype = damping, factors, weights.dtype
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weights, terms = ctx.saved_tensors
        columns = weights[..., None].unbind(1)
        # T_k' = k U_{k-1}, of which U_0 is one and U_1 is 2 x.
        slope = columns[1] if ctx.damping[1] == 1 else ctx.damping[1] * columns[1]
        for k, (factor, term) in zip(range(2, len(columns)), _chebyshev(x, 2, terms[0, :1, :1, :1]), strict=False):
            slope = torch.addcmul(slope, columns[k], term, value=factor * k * ctx.damping[k])
        of_weights = (gradient * terms).sum((1, 3)).T
        for k, factor in enumerate(ctx.factors):
            if factor != 1:
                of_weights[:, k].mul_(factor)
        return gradient * slope, of_weights.to(ctx.dtype, memory_format=torch.contiguous_format), None


def _chebyshev(
    x: torch.Tensor, factor: float, one: torch.Tensor, into: torch.Tensor | None = None
) -> Iterator[tuple[float, torch.Tensor]]:
    """(f_k, P_k / f_k) of P_1 = `factor` x and on, for P_0 = 1 and P_{k+1} = 2 x P_k - P_{k-1}: one pass for each.

    Where `into` is given, P_k / f_k for k > 1 is put into its entry k.
    """
    (previous_factor, previous), current = (1.0, one), x
    for k in itertools.count(2):
        yield factor, current
        value = -2 * factor / previous_factor
        following = torch.addcmul(previous, x, current, value=value, out=None if into is None else into[k])
        (previous_factor, previous), (factor, current) = (factor, current), (-previous_factor, following)
