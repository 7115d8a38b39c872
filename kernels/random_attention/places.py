"""Places of tokens in a table that all samples share."""

import torch


class Places:
    """Which row of a table each token reads.

    Layers share it: the order of the tokens by their places, a sort, is made for the first that asks.

    Args:
        positions: (B, N) int64, in 0 .. count - 1.
        count: P, rows of the table.
    """

    def __init__(self, positions: torch.Tensor, count: int):
        self.positions = positions.contiguous()
        self.count = count
        self._order: tuple[torch.Tensor, torch.Tensor] | None = None

    def order(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens by their places, (B N,), and where those of each place begin, (P + 1,): int64."""
        if torch.compiler.is_compiling():
            return self._sorted()  # the compiler makes equal ones once, and may not see an attribute change
        if self._order is None:
            self._order = self._sorted()
        return self._order

    def _sorted(self) -> tuple[torch.Tensor, torch.Tensor]:
        ordered, order = self.positions.flatten().sort(stable=True)
        starts = torch.searchsorted(ordered, torch.arange(self.count + 1, device=ordered.device))
        return order, starts
