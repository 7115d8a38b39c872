"""The phases of Givens rotations, gathered into diagonals around products of real rotations."""

from typing import NamedTuple

import torch
from torch.nn import functional

from ..common.scan import running_sum


class Hessenberg(NamedTuple):
    """H = diag(exp(i left)) O diag(exp(i right)), with O = R_0 R_1 ... R_{N-2} the product of real rotations.

    Args:
        left: (..., N).
        rotation: (..., N - 1), the angle of R_k = [[cos, -sin], [sin, cos]] on rows (k, k + 1).
        right: (..., N).
    """

    left: torch.Tensor
    rotation: torch.Tensor
    right: torch.Tensor


def upper_hessenberg(angles: torch.Tensor) -> Hessenberg:
    """H_u = G_0 G_1 ... G_{N-2} of angles (..., N - 1, 3) in this form.

    What the rotations hand on from row k + 1 to row k collects the phases B on its way; with the collected phase taken
    out of every row, the phases that are left are the same for all that a row reads, and for all that it writes.
    """
    a, b, c = angles.unbind(-1)
    collected = functional.pad(running_sum(b.flip(-1)).flip(-1), (0, 1))
    left = torch.cat([collected[..., :1], a + collected[..., 1:]], -1)
    return Hessenberg(left, c, functional.pad(-a - collected[..., :-1], (0, 1)))


def inverse_of_lower_hessenberg(angles: torch.Tensor) -> Hessenberg:
    """H_l^-1 = (G_{N-2} ... G_0)^-1 = G_0^-1 ... G_{N-2}^-1 in this form, for the angles of H_l."""
    a, b, c = angles.unbind(-1)
    return upper_hessenberg(torch.stack([-a, b, -c], -1))


def stage_tables(
    upper: torch.Tensor, lower: torch.Tensor, phase: torch.Tensor, order: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Phi as stages: for the orders from L to 1 a permutation, a phase, O, a phase, O'^T.

    Args:
        upper, lower, phase: see `longmix.kernels.ops.givens_mix`.
        order: (1 or B, L, N), the permutations.

    Returns:
        The angles of O and O' for the orders 1 .. L, (B, H, 2 L, N - 1); the phases before O and O'^T for them, and
        last that of the eigenvalues, (B, H, 2 L + 1, N).
    """
    first, second = upper_hessenberg(upper), inverse_of_lower_hessenberg(lower)
    rotations = torch.stack([first.rotation, second.rotation], 3).flatten(2, 3)
    # What order l + 1 leaves over meets the permutation of order l. What order 1 leaves over commutes with the
    # eigenvalues and cancels.
    left_over = second.right[:, :, 1:]
    if order is not None:
        left_over = left_over.gather(-1, order[:, None, :-1].expand(left_over.shape))
    before = first.right - functional.pad(left_over, (0, 0, 0, 1))
    phases = torch.stack([before, first.left - second.left], 3).flatten(2, 3)
    return rotations, torch.cat([phases, phase[:, :, None]], 2)


def transposed_stage_tables(
    of_rotations: torch.Tensor, of_phases: torch.Tensor, order: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of upper, lower and phase from those of what `stage_tables` returns."""
    before, between = of_phases[:, :, :-1].unflatten(2, (-1, 2)).unbind(3)
    left_over = -before[:, :, :-1]
    if order is not None:
        index = order[:, None, :-1].expand(left_over.shape)
        left_over = torch.zeros_like(left_over).scatter(-1, index, left_over)
    first, second = of_rotations.unflatten(2, (-1, 2)).unbind(3)
    upper = _transposed_hessenberg(Hessenberg(between, first, before))
    a, b, c = _transposed_hessenberg(Hessenberg(-between, second, functional.pad(left_over, (0, 0, 1, 0)))).unbind(-1)
    return upper, torch.stack([-a, b, -c], -1), of_phases[:, :, -1]


def _transposed_hessenberg(of: Hessenberg) -> torch.Tensor:
    """Gradient of the angles (..., N - 1, 3) from those of what `upper_hessenberg` returns."""
    b = running_sum(of.left - of.right)[..., :-1]
    return torch.stack([of.left[..., 1:] - of.right[..., :-1], b, of.rotation], -1)
