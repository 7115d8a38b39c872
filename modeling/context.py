"""The part of a batch that mixers read beside the hidden states."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from longmix.kernels.common.documents import document_begins

from .masking import right_padded
from .rotary import Rotation, make_rotation, positions_in_documents

Made = TypeVar("Made")


class Segments(NamedTuple):
    """Runs of positions that see only themselves; they cover all B N positions of a right-padded batch, row by row.

    Each row's padding is a segment of its own.

    Args:
        offsets: (S + 1,) int32, where each segment begins, and B N.
        longest: positions of the longest segment, or more, at most N; it is known without waiting for the device.
    """

    offsets: torch.Tensor
    longest: int


@dataclass(frozen=True)
class BatchContext:
    """A batch around its hidden states (B, N, D): made once in each forward pass, handed to every block and mixer.

    One mixer by itself is called as mixer(x, BatchContext(mask)).

    Args:
        mask: (B, N) bool, true on the first n_b positions of sample b; None: all valid.
        document_ids: (B, N) int64, a run of equal ids is one packed document; None: one document a row.
        embeddings: (B, N, D), what entered the first block.
        coordinates: (B, N, l), positions of the tokens in l dimensions.
        documents: the segments that mask and document_ids make, where the caller knows them.
        shared: what has been made of the batch for this layer beside the others, see Mixer.shared_module and
            Mixer.share; None: a layer makes it itself.

    Attributes:
        lengths: (B,) int64, the numbers n_b of valid tokens; None: all N.
    """

    mask: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None
    embeddings: torch.Tensor | None = None
    coordinates: torch.Tensor | None = None
    documents: Segments | None = None
    shared: tuple[torch.Tensor, ...] | None = None
    lengths: torch.Tensor | None = field(init=False)
    _found: list[Segments] = field(init=False, repr=False, compare=False, default_factory=list)
    _made: dict[tuple, object] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "lengths", None if self.mask is None else self.mask.sum(1))

    def with_shared(self, shared: tuple[torch.Tensor, ...]) -> "BatchContext":
        """The context of a layer for which this has been made; what is found out about the batch, all layers know."""
        context = copy.copy(self)
        object.__setattr__(context, "shared", shared)
        return context

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "BatchContext":
        """The same batch on another device: a model's layers may lie on several (accelerate's `device_map`)."""

        def moved(value):
            if isinstance(value, torch.Tensor):
                return value.to(device, non_blocking=non_blocking)
            if not isinstance(value, tuple) or all(moved(part) is part for part in value):
                return value
            parts = map(moved, value)
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)

        given = [getattr(self, one.name) for one in fields(self) if one.init]
        found = [moved(value) for value in given]
        is_there = all(one is other for one, other in zip(given, found, strict=True))
        return self if is_there else BatchContext(*found)  # what was found out lies on the other device

    @property
    def segments(self) -> Segments | None:
        """The batch as segments, some perhaps empty; None where there are none, or they cannot be found.

        Documents that the caller does not know as segments are searched: once in a forward pass, which waits for the
        device once. That cannot be compiled, nor recorded as a CUDA graph.
        """
        if self.documents is not None or (self.document_ids is None and self.mask is None):
            return self.documents
        is_compiled = torch.compiler.is_compiling()
        if self.document_ids is not None and (is_compiled or not _can_wait(self.document_ids)):
            return None
        if is_compiled:
            return self._segments_of_mask()  # the compiler makes equal ones once, and may not see a list change
        if not self._found:
            self._found.append(self._segments_of_mask() if self.document_ids is None else self._segments_of_documents())
        return self._found[0]

    def _segments_of_documents(self) -> Segments:
        batch, positions = self.document_ids.shape
        begins = document_begins(self.document_ids)
        within = torch.arange(positions, device=begins.device)
        if self.mask is not None:
            # Past the first padding position nothing begins.
            end = self.lengths.unsqueeze(1)
            begins = (begins & (within < end)) | (within == end)
        longest = (within - torch.where(begins, within, 0).cummax(1).values).max() + 1
        begins = begins.flatten()
        count, longest = torch.stack([begins.sum(), longest]).tolist()
        # The others share a place behind the last.
        places = torch.where(begins, begins.cumsum(0) - 1, count)
        flat = torch.arange(batch * positions, device=begins.device, dtype=torch.int32)
        offsets = flat.new_empty(count + 1).scatter_(0, places, flat)
        return Segments(functional.pad(offsets[:count], (0, 1), value=batch * positions), longest)

    def _segments_of_mask(self) -> Segments:
        return segments_of_rows([self.mask.shape], [self.lengths], self.mask.device)

    def rotation(self, heads: torch.Tensor, theta: float) -> Rotation:
        """Rotary angles for heads (B, N, ..., d) of the batch; positions begin anew with each document.

        Never kept longer than a forward pass: not in a buffer that a checkpoint would hold.
        """
        key = (heads.shape[1], heads.shape[-1], theta, heads.dtype)
        return self.once(("rotation", *key), lambda: self._make_rotation(heads, *key))

    def once(self, key: tuple, make: Callable[[], Made]) -> Made:
        """What `make` returns, made for the first layer of a forward pass that asks, and kept for the others."""
        if torch.compiler.is_compiling():
            return make()  # as with segments
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _make_rotation(self, heads: torch.Tensor, length: int, size: int, theta: float, dtype: torch.dtype) -> Rotation:
        positions = positions_in_documents(self.document_ids, length, heads.device)
        return make_rotation(positions, size, theta, dtype)

    def checked(self) -> "BatchContext":
        """The same batch, its mask of any dtype made bool. Waits for the device.

        Raises:
            ValueError: a mask that is not right-padded.
        """
        return replace(self, mask=right_padded(self.mask))


def segments_of_rows(
    shapes: Sequence[tuple[int, int]], lengths: Sequence[torch.Tensor | None], device: torch.device
) -> Segments:
    """The segments of right-padded stacks, one behind the other: each sample's valid rows, and its padding.

    Args:
        shapes: of each stack, (samples, rows).
        lengths: valid rows of its samples, (samples,) int64; None: all, which are one segment.
    """
    offsets, begin = [], 0
    for (samples, rows), valid in zip(shapes, lengths, strict=True):
        starts = begin + rows * torch.arange(samples, device=device)
        if valid is not None:
            starts = (functional.pad(valid.unsqueeze(1), (1, 0)) + starts.unsqueeze(1)).flatten()
        offsets.append(starts)
        begin += samples * rows
    offsets.append(torch.arange(begin, begin + 1, device=device))  # a number in `pad` would fix the batch of a graph
    return Segments(torch.cat(offsets).int(), max(rows for _, rows in shapes))


def _can_wait(tensor: torch.Tensor) -> bool:
    """Whether the host may ask for values of a tensor: not for pretended ones, nor while a CUDA graph is recorded."""
    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        return False
    return not (tensor.is_cuda and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
