"""Rows in blocks beside all that is within reach of them: what attention to neighbours costs is linear in N."""

from typing import NamedTuple

import torch
from torch.nn import functional

# Rows that are computed together, unless the reach is wider: fewer would make small matrix products.
SMALLEST_BLOCK = 32


class Windows(NamedTuple):
    """C blocks of `size` rows; each sees itself and `outside` >= reach rows on either side, unless it is the only one.

    Args:
        positions: N.
        reach: positions between a row and the farthest that it looks at.
        size: rows of a block.
        outside: rows before a block, and behind it, that are laid beside it.
    """

    positions: int
    reach: int
    size: int
    outside: int

    @classmethod
    def over(cls, positions: int, reach: int) -> "Windows":
        """The windows over N >= 1 positions. An N that stands for any (torch.export) has blocks whatever it is."""
        size, stands_for_any = max(reach, SMALLEST_BLOCK), isinstance(positions, torch.SymInt)
        if not stands_for_any and positions <= size + 2 * reach:  # one block that sees itself costs no more
            return cls(positions, reach, positions, 0)
        return cls(positions, reach, size, reach)

    @property
    def blocks(self) -> int:
        """C."""
        return (self.positions + self.size - 1) // self.size

    @property
    def missing(self) -> int:
        """Rows that the last block lacks."""
        return self.blocks * self.size - self.positions

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """(B, H, N, d) -> (B, H, C, size, d), zero past the end."""
        return functional.pad(x, (0, 0, 0, self.missing)).unflatten(2, (self.blocks, self.size))

    def around(self, x: torch.Tensor) -> torch.Tensor:
        """(B, H, N, d) -> (B, H, C, size + 2 outside, d), zero before the beginning and past the end."""
        rows = self.rows(x)
        return _Around.apply(rows, self.outside) if self.outside else rows

    def around_flags(self, x: torch.Tensor, fill: int = 0) -> torch.Tensor:
        """(B, N) flags or ids -> (B, C, size + 2 outside), `fill` before the beginning and past the end."""
        beyond = self.size if self.outside else 0
        rows = functional.pad(x, (beyond, self.missing + beyond), value=fill).unflatten(1, (-1, self.size))
        if not self.outside:
            return rows
        # Not by unfold, of which torch.onnx makes one of a constant length.
        return torch.cat([rows[:, :-2, -self.outside :], rows[:, 1:-1], rows[:, 2:, : self.outside]], 2)

    def distance(self, device: torch.device) -> torch.Tensor:
        """Position of what lies around a block minus that of each of its rows: (size, size + 2 outside)."""
        row = torch.arange(self.size, device=device)[:, None]
        return torch.arange(-self.outside, self.size + self.outside, device=device) - row

    def join(self, x: torch.Tensor) -> torch.Tensor:
        """(B, H, C, size, d) -> (B, H, N, d)."""
        return x.flatten(2, 3)[:, :, : self.positions]


class _Around(torch.autograd.Function):
    """Blocks (B, H, C, size, d), each between `outside` rows of the one before and of the next one.

    Not by unfold: what torch.compile makes of its derivative for CPUs writes beyond its result (torch 2.13).
    """

    @staticmethod
    def forward(ctx, rows: torch.Tensor, outside: int) -> torch.Tensor:
        ctx.outside = outside
        before = functional.pad(rows[:, :, :-1, -outside:], (0, 0, 0, 0, 1, 0))
        behind = functional.pad(rows[:, :, 1:, :outside], (0, 0, 0, 0, 0, 1))
        return torch.cat([before, rows, behind], 3)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        outside = ctx.outside
        of_rows = gradient[:, :, :, outside:-outside].clone(memory_format=torch.contiguous_format)
        of_rows[:, :, :-1, -outside:] += gradient[:, :, 1:, :outside]
        of_rows[:, :, 1:, :outside] += gradient[:, :, :-1, -outside:]
        return of_rows, None
