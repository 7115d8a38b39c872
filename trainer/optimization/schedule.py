"""Learning rate as a pure function of the step: nothing to save, nothing that a resume could lose."""

import math

from ..settings.sections import OptimSection

# Shares of optim.lr after the warm-up, by schedule, from (share of the fall that remains, steps of the warm-up, step).
_SHARES = {
    "linear": lambda remaining, warmup, step: remaining,
    "cosine": lambda remaining, warmup, step: 0.5 * (1.0 - math.cos(math.pi * remaining)),
    "constant": lambda remaining, warmup, step: 1.0,
    "inverse_sqrt": lambda remaining, warmup, step: math.sqrt(max(1, warmup) / step),
    "wsd": lambda remaining, warmup, step: 1.0 - math.sqrt(1.0 - remaining),
}


def learning_rate(optim: OptimSection, step: int) -> float:
    """Learning rate of optimizer step number `step` (1-based), in [0, optim.lr].

    All schedules rise linearly over the warm-up. Then `constant` stays; `linear` and `cosine` fall to 0 at `max_steps`;
    `inverse_sqrt` falls as sqrt(max(1, warm-up) / step); `wsd` stays until the last `decay_share` of the steps, over
    which it falls to 0 as 1 - sqrt(share of them that is done), the shape that Hägele et al. 2024 (arXiv 2405.18392,
    section 3) find to be better than a line.
    """
    warmup = optim.steps_of_warmup
    if step <= warmup:
        return optim.lr * step / warmup
    # The last step still learns: the rate would reach 0 one step after it.
    remaining = (optim.max_steps + 1 - step) / (optim.max_steps + 1 - optim.steps_before_fall)
    remaining = min(1.0, max(0.0, remaining))
    return optim.lr * _SHARES[optim.schedule](remaining, warmup, step)
