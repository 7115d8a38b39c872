"""Phi^-1 exp(i phase) Phi stage by stage, and backwards from its output alone."""

import torch
from torch.nn import functional

from .blocks import Swept, angle_gradient, make_blocks, sweep, sweep_back


class Conjugation(torch.autograd.Function):
    """Phi^-1 exp(i phase) Phi x.

    Args:
        x: (B, H, N, d, 2), N = m c.
        rotations: (B, H, 2 L, m, c) float64, the last one by zero, and
        phases: (B, H, 2 L + 1, N) float64, as `stage_tables` makes them.
        order: (1 or B, L, N), the permutations, or None.
    """

    @staticmethod
    def forward(ctx, x, rotations, phases, order):
        mixed = _Program(x, rotations, phases, order).run(x, eigenvalues=1)
        ctx.save_for_backward(mixed, rotations, phases, order)
        return mixed

    @staticmethod
    def backward(ctx, gradient):
        mixed, rotations, phases, order = ctx.saved_tensors
        with torch.autocast(mixed.device.type, enabled=False):
            # Inverse and adjoint are one: what takes the output back to the input does so with its gradient as well.
            program = _Reversal(mixed, rotations, phases, order)
            both = program.run(torch.cat([mixed, gradient], -2), eigenvalues=-1)
            return both[..., mixed.shape[-2] :, :], *program.gradients(), None


class _Program:
    """Steps that the rows (B, H, N, channels, 2) go through: the stages of Phi, the eigenvalues, the stages undone."""

    def __init__(self, x: torch.Tensor, rotations: torch.Tensor, phases: torch.Tensor, order: torch.Tensor | None):
        self.width = x.shape[-2]
        self.blocks = [make_blocks(angles, x.dtype) for angles in rotations.unbind(2)]
        # (B, H, N + 1) of each stage, for the row of zeros behind the last one too.
        phases = functional.pad(phases, (0, 1))
        self.factors = torch.complex(phases.cos().to(x.dtype), phases.sin().to(x.dtype)).unbind(2)
        self.order = order

    def run(self, x: torch.Tensor, eigenvalues: int) -> torch.Tensor:
        """x -> the same shape; `eigenvalues` is 1, or -1 for the inverse."""
        orders = range(len(self.blocks) // 2)
        for number in reversed(orders):
            upper, lower = 2 * number, 2 * number + 1
            if self.order is not None:
                x = _permute(x, self.order[:, number])
            x = self.there_and_back(self.turn(x, upper, 1), upper, lower, 1)
        x = self.turn(x, 2 * len(orders), eigenvalues)
        for number in orders:
            upper, lower = 2 * number, 2 * number + 1
            x = self.turn(self.there_and_back(x, lower, upper, -1), upper, -1)
            if self.order is not None:
                x = _permute(x, self.order[:, number].argsort(-1))
        return x

    def there_and_back(self, x: torch.Tensor, there: int, back: int, sign: int) -> torch.Tensor:
        """O'^T exp(sign * i phase) O x for the rotations O and O' of two stages, and the phase between them."""
        between = max(there, back)
        swept = self.sweep(there, x.flatten(-2))
        rows = self.turn(swept.rows.unflatten(-1, (-1, 2)), between, sign, first=1)
        first = self.turn(swept.first.unflatten(-1, (-1, 2)).unsqueeze(2), between, sign)
        swept = self.sweep(back, rows.flatten(-2), first.squeeze(2).flatten(-2))
        return swept.rows.unflatten(-1, (-1, 2))

    def sweep(self, stage: int, x: torch.Tensor, first: torch.Tensor | None = None) -> Swept:
        """The real rotations of a stage or, given the first row, their inverse."""
        return sweep(self.blocks[stage], x) if first is None else sweep_back(self.blocks[stage], x, first)

    def turn(self, x: torch.Tensor, stage: int, sign: int, first: int = 0) -> torch.Tensor:
        """Multiply rows, from the row `first` on, by exp(sign * i * phase) of theirs."""
        factor = self.factors[stage][..., first : first + x.shape[2], None]
        return torch.view_as_real(torch.view_as_complex(x) * (factor if sign > 0 else factor.conj()))


class _Reversal(_Program):
    """The program on states and their gradients side by side, which sums up the gradients of its tables."""

    def __init__(self, x: torch.Tensor, rotations: torch.Tensor, phases: torch.Tensor, order: torch.Tensor | None):
        super().__init__(x, rotations, phases, order)
        self.phase_gradients = [0.0] * len(self.factors)
        self.matrix_gradients = [0.0] * len(self.blocks)

    def turn(self, x: torch.Tensor, stage: int, sign: int, first: int = 0) -> torch.Tensor:
        """See _Program. It undoes a turn by -sign * phase, whose gradient no turn of both changes."""
        (real, imaginary), (of_real, of_imaginary) = (part.unbind(-1) for part in x.split(self.width, -2))
        of_phase = torch.addcmul(of_imaginary * real, of_real, imaginary, value=-1).sum(-1)
        behind = self.factors[stage].shape[-1] - first - x.shape[2]
        self.phase_gradients[stage] = self.phase_gradients[stage] - sign * functional.pad(of_phase, (first, behind))
        return super().turn(x, stage, sign, first)

    def sweep(self, stage: int, x: torch.Tensor, first: torch.Tensor | None = None) -> Swept:
        """See _Program. It undoes the opposite sweep, whose gradient is the product of what that read and wrote."""
        swept = super().sweep(stage, x, first)
        state, gradient = slice(0, 2 * self.width), slice(2 * self.width, None)
        left, right = (state, gradient) if first is None else (gradient, state)
        rows, row = (written[..., left] for written in swept.written)
        columns, column = (read[..., right] for read in swept.read)
        row, column = row[..., None, :], column[..., None, :]
        products = [torch.cat([each @ columns.mT, each @ column.mT], -1) for each in (row, rows)]
        self.matrix_gradients[stage] = self.matrix_gradients[stage] + torch.cat(products, -2)
        return swept

    def gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of rotations and phases."""
        rotations = [angle_gradient(*pair) for pair in zip(self.blocks, self.matrix_gradients, strict=True)]
        return torch.stack(rotations, 2).double(), torch.stack(self.phase_gradients, 2)[..., :-1].double()


def _permute(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Rows of x (B, H, N, channels, 2) in the order (1 or B, N)."""
    return x.gather(2, order[:, None, :, None, None].expand(x.shape))
