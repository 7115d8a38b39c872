"""Converter's rotations of tokens with angles that a linear head has drawn: what it means."""

import torch

from ..common.arguments import as_integers, as_lengths, check_permutation
from ..common.rows import of_nothing
from ..selection import select
from .portable import token_givens_mix as portable
from .reference import token_givens_mix as reference


def token_givens_mix(
    value: torch.Tensor,
    drawn: torch.Tensor,
    coefficients: torch.Tensor | None,
    centres: torch.Tensor,
    ranges: torch.Tensor,
    begins: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    permutation: torch.Tensor | None = None,
    without_own: bool = False,
) -> torch.Tensor:
    """`givens_mix` with the angles and phases of tokens u = centre + range * drawn, in fp32 or wider.

    Of a token's u in a head the first one is an eigenvalue's: phase = sum_k w_k T_k(sin u_0), with Chebyshev
    polynomials (Converter, eqs. 9 and 10), or sin u_0 without coefficients w. Six angles follow for each order: (A, B,
    C) of H_l's rotation of this token and the next one, then those of H_u's rotation of the one before and this token.

    Args:
        value: (B, N, H, d, 2), any floating dtype.
        drawn: (B, N, H, 1 + 6 L), any floating dtype, finite on all rows: what is at or past a length has no effect.
        coefficients: (H, K + 1), K at least 1, any floating dtype; None: see above.
        centres, ranges: (H, 1 + 6 L), constants without a gradient.
        begins: (B, N) bool, true on the first token of a document: rotations of it and the token before are by zero.
        lengths, permutation, without_own: see `givens_mix`.

    Returns:
        (B, N, H, d, 2) in the dtype of value; computed in fp32, or in float64 for float64 values.

    Raises:
        ValueError: shapes that do not fit together, or integers that are none, or, on a CPU, a permutation that is
            none; in a compiled graph the C++ alone looks.
    """
    shape = tuple(value.shape)
    if value.dim() != 5 or shape[4] != 2:
        raise ValueError(f"value has shape {shape}; allowed: (B, N, H, d, 2)")
    batch, positions, heads = shape[:3]
    count = drawn.shape[3] if drawn.dim() == 4 else 0
    if tuple(drawn.shape[:3]) != shape[:3] or count < 7 or count % 6 != 1:
        raise ValueError(
            f"drawn has shape {tuple(drawn.shape)} for value of shape {shape}; allowed: (B, N, H, 1 + 6 L), L >= 1"
        )
    for name, table in (("centres", centres), ("ranges", ranges)):
        if tuple(table.shape) != (heads, count):
            raise ValueError(f"{name} has shape {tuple(table.shape)}; needed: {(heads, count)}, (H, 1 + 6 L)")
    if coefficients is not None and (
        coefficients.dim() != 2 or len(coefficients) != heads or coefficients.shape[1] < 2
    ):
        raise ValueError(f"coefficients has shape {tuple(coefficients.shape)}; allowed: ({heads}, K + 1), K at least 1")
    if begins is not None and (tuple(begins.shape) != (batch, positions) or begins.dtype != torch.bool):
        raise ValueError(
            f"begins has shape {tuple(begins.shape)} and dtype {begins.dtype}; needed: {(batch, positions)}, torch.bool"
        )
    lengths = as_lengths(lengths, batch, positions, value.device)
    if permutation is not None:
        shapes = ((count // 6, positions), (batch, count // 6, positions))
        permutation = as_integers("permutation", permutation, value.device, *shapes)
    run = select("token_givens_mix", value.device, {"portable": portable, "reference": reference})
    if value.numel() == 0:
        return of_nothing(value, drawn, coefficients)
    if permutation is not None and value.device.type == "cpu" and not torch.compiler.is_compiling():
        check_permutation(permutation, positions)
    return run(value, drawn, coefficients, centres, ranges, begins, lengths, permutation, without_own)
