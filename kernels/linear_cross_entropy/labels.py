"""Labels of rows of logits."""

import torch

# Label of a row that does not count, by the convention of torch and transformers.
IGNORED_LABEL = -100


def refuse_other_labels(labels: torch.Tensor, count: int) -> None:
    """Raise IndexError unless each is one of `count` words, or IGNORED_LABEL. The host reads them."""
    if ((labels != IGNORED_LABEL) & ((labels < 0) | (labels >= count))).any():
        raise IndexError(f"a label is out of bounds; allowed: 0 .. {count - 1}, and {IGNORED_LABEL}")
