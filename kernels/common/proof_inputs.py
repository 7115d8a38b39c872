"""What the inputs of proofs (proving.py) have in common: sizes, lengths, documents."""

import torch


def specialised(size: int) -> int:
    """A size of the same class: 1, a multiple of 16, or neither; the latter two fill a block of 64 and some more.

    Programs whose blocks do not depend on a size are compiled for its class: a call and its proof share them.
    """
    if size == 1:
        return 1
    return 80 if size % 16 == 0 else 70


def ragged(batch: int, positions: int) -> torch.Tensor:
    """Lengths (B,) int64: all positions, none, and in samples behind these two about two thirds of them."""
    lengths = torch.full((batch,), positions * 2 // 3)
    lengths[:1], lengths[1:2] = positions, 0
    return lengths


def dtypes_of(dtype: torch.dtype, *tensors: torch.Tensor | None) -> tuple[torch.dtype, ...]:
    """Those of tensors that are not all of one dtype, for the `dtypes` of a form; none where they are."""
    found = tuple(tensor.dtype for tensor in tensors if tensor is not None)
    return () if all(each == dtype for each in found) else found


def documents(batch: int, positions: int, generator: torch.Generator) -> torch.Tensor:
    """Document ids (B, N) int64: a document begins at every tenth row or so, and ids return.

    That in the middle of the first sample is longer than pieces of rows, into which programs may cut heads.
    """
    begins = torch.rand(batch, positions, generator=generator) < 0.1
    begins[:1, positions // 4 : positions * 7 // 8] = False
    return begins.cumsum(1) % 3 - 1
