"""The part of a batch that mixers read beside the hidden states."""

from dataclasses import dataclass, field, replace

import torch

from .masking import right_padded


@dataclass(frozen=True)
class BatchContext:
    """A batch around its hidden states (B, N, D): made once in each forward pass, handed to every block and mixer.

    One mixer by itself is called as mixer(x, BatchContext(mask)).

    Args:
        mask: (B, N) bool, true on the first n_b positions of sample b; None: all valid.
        document_ids: (B, N) int64, a run of equal ids is one packed document; None: one document a row.
        embeddings: (B, N, D), what entered the first block.
        coordinates: (B, N, l), positions of the tokens in l dimensions.

    Attributes:
        lengths: (B,) int64, the numbers n_b of valid tokens; None: all N.
    """

    mask: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None
    embeddings: torch.Tensor | None = None
    coordinates: torch.Tensor | None = None
    lengths: torch.Tensor | None = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "lengths", None if self.mask is None else self.mask.sum(1))

    def checked(self) -> "BatchContext":
        """The same batch, its mask of any dtype made bool. Waits for the device.

        Raises:
            ValueError: a mask that is not right-padded.
        """
        return replace(self, mask=right_padded(self.mask))
