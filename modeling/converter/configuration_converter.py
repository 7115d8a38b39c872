"""Configuration of Converter."""

import math
from typing import ClassVar

from ..configuration import MixerConfig

OPERATORS = ("kernelution", "synvolution")
PARAMETER_HEADS = ("linear", "siren")
GIBBS_KERNELS = ("dirichlet", "fejer", "jackson", "lanczos", "lorentz", "vekic", "wang")
# Angles of a token for each order: A, B and C of one rotation of H_l and of one of H_u.
ANGLES_OF_ORDER = 6
# Parameters of Gibbs kernels beyond it make damping factors of zero, and some cannot be computed.
LARGEST_GIBBS_PARAMETER = 100


class ConverterConfig(MixerConfig):
    """Synthetic unitary digraph convolution; see MixerConfig for the shared fields.

    The paper's own experiments: block_style paper, parameter_head siren, one head, one layer, and positions by gru.

    Args:
        operator: kernelution (eq. 12, a polynomial of the eigenvalues) | synvolution (eq. 8, the eigenvalues).
        orders: L, the number of factors H_l H_u P of the eigenvector matrix (eq. 7).
        permutations: each order has a fixed random permutation P of the valid tokens; else P is the identity.
        parameter_head: linear | siren (the paper's), what computes eigenvalues and angles from a token.
        smallest_angle_range: of the linear head alone, how far the first head's rotations are from a quarter turn at
            initialisation, in radians; the smaller, the farther and the more weakly a head mixes.
        largest_angle_range: that of the last head; the others lie between them, in geometric steps.
        polynomial_order: K of kernelution, at least 1: a constant polynomial mixes nothing.
        gibbs_kernel: dirichlet (no damping; has the kernel polynomial loss) | fejer | jackson | lanczos | lorentz |
            vekic | wang, what damps the coefficients of kernelution's polynomial (table 6).
        lanczos_power: M of the lanczos kernel.
        lorentz_width: xi of the lorentz kernel.
        wang_scale: a of the wang kernel.
        wang_power: b of the wang kernel.
    """

    model_type = "converter"
    not_causal_because: ClassVar[str | None] = "a unitary matrix that is lower triangular is diagonal: it mixes nothing"

    operator: str = "kernelution"
    orders: int = 1
    permutations: bool = False
    parameter_head: str = "linear"
    smallest_angle_range: float = 0.05
    largest_angle_range: float = 1.0
    polynomial_order: int = 2
    gibbs_kernel: str = "dirichlet"
    lanczos_power: int = 3
    lorentz_width: float = 4.0
    wang_scale: float = 2.0
    wang_power: float = 2.0

    @property
    def has_auxiliary_loss(self) -> bool:
        """See MixerConfig."""
        return self.operator == "kernelution" and self.gibbs_kernel == "dirichlet"

    def check(self) -> None:
        """See MixerConfig."""
        super().check()
        self.require_one_of("operator", OPERATORS)
        self.require_one_of("parameter_head", PARAMETER_HEADS)
        self.require_one_of("gibbs_kernel", GIBBS_KERNELS)
        for name in ("orders", "polynomial_order", "lanczos_power"):
            self.require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("smallest_angle_range", "largest_angle_range"):
            self.require(name, 0 < getattr(self, name) < math.inf, "above 0, and finite")
        for name in ("lanczos_power", "lorentz_width", "wang_scale", "wang_power"):
            within = 0 < getattr(self, name) <= LARGEST_GIBBS_PARAMETER
            self.require(name, within, f"above 0, and at most {LARGEST_GIBBS_PARAMETER}")
        self.require(
            "largest_angle_range",
            self.largest_angle_range >= self.smallest_angle_range,
            f"at least smallest_angle_range ({self.smallest_angle_range})",
        )
        self._check_that_fields_are_read()
        if self.parameter_head == "siren":
            head_size = self.hidden_size // self.num_attention_heads
            self.require(
                "orders",
                ANGLES_OF_ORDER * self.orders <= head_size,
                f"at most {head_size // ANGLES_OF_ORDER} with the siren head, which pools the {head_size} channels of "
                f"a head into {ANGLES_OF_ORDER} angles for each order",
            )

    def _check_that_fields_are_read(self) -> None:
        """Refuse a field that was set for something that was not chosen."""
        for choice, value, names in (
            ("operator", "kernelution", ("polynomial_order", "gibbs_kernel")),
            ("parameter_head", "linear", ("smallest_angle_range", "largest_angle_range")),
            ("gibbs_kernel", "lanczos", ("lanczos_power",)),
            ("gibbs_kernel", "lorentz", ("lorentz_width",)),
            ("gibbs_kernel", "wang", ("wang_scale", "wang_power")),
        ):
            for name in names:
                default = getattr(ConverterConfig, name)
                read = getattr(self, choice) == value
                self.require(name, read or getattr(self, name) == default, f"{default}, unless {choice} is {value}")
