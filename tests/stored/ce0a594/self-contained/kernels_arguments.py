# Part of longmix 0.1.0, longmix.kernels.arguments. Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0.
# Changed by longmix export: its imports.
"""Integer arguments: what every operation takes, whatever implementation runs it.

Lengths, permutations, offsets and document ids are tensors of any integer dtype and memory layout. They come to the
implementations as contiguous int64 on the device of the values, lengths in 0 .. N; no host waits for a GPU for it.
"""

import operator

import torch

# bool counts as a mistake (a mask in place of lengths), and not all of uint64 fits into int64.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32)


def as_integers(name: str, tensor: torch.Tensor, device: torch.device, *shapes: tuple[int, ...]) -> torch.Tensor:
    """`tensor`, of one of the given shapes and an integer dtype, as contiguous int64 on `device`.

    Raises:
        ValueError: it is none of these; the message begins with `name`.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name} is of type {type(tensor).__name__}; allowed: a tensor of integers")
    # Not `tuple(tensor.shape) in shapes`, which torch.compile finds false where sizes are symbols.
    if not any(tensor.dim() == len(shape) and all(map(operator.eq, tensor.shape, shape)) for shape in shapes):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; allowed: {' or '.join(map(str, shapes))}")
    if tensor.dtype not in INTEGERS:
        raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: {', '.join(map(str, INTEGERS))}")
    return tensor.to(device, torch.int64).contiguous()


def as_lengths(lengths: torch.Tensor | None, batch: int, positions: int, device: torch.device) -> torch.Tensor | None:
    """Valid positions of each sample, (B,) int64, as `as_integers`, clamped to 0 .. N; None stays None."""
    return None if lengths is None else as_integers("lengths", lengths, device, (batch,)).clamp(0, positions)


def as_documents(
    document_ids: torch.Tensor | None, batch: int, positions: int, device: torch.device
) -> torch.Tensor | None:
    """The document of each position, (B, N), as `as_integers`; None stays None."""
    return None if document_ids is None else as_integers("document_ids", document_ids, device, (batch, positions))


def check_permutation(permutation: torch.Tensor, positions: int) -> None:
    """Raise ValueError unless each (..., N) holds each of 0 .. N - 1, N > 0, once. The host reads them."""
    lowest, highest = (int(bound) for bound in permutation.aminmax())
    if lowest < 0 or highest >= positions:
        wrong = lowest if lowest < 0 else highest
        raise ValueError(f"permutation holds row {wrong}; allowed: 0 .. {positions - 1}")
    missing = torch.ones_like(permutation, dtype=torch.bool).scatter_(-1, permutation, False)
    if missing.any():
        row = int(missing.nonzero()[0, -1])
        raise ValueError(f"permutation lacks row {row} and holds another one twice; allowed: each of 0 .. N - 1 once")
