"""Phi^-1 exp(i phase) Phi stage by stage, and backwards from its output alone."""

import torch

from .blocks import angle_gradient, make_blocks, sweep, sweep_back


class Conjugation(torch.autograd.Function):
    """Phi^-1 exp(i phase) Phi x.

    Args:
        x: (B, H, N, 2 d), the real parts and then the imaginary parts, N = m c + 1.
        rotations: (B, H, 2 L, m, c) float64 and
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
            both = program.run(torch.cat([mixed, gradient], -1), eigenvalues=-1)
            return both[..., mixed.shape[-1] :], *program.gradients(), None


class _Program:
    """Steps that the rows go through: the stages of Phi, the eigenvalues, the stages undone."""

    def __init__(self, x: torch.Tensor, rotations: torch.Tensor, phases: torch.Tensor, order: torch.Tensor | None):
        self.width = x.shape[-1] // 2
        self.blocks = [make_blocks(angles, x.dtype) for angles in rotations.unbind(2)]
        self.cosine, self.sine = phases.cos().to(x.dtype).unbind(2), phases.sin().to(x.dtype).unbind(2)
        self.order = order

    def run(self, x: torch.Tensor, eigenvalues: int) -> torch.Tensor:
        """x (B, H, N, channels) -> the same; `eigenvalues` is 1, or -1 for the inverse."""
        orders = range(len(self.blocks) // 2)
        for number in reversed(orders):
            if self.order is not None:
                x = _permute(x, self.order[:, number])
            for stage in (2 * number, 2 * number + 1):
                x = self.sweep(self.turn(x, stage, 1), stage, transposed=stage % 2 == 1)
        x = self.turn(x, 2 * len(orders), eigenvalues)
        for number in orders:
            for stage in (2 * number + 1, 2 * number):
                x = self.turn(self.sweep(x, stage, transposed=stage % 2 == 0), stage, -1)
            if self.order is not None:
                x = _permute(x, self.order[:, number].argsort(-1))
        return x

    def turn(self, x: torch.Tensor, stage: int, sign: int) -> torch.Tensor:
        """Multiply row k by exp(sign * i * phase_k)."""
        real, imaginary = self.parts(x)
        cosine, sine = self.cosine[stage][..., None, None], sign * self.sine[stage][..., None, None]
        return torch.stack([real * cosine - imaginary * sine, real * sine + imaginary * cosine], -2).flatten(-3)

    def sweep(self, x: torch.Tensor, stage: int, transposed: bool) -> torch.Tensor:
        """O x, or O^T x, for the product O of real rotations of this stage."""
        return (sweep_back if transposed else sweep)(self.blocks[stage], x)[0]

    def parts(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Real and imaginary parts of x (B, H, N, channels): (B, H, N, 1 or 2, d) each."""
        return x.unflatten(-1, (-1, 2, self.width)).unbind(-2)


class _Reversal(_Program):
    """The program on states and their gradients side by side, which sums up the gradients of its tables."""

    def __init__(self, x: torch.Tensor, rotations: torch.Tensor, phases: torch.Tensor, order: torch.Tensor | None):
        super().__init__(x, rotations, phases, order)
        self.phase_gradients = [0.0] * len(self.cosine)
        self.matrix_gradients = [0.0] * len(self.blocks)

    def turn(self, x: torch.Tensor, stage: int, sign: int) -> torch.Tensor:
        """See _Program. It undoes a turn by -sign * phase, whose gradient no turn of both changes."""
        (real, real_gradient), (imaginary, imaginary_gradient) = (part.unbind(-2) for part in self.parts(x))
        gradient = (imaginary_gradient * real - real_gradient * imaginary).sum(-1)
        self.phase_gradients[stage] = self.phase_gradients[stage] - sign * gradient
        return super().turn(x, stage, sign)

    def sweep(self, x: torch.Tensor, stage: int, transposed: bool) -> torch.Tensor:
        """See _Program. It undoes the opposite sweep, whose gradient is the product of what that read and wrote."""
        x, read, written = (sweep_back if transposed else sweep)(self.blocks[stage], x)
        state, gradient = slice(0, 2 * self.width), slice(2 * self.width, None)
        left, right = (gradient, state) if transposed else (state, gradient)
        product = written[..., left] @ read[..., right].mT
        self.matrix_gradients[stage] = self.matrix_gradients[stage] + product
        return x

    def gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of rotations and phases."""
        rotations = [angle_gradient(*pair) for pair in zip(self.blocks, self.matrix_gradients, strict=True)]
        return torch.stack(rotations, 2).double(), torch.stack(self.phase_gradients, 2).double()


def _permute(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Rows of x (B, H, N, channels) in the order (1 or B, N)."""
    return x.gather(2, order[:, None, :, None].expand(x.shape))
