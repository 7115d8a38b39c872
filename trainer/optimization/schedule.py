"""Learning rate as a pure function of the step: nothing to save, nothing that a resume could lose."""

import math

from ..settings.sections import OptimSection

# Shares of optim.lr after the warm-up, by schedule, from (share of the run that remains, warmup_steps, step).
_SHARES = {
    "linear": lambda remaining, warmup, step: remaining,
    "cosine": lambda remaining, warmup, step: 0.5 * (1.0 - math.cos(math.pi * remaining)),
    "constant": lambda remaining, warmup, step: 1.0,
    "inverse_sqrt": lambda remaining, warmup, step: math.sqrt(max(1, warmup) / step),
}


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
    return optim.lr * _SHARES[optim.schedule](remaining, optim.warmup_steps, step)
