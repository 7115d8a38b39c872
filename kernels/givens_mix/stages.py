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
        mixed = _Program(x, rotations, phases, order).run([x], eigenvalues=1)
        ctx.save_for_backward(mixed, rotations, phases, order)
        return mixed

    @staticmethod
    def backward(ctx, gradient):
        mixed, rotations, phases, order = ctx.saved_tensors
        with torch.autocast(mixed.device.type, enabled=False):
            # Inverse and adjoint are one: what takes the output back to the input does so with its gradient as well.
            program = _Reversal(mixed, rotations, phases, order)
            both = program.run([mixed, gradient], eigenvalues=-1)
            return both[..., mixed.shape[-2] :, :], *program.gradients(), None


# Which places of a chunk's tile have rows: those that a sweep takes, and those that it makes.
OF_COLUMNS, OF_ROWS = slice(None, -1), slice(1, None)


def _places(stage: int) -> slice:
    """Those that a stage's phase turns: as columns before stages 0, 2, .., and as rows before the others."""
    return OF_ROWS if stage % 2 else OF_COLUMNS


class _Program:
    """Steps that rows go through: the stages of Phi, the eigenvalues, the stages undone.

    Between them they lie as tiles (B, H, m, c + 1, channels, 2); see blocks.py.
    """

    def __init__(self, x: torch.Tensor, rotations: torch.Tensor, phases: torch.Tensor, order: torch.Tensor | None):
        self.width = x.shape[-2]
        self.chunks = rotations.shape[-2:]
        self.blocks = [make_blocks(angles, x.dtype) for angles in rotations.unbind(2)]
        # (B, H, N + 1) of each stage, for the row of zeros behind the last one too.
        phases = functional.pad(phases, (0, 1))
        factors = torch.complex(phases.cos().to(x.dtype), phases.sin().to(x.dtype))
        self.of_first = factors[..., 0].unbind(2)
        # As tiles; what stands at the places of carries is turned into anything.
        self.factors = [
            functional.pad(factor[..., _places(stage)].unflatten(-1, self.chunks), (1, 0) if stage % 2 else (0, 1))
            for stage, factor in enumerate(factors.unbind(2))
        ]
        self.order = order

    def run(self, parts: list[torch.Tensor], eigenvalues: int) -> torch.Tensor:
        """Rows (B, H, N, d, 2), side by side -> (B, H, N, channels, 2); `eigenvalues` is 1, or -1 for the inverse."""
        orders = range(len(self.blocks) // 2)
        tiles = self.tiles_of(parts)
        for number in reversed(orders):
            upper, lower = 2 * number, 2 * number + 1
            if self.order is not None:
                rows = tiles[..., OF_COLUMNS, :, :].flatten(2, 3)
                tiles = self.tiles_of([_permute(rows, self.order[:, number])])
            tiles = self.there_and_back(self.turn(tiles, upper, 1), upper, lower, 1)
        tiles = self.turn(tiles, 2 * len(orders), eigenvalues)
        for number in orders:
            upper, lower = 2 * number, 2 * number + 1
            if number > 0:
                tiles = self.tiles_of([rows])
            rows = self.turn(self.there_and_back(tiles, lower, upper, -1), upper, -1, dense=True)
            if self.order is not None:
                rows = _permute(rows, self.order[:, number].argsort(-1))
        return rows

    def tiles_of(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Rows (B, H, N, d, 2), side by side -> columns, with nothing at the places of carries."""
        chunks, size = self.chunks
        width = parts[0].shape[-2]
        tiles = parts[0].new_empty(*parts[0].shape[:2], chunks, size + 1, len(parts) * width, 2)
        for number, part in enumerate(parts):
            tiles[..., OF_COLUMNS, number * width : (number + 1) * width, :] = part.unflatten(2, self.chunks)
        return tiles

    def there_and_back(self, tiles: torch.Tensor, there: int, back: int, sign: int) -> torch.Tensor:
        """O'^T exp(sign * i phase) O x for the rotations O and O' of two stages, and the phase between them."""
        between = max(there, back)
        swept = self.sweep(there, tiles.flatten(-2))
        first = self.turn_first(swept.first.unflatten(-1, (-1, 2)), between, sign)
        rows = self.turn(swept.tiles.unflatten(-1, (-1, 2)), between, sign)
        return self.sweep(back, rows.flatten(-2), first.flatten(-2)).tiles.unflatten(-1, (-1, 2))

    def sweep(self, stage: int, tiles: torch.Tensor, first: torch.Tensor | None = None) -> Swept:
        """The real rotations of a stage or, given the first row, their inverse."""
        return sweep(self.blocks[stage], tiles) if first is None else sweep_back(self.blocks[stage], tiles, first)

    def turn(self, tiles: torch.Tensor, stage: int, sign: int, dense: bool = False) -> torch.Tensor:
        """Multiply rows by exp(sign * i * phase) of theirs; `dense`: from columns to rows (B, H, N, channels, 2)."""
        factor = self.factors[stage]
        if dense:
            tiles, factor = tiles[..., OF_COLUMNS, :, :], factor[..., OF_COLUMNS]
        turned = _turned(tiles, factor, sign)
        return turned.flatten(2, 3) if dense else turned

    def turn_first(self, first: torch.Tensor, stage: int, sign: int) -> torch.Tensor:
        """The row (B, H, channels, 2) before those of all tiles likewise."""
        return _turned(first, self.of_first[stage], sign)


class _Reversal(_Program):
    """The program on states and their gradients side by side, which sums up the gradients of its tables."""

    def __init__(self, x: torch.Tensor, rotations: torch.Tensor, phases: torch.Tensor, order: torch.Tensor | None):
        super().__init__(x, rotations, phases, order)
        self.phase_gradients = [0.0] * len(self.factors)
        self.first_gradients = [0.0] * len(self.factors)
        self.matrix_gradients = [0.0] * len(self.blocks)

    def turn(self, tiles: torch.Tensor, stage: int, sign: int, dense: bool = False) -> torch.Tensor:
        """See _Program. It undoes a turn by -sign * phase, whose gradient no turn of both changes."""
        self.phase_gradients[stage] = self.phase_gradients[stage] - sign * self.of_phase(tiles)
        return super().turn(tiles, stage, sign, dense)

    def turn_first(self, first: torch.Tensor, stage: int, sign: int) -> torch.Tensor:
        """See _Program, and `turn`."""
        self.first_gradients[stage] = self.first_gradients[stage] - sign * self.of_phase(first)
        return super().turn_first(first, stage, sign)

    def of_phase(self, rows: torch.Tensor) -> torch.Tensor:
        """<i state, gradient> of each row (..., channels, 2): (...)."""
        (real, imaginary), (of_real, of_imaginary) = (part.unbind(-1) for part in rows.split(self.width, -2))
        return torch.addcmul(of_imaginary * real, of_real, imaginary, value=-1).sum(-1)

    def sweep(self, stage: int, tiles: torch.Tensor, first: torch.Tensor | None = None) -> Swept:
        """See _Program. It undoes the opposite sweep, whose gradient is the product of what that read and wrote."""
        swept = super().sweep(stage, tiles, first)
        if torch.is_grad_enabled():
            # A second derivative is made of what the sweep has read.
            tiles = tiles.clone()
        state, gradient = slice(0, 2 * self.width), slice(2 * self.width, None)
        if first is None:
            tiles[..., -1, :] = swept.carries
            product = swept.tiles[..., state] @ tiles[..., gradient].mT
        else:
            tiles[..., 0, :] = swept.carries
            product = tiles[..., gradient] @ swept.tiles[..., state].mT
        self.matrix_gradients[stage] = self.matrix_gradients[stage] + product
        return swept

    def gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of rotations and phases."""
        rotations = [angle_gradient(*pair) for pair in zip(self.blocks, self.matrix_gradients, strict=True)]
        phases = []
        for stage, (first, tiles) in enumerate(zip(self.first_gradients, self.phase_gradients, strict=True)):
            of_rows = tiles[..., _places(stage)].flatten(-2)
            phases.append(torch.cat([first[..., None], of_rows[..., :-1]], -1) if stage % 2 else of_rows)
        return torch.stack(rotations, 2).double(), torch.stack(phases, 2).double()


def _turned(rows: torch.Tensor, factor: torch.Tensor, sign: int) -> torch.Tensor:
    """Rows (..., channels, 2) times complex factors (...) or, for sign < 0, times their conjugates."""
    factor = (factor if sign > 0 else factor.conj())[..., None]
    return torch.view_as_real(torch.view_as_complex(rows) * factor)


def _permute(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Rows of x (B, H, N, channels, 2) in the order (1 or B, N)."""
    return x.gather(2, order[:, None, :, None, None].expand(x.shape))
