"""The frequencies at which the Fourier transform of a mask is sampled, and how densely."""

import math

import torch
from torch import nn
from transformers import initialization as init

from ..block import buffer_generator
from .configuration_flt import FLTConfig

# Draws are stored as whole multiples of 2^-32: integers survive every change of floating dtype.
FRACTION_BITS = 32
# Standard deviation of the frequencies at the start, that of the widest ones if they differ.
SPREADS = {"normal": 1.0, "stratified": 12**-0.5, "learnable_normal": 0.5 / math.pi, "kernel": 0.5 / math.pi}
# Terms of a mask start with widths between the smallest that these resolve, 1 / (2 pi spread), and so many times it.
WIDTH_RANGE = 16.0


class Frequencies(nn.Module):
    """r frequencies in l dimensions, drawn once (FLT, theorem 4.1), the same in every head up to a learnable scale.

    xi_k = draw_k * exp(start_k + shift_k). The draws are a buffer, never redrawn (FL-8). A learnable scale starts
    spread over the frequencies, or over the heads (FL-5), and what is learned is the shift from there: an error of the
    scale is one of the angle that grows with the position, so half precision must not round where the scale starts.
    """

    def __init__(self, config: FLTConfig, layer_index: int):
        super().__init__()
        self.config = config
        self.layer_index = layer_index
        shape = (config.num_frequencies, config.position_dimensions)
        self.register_buffer("draws", torch.empty(shape, dtype=torch.int64))
        # Widths of the normal distributions, one for each frequency; or inverse lengths of the heads' kernels.
        scales = {"learnable_normal": config.num_frequencies, "kernel": 1}.get(config.frequency_sampling)
        self.scale_shift = None if scales is None else nn.Parameter(torch.empty(config.num_attention_heads, scales))
        self.reset()

    def reset(self) -> None:
        """Draw the frequencies."""
        generator = buffer_generator(self.config, self.layer_index, "frequencies")
        count, dimensions = self.config.num_frequencies, self.config.position_dimensions
        draws = _DRAW[self.config.frequency_sampling](self.config, count, dimensions, generator)
        init.copy_(self.draws, (draws * 2**FRACTION_BITS).round().to(torch.int64))
        if self.scale_shift is not None:
            init.zeros_(self.scale_shift)

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Frequencies (1 or H, r, l) in float64, and the logarithms (1 or H, r) of the densities they are drawn from.

        With a kernel's own density that one is left out, 0: the weight g / p is a constant there.
        """
        draws = self.draws.to(torch.float64) / 2**FRACTION_BITS
        log_density = torch.zeros_like(draws[None, :, 0])
        dimensions = self.config.position_dimensions
        if "normal" in self.config.frequency_sampling:
            log_density = (-draws.square().sum(1) / 2 - dimensions / 2 * math.log(2 * math.pi))[None]
        if self.scale_shift is None:
            return draws[None], log_density
        log_scale = self.log_scale()
        if self.config.frequency_sampling == "learnable_normal":
            log_density = log_density - dimensions * log_scale
        return draws * log_scale.exp()[:, :, None], log_density

    def log_scale(self) -> torch.Tensor:
        """Logarithms of the learnable scales, (H, r) for learnable_normal and (H, 1) for a kernel, in float64."""
        shift = self.scale_shift.to(torch.float64)
        if self.config.frequency_sampling == "kernel":
            return shift - log_widths(self.config, shift.shape[0], shift.device)[:, None]
        return shift - math.log(2 * math.pi) - log_widths(self.config, shift.shape[1], shift.device)


def turns(positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """positions . frequencies modulo 1: (..., n, l) and (..., r, l) float64 -> (..., n, r) float64 in [0, 1).

    In fp32 the angles of positions near 2^16 would be off by a tenth of a radian.
    """
    product = (positions[..., :, None, :] * frequencies[..., None, :, :]).sum(-1)
    return product - product.detach().floor()


def spread_widths(config: FLTConfig, count: int) -> torch.Tensor:
    """`count` widths in the space of positions, geometric, each in the middle of an equal part of the range: fp32."""
    return log_widths(config, count, torch.device("cpu")).exp().to(torch.float32)


def log_widths(config: FLTConfig, count: int, device: torch.device) -> torch.Tensor:
    """Logarithms of `spread_widths`, a function of the configuration alone: (count,) float64."""
    # Whole numbers first: DeepSpeed's ZeRO-3 context makes every new float tensor half precision.
    middles = (torch.arange(count, device=device).to(torch.float64) + 0.5) / count
    return math.log(WIDTH_RANGE) * middles - math.log(2 * math.pi * SPREADS[config.frequency_sampling])


def _normal(config: FLTConfig, count: int, dimensions: int, generator: torch.Generator) -> torch.Tensor:
    # Converted before it is filled: DeepSpeed's ZeRO-3 context makes every new float tensor half precision.
    return torch.empty(count, dimensions, device="cpu").to(torch.float64).normal_(generator=generator)


def _uniform(count: int, dimensions: int, generator: torch.Generator) -> torch.Tensor:
    return torch.empty(count, dimensions, device="cpu").to(torch.float64).uniform_(generator=generator)


def _stratified(config: FLTConfig, count: int, dimensions: int, generator: torch.Generator) -> torch.Tensor:
    """Each coordinate has one draw in each of `count` parts of [-1/2, 1/2], in an order of its own (FL-5)."""
    orders = [torch.randperm(count, generator=generator, device="cpu") for _ in range(dimensions)]
    return (torch.stack(orders, 1) + _uniform(count, dimensions, generator)) / count - 0.5


def _kernel(config: FLTConfig, count: int, dimensions: int, generator: torch.Generator) -> torch.Tensor:
    """Draws from the density of a kernel of length 1 (Rahimi and Recht, 2007, figure 1), in turns, r = s / (2 pi)."""
    if config.kernel == "gaussian":  # exp(-|s|^2 / 2)
        rates = _normal(config, count, dimensions, generator)
    elif config.kernel == "laplacian":  # exp(-|s|_1): Cauchy's density
        rates = torch.tan(math.pi * (_uniform(count, dimensions, generator) - 0.5))
    else:  # the product of 1 / (1 + s_j^2): Laplace's density
        centred = _uniform(count, dimensions, generator) - 0.5
        rates = -centred.sign() * torch.log1p(-2 * centred.abs())
    return rates / (2 * math.pi)


_DRAW = {"normal": _normal, "learnable_normal": _normal, "stratified": _stratified, "kernel": _kernel}
