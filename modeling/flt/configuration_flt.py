"""Configuration of FLT."""

import math
from typing import ClassVar

from ..configuration import MixerConfig

FEATURE_KINDS = ("positive", "relu")
SPECTRAL_KINDS = ("gaussian_mixture", "local", "gaussian_basis", "kernel")
FREQUENCY_SAMPLINGS = ("normal", "learnable_normal", "stratified", "kernel")
KERNELS = ("gaussian", "laplacian", "cauchy")


class FLTConfig(MixerConfig):
    """FourierLearner-Transformer; see MixerConfig for the shared fields.

    Args:
        feature_kind: positive (FAVOR+, the estimate of softmax attention) | relu (learnable projection and ReLU).
        num_random_features: m, features of the queries and keys of a head.
        spectral_kind: what the Fourier transform of the mask is: gaussian_mixture | local (eq. 20, a product over
            coordinates) | gaussian_basis (isotropic Gaussians of the distance) | kernel (a shift-invariant kernel).
        num_components: T, terms of the sum that the first three kinds are; a kernel is one term.
        exponents: powers k of the factors of `local`, one for each coordinate; None: all 1, indicators of windows.
        kernel: that of spectral_kind kernel, no other reads it: gaussian | laplacian | cauchy.
        num_frequencies: r, frequencies at which the Fourier transform is sampled.
        frequency_sampling: normal (paper, language) | learnable_normal (a learnable width for each frequency; paper,
            molecules) | stratified (one in each of r equal parts of [-1/2, 1/2]) | kernel (the kernel's own density);
            None: kernel for spectral_kind kernel, which allows no other, else normal.
        coordinate_dimensions: l, the positions are the `coordinates` (B, N, l) that the model is given; 0: the indices.
        position_scale: positions are multiplied by it: the unit in which distances are measured.
        directional: every term of the mask has a learnable centre, so that left and right differ.
        mask_bound: the absolute weights of a head's frequencies, and with them the mask, are held to this mean;
            None: unbounded.
        share_mask: all layers use one mask (paper); false: each has its own.
        exact_reach: each head also attends exactly to the tokens at most so many positions away, under a mask with a
            learned height for each place; 0: the estimate alone (paper), which must be so with coordinates.
    """

    model_type = "flt"
    no_rope_because: ClassVar[str | None] = "its mask is what relates positions"

    feature_kind: str = "positive"
    num_random_features: int = 64
    spectral_kind: str = "gaussian_mixture"
    num_components: int = 25
    exponents: list | None = None
    kernel: str = "gaussian"
    num_frequencies: int = 32
    frequency_sampling: str | None = None
    coordinate_dimensions: int = 0
    position_scale: float = 1.0
    directional: bool = False
    mask_bound: float | None = 4.0
    share_mask: bool = True
    exact_reach: int = 0

    @property
    def position_dimensions(self) -> int:
        """Dimensions of a position: those of the coordinates, or 1 of an index."""
        return self.coordinate_dimensions or 1

    def fill_defaults(self) -> None:
        """See MixerConfig."""
        super().fill_defaults()
        if self.frequency_sampling is None:
            self.frequency_sampling = "kernel" if self.spectral_kind == "kernel" else "normal"

    def check(self) -> None:
        """See MixerConfig."""
        super().check()
        for name in ("num_random_features", "num_components", "num_frequencies"):
            self.require(name, getattr(self, name) >= 1, "at least 1")
        self.require("coordinate_dimensions", self.coordinate_dimensions >= 0, "at least 0")
        self.require("exact_reach", self.exact_reach >= 0, "at least 0")
        if self.coordinate_dimensions:
            self.require("exact_reach", self.exact_reach == 0, "0, where positions are coordinates")
        self.require_one_of("feature_kind", FEATURE_KINDS)
        self.require_one_of("spectral_kind", SPECTRAL_KINDS)
        self.require_one_of("kernel", KERNELS)
        if self.spectral_kind == "kernel":
            self.require("frequency_sampling", self.frequency_sampling == "kernel", "kernel, for spectral_kind kernel")
        else:
            self.require("kernel", self.kernel == "gaussian", "gaussian, unless spectral_kind is kernel")
            self.require_one_of("frequency_sampling", FREQUENCY_SAMPLINGS[:-1])
        if self.exponents is not None:
            self.require("exponents", self.spectral_kind == "local", "null, unless spectral_kind is local")
            self.require(
                "exponents",
                len(self.exponents) == self.position_dimensions
                and all(type(power) is int and power >= 1 for power in self.exponents),
                f"null, or as many integers above 0 as positions have dimensions ({self.position_dimensions})",
            )
        self.require("position_scale", 0 < self.position_scale < math.inf, "above 0, and finite")
        self.require(
            "mask_bound",
            self.mask_bound is None or 0 < self.mask_bound < math.inf,
            "null (unbounded), or above 0 and finite",
        )
