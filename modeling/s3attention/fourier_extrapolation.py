"""Forecasts by the Fourier series of the past (S3Attention, Algorithm 4)."""

import math

import torch
from torch import nn

from .configuration_s3attention import S3AttentionConfig


class FourierExtrapolation(nn.Module):
    """The sum of the past's lowest harmonics, read on beyond its end. It has no parameters.

    Harmonics of a window of n steps have periods n / k: what is read on is the window itself, smoothed and repeated.
    With all harmonics nothing is smoothed, and step n + h of the forecast is step h mod n of the input.
    """

    def __init__(self, config: S3AttentionConfig):
        super().__init__()
        self.config = config

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        """(B, input_length, C) -> (B, horizon, C)."""
        wide = past.to(torch.promote_types(past.dtype, torch.float32))
        return (self.weights(past.device).to(wide.dtype) @ wide).to(past.dtype)

    def weights(self, device: torch.device) -> torch.Tensor:
        """(horizon, input_length) fp64: how much of each past step is in each future one.

        The sum over the kept frequencies k, negative ones too, of exp(2 pi i k (h - t) / n) / n: a real matrix.
        """
        length = self.config.input_length
        harmonics = self.config.horizon if self.config.harmonics is None else self.config.harmonics
        future, past = torch.arange(self.config.horizon, device=device), torch.arange(length, device=device)
        lags = (future[:, None] - past) % length
        orders = torch.arange(min(harmonics, length // 2) + 1, device=device)
        # Frequency 0, and n / 2 of an even n, is its own negative.
        counts = torch.where((orders == 0) | (2 * orders == length), 1.0, 2.0).double()
        waves = torch.cos((2 * math.pi / length) * (orders[:, None] * past % length).double())
        return (counts @ waves / length)[lags]
