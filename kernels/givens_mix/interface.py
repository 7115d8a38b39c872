"""Converter's unitary digraph convolution as products of Givens rotations: what it means."""

import torch

from ..common.arguments import as_integers, as_lengths, check_permutation
from ..common.rows import of_nothing
from ..selection import select
from .portable import givens_mix as portable
from .reference import givens_mix as reference


def givens_mix(
    value: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None = None,
    permutation: torch.Tensor | None = None,
    without_own: bool = False,
) -> torch.Tensor:
    """Phi^-1 exp(i phase) Phi value, with the unitary Phi = H_l(1) H_u(1) P(1) ... H_l(L) H_u(L) P(L), of each head.

    This is Synvolution (Converter, eq. 8) with the order-L DHHP matrix of eq. 7, and Kernelution (eq. 12) if the phase
    is a polynomial of the eigenvalues. H_u = G_0 G_1 ... G_{N-2} and H_l = G_{N-2} ... G_1 G_0, where

        G_k = [[exp(-iA) cos C, -exp(iB) sin C], [exp(-iB) sin C, exp(iA) cos C]]    on rows (k, k + 1),

    eq. 6 with A = (alpha + beta) / 2, B = (alpha - beta) / 2, C = gamma / 2. The diagonal D of eq. 7 is left out: it
    commutes with exp(i phase), so that it cancels (CV-5).

    Args:
        value: (B, N, H, d, 2), real and imaginary parts, any floating dtype.
        upper: (B, H, L, N - 1, 3), the angles (A, B, C) of H_u for the orders 1 .. L.
        lower: (B, H, L, N - 1, 3), those of H_l.
        phase: (B, H, N), the arguments of the eigenvalues.
        lengths: (B,) integers, valid positions of each sample, clamped to 0 .. N. Rows at or past it are ignored,
            whatever they hold, and come out zero; a rotation that touches one is the identity. None: all N.
        permutation: (L, N) or (B, L, N) integers, each row a permutation p of 0 .. N - 1; (P x)[k] = x[p[k]]. A sample
            of n valid tokens is permuted by those elements of p that are below n, in their order. None: identity.
        without_own: minus exp(i phase) value, subtracted before the result is rounded.

    Returns:
        (B, N, H, d, 2) in the dtype of value; computed in fp32, or in float64 for float64 values.

    Raises:
        ValueError: shapes that do not fit together, integers that are none, or, on a CPU, a permutation that is none;
            in a compiled graph the C++ alone looks.
    """
    shape = tuple(value.shape)
    if value.dim() != 5 or shape[4] != 2:
        raise ValueError(f"value has shape {shape}; allowed: (B, N, H, d, 2)")
    batch, positions, heads = shape[:3]
    orders = upper.shape[2] if upper.dim() == 5 else 0
    rotations = (batch, heads, orders, max(positions - 1, 0), 3)
    for name, angles in (("upper", upper), ("lower", lower)):
        if orders < 1 or tuple(angles.shape) != rotations:
            raise ValueError(
                f"{name} has shape {tuple(angles.shape)} for value of shape {shape}; allowed: (B, H, L, N - 1, 3), "
                "the same L >= 1 for upper and lower"
            )
    if tuple(phase.shape) != (batch, heads, positions):
        raise ValueError(f"phase has shape {tuple(phase.shape)}; allowed: (B, H, N) = {(batch, heads, positions)}")
    lengths = as_lengths(lengths, batch, positions, value.device)
    if permutation is not None:
        shapes = ((orders, positions), (batch, orders, positions))
        permutation = as_integers("permutation", permutation, value.device, *shapes)
    run = select("givens_mix", value.device, {"portable": portable, "reference": reference})
    if value.numel() == 0:
        return of_nothing(value, upper, lower, phase)
    if permutation is not None and value.device.type == "cpu" and not torch.compiler.is_compiling():
        check_permutation(permutation, positions)
    return run(value, upper, lower, phase, lengths, permutation, without_own)
