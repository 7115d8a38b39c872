"""The kernel polynomial method: Chebyshev polynomials with learnable, damped coefficients."""

import math
from collections.abc import Sequence

import torch
from torch import nn
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

    def forward(self) -> torch.Tensor:
        """g_k w_k, (H, K + 1): what the T_k are multiplied by."""
        if all(factor == 1 for factor in self.damping):
            return self.coefficients
        wide = self.coefficients.to(torch.promote_types(self.coefficients.dtype, torch.float32))
        # Each by its number: a tensor of them would have to come from the host.
        return torch.stack([w * factor for w, factor in zip(wide.unbind(1), self.damping, strict=True)], 1)


def kernel_polynomial_loss(polynomials: Sequence[KernelPolynomial]) -> torch.Tensor | None:
    """sum_{k=1}^{K} pi k^2 w_k^2, averaged over the heads (eq. 11) and summed over the polynomials, all of one form.

    None without any, and for a kernel that damps by itself. The loss stands for a kernel: a penalty on higher
    coefficients instead of their damping. Eq. 11 is stated as the integral of p'^2, which it is not (CV-9), and kept as
    it is stated.
    """
    if not polynomials or not polynomials[0].has_loss:
        return None
    weights = torch.stack([polynomial() for polynomial in polynomials])  # nothing is damped where there is a loss
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    _, heads, count = weights.shape
    # The mean and pi are in what multiplies the weights.
    last = (count - 1) * math.sqrt(math.pi / heads)
    return (torch.linspace(0, last, count, device=weights.device, dtype=weights.dtype) * weights).square().sum()
