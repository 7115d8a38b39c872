"""Converter's product of Givens rotations, one rotation after the other in float64."""

import torch


def givens_mix(
    value: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    phase: torch.Tensor,
    lengths: torch.Tensor | None,
    permutation: torch.Tensor | None,
    without_own: bool,
) -> torch.Tensor:
    """See `longmix.kernels.ops.givens_mix`."""
    samples = []
    for row in range(value.shape[0]):
        length = value.shape[1] if lengths is None else int(lengths[row])
        order = None
        if permutation is not None:
            order = permutation[row] if permutation.dim() == 3 else permutation
            order = torch.stack([line[line < length] for line in order])
        valid = value[row, :length].double().permute(1, 0, 2, 3)  # (H, n, d, 2)
        rotations = max(length - 1, 0)
        tokens, turns = torch.complex(valid[..., 0], valid[..., 1]), phase[row, :, :length].double()
        mixed = _mix_sample(
            tokens, upper[row, :, :, :rotations].double(), lower[row, :, :, :rotations].double(), turns, order
        )
        if without_own:
            mixed = mixed - turn(tokens, turns)
        padding = value.new_zeros(value.shape[1] - length, *value.shape[2:])
        samples.append(torch.cat([torch.view_as_real(mixed).permute(1, 0, 2, 3).to(value.dtype), padding]))
    return torch.stack(samples)


def _mix_sample(
    x: torch.Tensor, upper: torch.Tensor, lower: torch.Tensor, phase: torch.Tensor, permutation: torch.Tensor | None
) -> torch.Tensor:
    """Values (H, n, d) complex, angles (H, L, n - 1, 3), phase (H, n), permutation (L, n) -> (H, n, d)."""
    orders = upper.shape[1]
    last_to_first = range(upper.shape[2] - 1, -1, -1)
    first_to_last = range(upper.shape[2])
    for order in reversed(range(orders)):
        if permutation is not None:
            x = x[:, permutation[order]]
        x = _rotate(x, givens(upper[:, order]), last_to_first)
        x = _rotate(x, givens(lower[:, order]), first_to_last)
    x = turn(x, phase)
    for order in range(orders):
        x = _rotate(x, givens(lower[:, order]).mH, last_to_first)
        x = _rotate(x, givens(upper[:, order]).mH, first_to_last)
        if permutation is not None:
            x = x[:, permutation[order].argsort()]
    return x


def turn(x: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
    """exp(i phase) x: x (H, n, d) complex, phase (H, n) -> (H, n, d)."""
    return x * torch.polar(torch.ones_like(phase), phase)[:, :, None]


def givens(angles: torch.Tensor) -> torch.Tensor:
    """Angles (..., 3) -> complex rotations (..., 2, 2) (Converter, eq. 6)."""
    a, b, c = angles.unbind(-1)
    cosine, sine = c.cos(), c.sin()
    diagonal, other = (torch.polar(torch.ones_like(phase), phase) for phase in (a, b))
    rows = [
        torch.stack([diagonal.conj() * cosine, -other * sine], -1),
        torch.stack([other.conj() * sine, diagonal * cosine], -1),
    ]
    return torch.stack(rows, -2)


def _rotate(x: torch.Tensor, rotations: torch.Tensor, order: range) -> torch.Tensor:
    """Rows (k, k + 1) of x (H, n, d) multiplied by rotations[:, k] (H, n - 1, 2, 2), k in the given order."""
    rows, rotations = list(x.unbind(1)), rotations.unbind(1)
    for k in order:
        pair = rotations[k] @ torch.stack([rows[k], rows[k + 1]], 1)
        rows[k], rows[k + 1] = pair.unbind(1)
    return torch.stack(rows, 1) if rows else x
