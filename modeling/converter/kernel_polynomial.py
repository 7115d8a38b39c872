"""The kernel polynomial method: Chebyshev polynomials with learnable, damped coefficients."""

import math
from collections.abc import Iterator

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

    def loss(self) -> torch.Tensor | None:
        """sum_{k=1}^{K} pi k^2 w_k^2, averaged over the heads (eq. 11); None for a kernel that damps by itself.

        It stands for a kernel: a penalty on higher coefficients instead of their damping. Eq. 11 is stated as the
        integral of p'^2, which it is not (CV-9), and kept as it is stated.
        """
        if not self.has_loss:
            return None
        weights = self.coefficients.to(torch.promote_types(self.coefficients.dtype, torch.float32))
        heads, count = weights.shape
        # The mean and pi are in what multiplies the weights.
        last = (count - 1) * math.sqrt(math.pi / heads)
        return (torch.linspace(0, last, count, device=weights.device, dtype=weights.dtype) * weights).square().sum()


class _ChebyshevSeries(torch.autograd.Function):
    """sum_k g_k w_k T_k(x) of x (B, H, N), weights (H, K + 1) and numbers g, a pass over x for each k and no more."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weights: torch.Tensor, damping: list[float]) -> torch.Tensor:
        wide, one = weights.to(x.dtype), x.new_ones(1, 1, 1)
        ctx.save_for_backward(x, wide, one)
        ctx.damping, ctx.dtype = damping, weights.dtype
        columns = wide[..., None].unbind(1)
        result = columns[0].expand_as(x)
        for column, factor, (sign, term) in zip(columns[1:], damping[1:], _chebyshev(x, x, one), strict=False):
            result = torch.addcmul(result, column, term, value=sign * factor)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weights, one = ctx.saved_tensors
        columns = weights[..., None].unbind(1)
        # T_k' = k U_{k-1}, of which U_0 is one.
        slope = _times(ctx.damping[1], columns[1])
        for k, (sign, term) in zip(range(2, len(columns)), _chebyshev(x, 2 * x, one), strict=False):
            slope = torch.addcmul(slope, columns[k], term, value=sign * k * ctx.damping[k])
        of_weights = [gradient.sum((0, 2))]
        for factor, (sign, term) in zip(ctx.damping[1:], _chebyshev(x, x, one), strict=False):
            of_weights.append(_times(sign * factor, (gradient * term).sum((0, 2))))
        return gradient * slope, torch.stack(of_weights, 1).to(ctx.dtype), None


def _times(factor: float, tensor: torch.Tensor) -> torch.Tensor:
    """The product; `tensor` itself, of any shape, where it is that."""
    return tensor if factor == 1 else factor * tensor


def _chebyshev(x: torch.Tensor, first: torch.Tensor, one: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """(sign, sign * P_k) of P_1 = `first` and on, for P_0 = 1 and P_{k+1} = 2 x P_k - P_{k-1}: one pass for each."""
    (previous_sign, previous), (sign, current) = (1, one), (1, first)
    while True:
        yield sign, current
        following = torch.addcmul(previous, x, current, value=-2 * previous_sign * sign)
        (previous_sign, previous), (sign, current) = (sign, current), (-previous_sign, following)
