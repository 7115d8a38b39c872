"""The spaces that WavSpA attends in: there, and back again.

A space turns (B, N, D) into bands, sequences (B, n_j, width) of coefficients with a mask of the valid ones each, and
bands into (B, N, D). Bands lie one behind the other in one tensor (R, width); those of one length that follow each
other are a stack, (k B, n_j, width). `lengths` (B,) int64 are the samples' valid rows, None: all; rows past them are
zero on the way in and on the way out, and the bands of a sample are those it has alone. `taps` are the space's
`working_taps`, made once for both ways.
"""

import math

import torch
from torch import nn
from transformers import initialization as init

from longmix.kernels import ops
from longmix.kernels.bands.layout import band_masks, band_rows, bands_of, join_bands
from longmix.kernels.common.rows import valid_rows

from .configuration_wavspa import WavSpAConfig
from .fourier import frequencies, rows_of, spectrum_of
from .wavelets import lattice_taps, scaling_taps

Masks = list[torch.Tensor | None]
Taps = tuple[torch.Tensor, ...]


class Space(nn.Module):
    """The space of the sequence itself: one band, nothing is transformed."""

    def __init__(self, config: WavSpAConfig):
        super().__init__()
        self.config = config
        self.width = config.hidden_size

    def band_positions(self, positions: int) -> list[int]:
        """Rows of each band for sequences of N positions."""
        return [positions]

    def stacked(self) -> list[int]:
        """Bands of each stack."""
        return [1]

    def shapes(self, batch: int, positions: int) -> list[tuple[int, int]]:
        """(k B, n_j) of each stack of B samples of N positions."""
        rows, found = self.band_positions(positions), []
        for count in self.stacked():
            found.append((batch * count, rows[0]))
            rows = rows[count:]
        return found

    def forward(self, dtype: torch.dtype) -> Taps:
        """The `working_taps`, by a call: what moves a module's parameters, such as offloading, heeds nothing else."""
        return self.working_taps(dtype)

    def working_taps(self, dtype: torch.dtype) -> Taps:
        """The taps, (T, D) or (T,) each, as rows of that dtype are transformed with; nothing where there are none."""
        return ()

    def analyse(
        self, hidden_states: torch.Tensor, lengths: torch.Tensor | None, taps: Taps
    ) -> tuple[torch.Tensor, Masks]:
        """(B, N, D), zero past the lengths -> bands (R, width), and their stacks' masks (k B, n_j), None: all valid."""
        return hidden_states.flatten(0, 1), [valid_rows(lengths, hidden_states.shape[1])]

    def synthesise(
        self, bands: torch.Tensor, batch: int, positions: int, lengths: torch.Tensor | None, taps: Taps
    ) -> torch.Tensor:
        """Bands (R, width) -> (B, N, D)."""
        return bands.unflatten(0, (batch, positions))


# Fourier spaces: one band of frequencies, each sample's own.


class FourierSpace(Space):
    """Frequencies 0 .. n // 2 of each sample's own length, real and imaginary parts as 2 D channels.

    The transform is orthonormal. `two_dimensional` transforms the channels as well. Not transformed back (FNet's way,
    `fourier_forward`), row f of the result has the real part of frequency f and row n - f the imaginary one, so that
    each of the n rows says something else: the real parts of all n frequencies, which FNet keeps, are the same in rows
    f and n - f.
    """

    def __init__(self, config: WavSpAConfig):
        super().__init__(config)
        self.width = 2 * config.hidden_size

    def band_positions(self, positions: int) -> list[int]:
        """See Space."""
        return [frequencies(positions)]

    def analyse(
        self, hidden_states: torch.Tensor, lengths: torch.Tensor | None, taps: Taps
    ) -> tuple[torch.Tensor, Masks]:
        """See Space."""
        spectrum = spectrum_of(hidden_states, lengths, self.config.two_dimensional)
        mask = None if lengths is None else valid_rows(frequencies(lengths), spectrum.shape[1])
        return spectrum.flatten(0, 1), [mask]

    def synthesise(
        self, bands: torch.Tensor, batch: int, positions: int, lengths: torch.Tensor | None, taps: Taps
    ) -> torch.Tensor:
        """See Space."""
        spectrum = bands.unflatten(0, (batch, frequencies(positions)))
        if self.config.space == "fourier_forward":
            return parts_as_rows(spectrum, positions, lengths)
        return rows_of(spectrum, positions, lengths, self.config.two_dimensional)


def parts_as_rows(spectrum: torch.Tensor, positions: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """(B, N // 2 + 1, 2 D) -> (B, N, D): row t <= n // 2 is real part t, a later one imaginary part n - t."""
    count = spectrum.shape[1]
    row = torch.arange(positions, device=spectrum.device)
    period = positions if lengths is None else lengths[:, None]
    source = torch.where(row <= period // 2, row, count + (period - row).clamp(min=0))
    parts = torch.cat(spectrum.chunk(2, dim=2), dim=1)
    return parts.take_along_dim(source.expand(len(parts), -1)[:, :, None], dim=1)


# Wavelet spaces: several bands. They differ in where their taps come from; lifting has steps in place of taps.


class WaveletSpace(Space):
    """Bands [cA_J, cD_J, .., cD_1] of a wavelet transform with taps of some kind; back by its adjoint."""

    def taps(self) -> torch.Tensor:
        """Low-pass taps, (T, D) or (T,)."""
        raise NotImplementedError

    def working_taps(self, dtype: torch.dtype) -> Taps:
        """See Space."""
        return (self.taps().to(torch.promote_types(dtype, torch.float32)),)

    def band_positions(self, positions: int) -> list[int]:
        """See Space."""
        return band_rows(positions, self.config.levels)

    def stacked(self) -> list[int]:
        """See Space: the approximation and the last details are of one length."""
        return [2] + [1] * (self.config.levels - 1)

    def analyse(
        self, hidden_states: torch.Tensor, lengths: torch.Tensor | None, taps: Taps
    ) -> tuple[torch.Tensor, Masks]:
        """See Space."""
        approximation, *others = band_masks(hidden_states.shape[1], self.config.levels, lengths)
        masks = list(others)  # torch.compile before 2.13 makes a tuple of them
        if approximation is not None:
            masks[0] = torch.cat([approximation, masks[0]])
        return self.transform(hidden_states, lengths, taps), masks

    def synthesise(
        self, bands: torch.Tensor, batch: int, positions: int, lengths: torch.Tensor | None, taps: Taps
    ) -> torch.Tensor:
        """See Space."""
        return self.transform_back(bands, batch, positions, lengths, taps)

    def transform(self, hidden_states: torch.Tensor, lengths: torch.Tensor | None, taps: Taps) -> torch.Tensor:
        """(B, N, D) -> bands (B N', D), as of `longmix.kernels.ops.wavelet_analysis`."""
        return ops.wavelet_analysis(hidden_states, *taps, self.config.levels, lengths)

    def transform_back(
        self, bands: torch.Tensor, batch: int, positions: int, lengths: torch.Tensor | None, taps: Taps
    ) -> torch.Tensor:
        """Bands (B N', D) -> (B, N, D)."""
        return ops.wavelet_synthesis(bands, *taps, self.config.levels, batch, positions, lengths)


class FixedWavelet(WaveletSpace):
    """A wavelet of PyWavelets; `two_dimensional` transforms the channels with the same taps and levels.

    At one level that is the paper's transform in two dimensions. At several it is the product of the two transforms,
    where the usual one would go on in a quarter of the coefficients alone and leave bands of different widths (WS-4).
    """

    def __init__(self, config: WavSpAConfig):
        super().__init__(config)
        # The 64 bits of each tap as an integer: no change of the module's dtype rounds them.
        self.register_buffer("tap_bits", torch.empty(len(scaling_taps(config.wavelet)), dtype=torch.int64))
        self.reset()

    def reset(self) -> None:
        """Set the taps."""
        init.copy_(self.tap_bits, scaling_taps(self.config.wavelet).view(torch.int64))

    def taps(self) -> torch.Tensor:
        """See WaveletSpace."""
        return self.tap_bits.view(torch.float64)

    def transform(self, hidden_states: torch.Tensor, lengths: torch.Tensor | None, taps: Taps) -> torch.Tensor:
        """See WaveletSpace."""
        if self.config.two_dimensional:
            channels, levels = hidden_states.transpose(1, 2), self.config.levels
            bands = bands_of(ops.wavelet_analysis(channels, *taps, levels), *channels.shape[:2], levels)
            hidden_states = torch.cat([band.transpose(1, 2) for band in bands], dim=2)
        return super().transform(hidden_states, lengths, taps)

    def transform_back(
        self, bands: torch.Tensor, batch: int, positions: int, lengths: torch.Tensor | None, taps: Taps
    ) -> torch.Tensor:
        """See WaveletSpace."""
        rows = super().transform_back(bands, batch, positions, lengths, taps)
        if self.config.two_dimensional:
            levels = self.config.levels
            of_channels = join_bands(rows.transpose(1, 2).split(band_rows(self.width, levels), dim=1))
            rows = ops.wavelet_synthesis(of_channels, *taps, levels, batch, self.width).transpose(1, 2)
        return rows


class AdaptiveWavelet(WaveletSpace):
    """Trainable taps for each channel, a wavelet of PyWavelets at first (WavSpA, section 3.2).

    The high-pass taps follow by eq. 4, for each channel from its own (WS-2). Nothing keeps the taps orthonormal, so the
    way back is the adjoint, and the inverse only as long as they are.
    """

    def __init__(self, config: WavSpAConfig):
        super().__init__(config)
        self.low_pass = nn.Parameter(torch.empty(len(scaling_taps(config.wavelet)), config.hidden_size))
        self.reset()

    def reset(self) -> None:
        """Start as the wavelet."""
        init.copy_(self.low_pass, scaling_taps(self.config.wavelet)[:, None].expand_as(self.low_pass))

    def taps(self) -> torch.Tensor:
        """See WaveletSpace."""
        return self.low_pass


class OrthogonalWavelet(WaveletSpace):
    """Taps for each channel from trainable angles, orthonormal whatever these are (WavSpA, section 3.3)."""

    def __init__(self, config: WavSpAConfig):
        super().__init__(config)
        count = config.filter_length // 2 - (1 if config.dc_normalised else 0)
        self.angles = nn.Parameter(torch.empty(count, config.hidden_size))
        self.reset()

    def reset(self) -> None:
        """Draw the angles from 0 .. 2 pi, as published."""
        init.uniform_(self.angles, 0, 2 * math.pi)

    def taps(self) -> torch.Tensor:
        """See WaveletSpace; with `dc_normalised` the last angle makes the sum of all pi / 4."""
        angles = self.angles.to(torch.promote_types(self.angles.dtype, torch.float32))
        if self.config.dc_normalised:
            angles = torch.cat([angles, math.pi / 4 - angles.sum(0, keepdim=True)])
        return lattice_taps(angles)


class Lifting(WaveletSpace):
    """Bands of a lifting transform (WavSpA, section 3.4), with the paper's steps or learned ones.

    Eq. 9 lacks a plus sign (WS-6). What is learned is the published code's: silu of a sum over `filter_length`
    neighbours, in the places of the sums of two; the transform can be undone whatever the taps are.
    """

    def __init__(self, config: WavSpAConfig):
        super().__init__(config)
        self.predict = self.update = None
        if config.learnable:
            self.predict = nn.Parameter(torch.empty(config.filter_length, config.hidden_size))
            self.update = nn.Parameter(torch.empty(config.filter_length, config.hidden_size))
            self.reset()

    def reset(self) -> None:
        """Draw the taps: at first the rows are hardly more than split into even and odd ones."""
        if self.config.learnable:
            init.normal_(self.predict, std=self.config.initializer_range)
            init.normal_(self.update, std=self.config.initializer_range)

    def working_taps(self, dtype: torch.dtype) -> Taps:
        """See Space."""
        wide = torch.promote_types(dtype, torch.float32)
        return tuple(taps.to(wide) for taps in (self.predict, self.update) if taps is not None)

    def transform(self, hidden_states: torch.Tensor, lengths: torch.Tensor | None, taps: Taps) -> torch.Tensor:
        """See WaveletSpace."""
        return ops.lifting_analysis(hidden_states, *(taps or (None, None)), self.config.levels, lengths)

    def transform_back(
        self, bands: torch.Tensor, batch: int, positions: int, lengths: torch.Tensor | None, taps: Taps
    ) -> torch.Tensor:
        """See WaveletSpace."""
        return ops.lifting_synthesis(bands, *(taps or (None, None)), self.config.levels, batch, positions, lengths)


# The spaces by the names that configurations use.
SPACE_CLASSES = {
    "none": Space,
    "fourier": FourierSpace,
    "fourier_forward": FourierSpace,
    "fixed": FixedWavelet,
    "adaptive": AdaptiveWavelet,
    "orthogonal": OrthogonalWavelet,
    "lifting": Lifting,
}


def make_space(config: WavSpAConfig) -> Space:
    """The space of `config.space`."""
    return SPACE_CLASSES[config.space](config)
