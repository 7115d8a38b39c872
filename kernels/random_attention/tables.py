"""Biases of places: a table for queries and one for keys, made of waves, which need less memory."""

import torch

PLACES = 512  # that one product sums up backward


def tables_of(waves: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Waves (1 or B, 1 or H, P, w) by columns (2, H, w, m): (1 or B, 2, H, P, m), contiguous."""
    return waves.unsqueeze(1) @ columns


def gradients_of(
    tables: torch.Tensor, waves: torch.Tensor, columns: torch.Tensor, needed: tuple[bool, bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of waves and columns, each where it is needed, from that of their tables.

    Those of columns are sums over parts of the places: one product over all of them, for each head, would leave a GPU
    idle.
    """
    of_waves = of_columns = None
    if needed[0]:
        of_waves = (tables @ columns.mT).sum(1).sum_to_size(waves.shape)
    if needed[1]:
        parts = waves.shape[2] // PLACES
        waves = waves.unsqueeze(1)
        if parts > 1 and waves.shape[3] % PLACES == 0:
            waves, tables = (x.unflatten(3, (parts, PLACES)) for x in (waves, tables))
            of_columns = (waves.mT @ tables).sum((0, 3))
        else:
            of_columns = (waves.mT @ tables).sum_to_size(1, *columns.shape).squeeze(0)
    return of_waves, of_columns
