"""Learning rate as a pure function of the step: nothing to save, nothing that a resume could lose."""

import math

from ..settings.configuration import OptimSection


def learning_rate(optim: OptimSection, step: int) -> float:
    """Learning rate of optimizer step number `step` (1-based), in [0, optim.lr].

    All schedules rise linearly over `warmup_steps`. Then `constant` stays; `linear` and `cosine` fall to 0 at
    `max_steps`; `inverse_sqrt` falls as sqrt(max(1, warmup_steps) / step).
    """
    if step <= optim.warmup_steps:
        return optim.lr * step / optim.warmup_steps
    # The last step still learns: the rate would reach 0 one step after it.
    remaining = (optim.max_steps + 1 - step) / (optim.max_steps + 1 - optim.warmup_steps)
    remaining = min(1.0, max(0.0, remaining))
    if optim.schedule == "linear":
        return optim.lr * remaining
    if optim.schedule == "cosine":
        return optim.lr * 0.5 * (1.0 - math.cos(math.pi * remaining))
    if optim.schedule == "inverse_sqrt":
        return optim.lr * math.sqrt(max(1, optim.warmup_steps) / step)
    return optim.lr
