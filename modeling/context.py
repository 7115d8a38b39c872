"""The part of a batch that mixers read beside the hidden states."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch.nn import functional

from .masking import right_padded


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

    Attributes:
        lengths: (B,) int64, the numbers n_b of valid tokens; None: all N.
    """

    mask: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None
    embeddings: torch.Tensor | None = None
    coordinates: torch.Tensor | None = None
    documents: Segments | None = None
    lengths: torch.Tensor | None = field(init=False)
    _of_mask: list[Segments] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self):
        object.__setattr__(self, "lengths", None if self.mask is None else self.mask.sum(1))

    @property
    def segments(self) -> Segments | None:
        """The batch as segments, some perhaps empty; None where they are not known without waiting for the device."""
        if self.documents is not None or self.document_ids is not None or self.mask is None:
            return self.documents
        if torch.compiler.is_compiling():
            return self._segments_of_mask()  # the compiler makes equal ones once, and may not see a list change
        if not self._of_mask:
            self._of_mask.append(self._segments_of_mask())
        return self._of_mask[0]

    def _segments_of_mask(self) -> Segments:
        batch, positions = self.mask.shape
        starts = torch.arange(0, batch * positions, positions, device=self.mask.device)
        cuts = functional.pad(self.lengths.unsqueeze(1), (1, 0)) + starts.unsqueeze(1)
        return Segments(functional.pad(cuts.flatten(), (0, 1), value=batch * positions).int(), positions)

    def checked(self) -> "BatchContext":
        """The same batch, its mask of any dtype made bool. Waits for the device.

        Raises:
            ValueError: a mask that is not right-padded.
        """
        return replace(self, mask=right_padded(self.mask))
