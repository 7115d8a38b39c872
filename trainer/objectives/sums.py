"""The three sums that every objective gives beside its loss."""

import math
from typing import NamedTuple


class Sums(NamedTuple):
    """Sums over labelled positions or samples, of one step or of several.

    Attributes:
        loss: of their losses.
        hits: of right answers; of absolute errors where the objective forecasts.
        items: how many positions or samples these are.
    """

    loss: float
    hits: float
    items: float

    @property
    def mean_loss(self) -> float:
        """NaN without items."""
        return self.loss / self.items if self.items else math.nan

    @property
    def hit_rate(self) -> float:
        """NaN without items."""
        return self.hits / self.items if self.items else math.nan
