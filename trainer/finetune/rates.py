"""The learning rate where none is given."""

# BERT-base's, at its width: rates that do well fall as models grow wider, about as 1 / width.
DEFAULT_LEARNING_RATE, ITS_WIDTH = 5e-5, 768


def default_learning_rate(width: int | None, is_relative: bool) -> float:
    """Peak learning rate for a model of hidden size `width`: 5e-5 at 768, in inverse proportion elsewhere; 5e-5 for a
    model that does not say its width. Half of it where rates are relative to the weights, which are then rarely the
    small ones that it is made for (measured: docs/learning.md).
    """
    rate = DEFAULT_LEARNING_RATE if width is None else DEFAULT_LEARNING_RATE * ITS_WIDTH / width
    # In six digits, as it is shown: the same number as if it were given.
    return float(f"{rate / 2 if is_relative else rate:.6g}")
