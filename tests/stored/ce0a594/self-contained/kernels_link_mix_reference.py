# Part of longmix 0.1.0, longmix.kernels.link_mix.reference. Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0.
# Changed by longmix export: its imports.
"""Paramixer's factors, written out as matrices in float64."""

import torch


def link_mix(
    value: torch.Tensor,
    weights: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    wrap: bool,
    document_ids: torch.Tensor | None,
) -> torch.Tensor:
    """See `longmix.kernels.ops.link_mix`; one (n, n) matrix for each factor of each document."""
    positions = value.shape[1]
    samples = []
    for row in range(value.shape[0]):
        valid = positions if lengths is None else int(lengths[row])
        ids = None if document_ids is None else document_ids[row, :valid].tolist()
        pieces = []
        for start, end in documents(valid, ids):
            mixed = value[row, start:end].double()
            for factor in range(weights.shape[2]):
                links = weights[row, start:end, factor].double()
                matrix = factor_matrix(links, offsets[factor].tolist(), wrap)
                mixed = mixed + matrix @ mixed
            pieces.append(mixed)
        padding = value.new_zeros(positions - valid, value.shape[2], dtype=torch.float64)
        # A sample without valid rows belongs to the graph, too.
        samples.append(torch.cat([value[row, :0].double(), *pieces, padding]))
    return (torch.stack(samples) if samples else value.double()).to(value.dtype)


def documents(valid: int, ids: list[int] | None) -> list[tuple[int, int]]:
    """(start, end) of each run of equal ids among the valid positions."""
    starts = [i for i in range(valid) if i == 0 or (ids is not None and ids[i] != ids[i - 1])]
    return list(zip(starts, [*starts, valid][1:], strict=True))


def factor_matrix(links: torch.Tensor, offsets: list[int], wrap: bool) -> torch.Tensor:
    """Weights (n, K) of one document -> W (n, n), without the identity."""
    count = links.shape[0]
    row = torch.arange(count, device=links.device)[:, None]
    column = row + torch.tensor(offsets, dtype=torch.int64, device=links.device)
    kept = (column >= 0) & (column < count) | wrap
    place = row.expand_as(column)[kept], column[kept] % count
    return links.new_zeros(count, count).index_put(place, links[kept], accumulate=True)
