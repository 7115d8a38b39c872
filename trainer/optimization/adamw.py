"""AdamW whose steps are guarded."""

import torch

from .optimizer import GuardedOptimizer


class GuardedAdamW(GuardedOptimizer, torch.optim.AdamW):
    """AdamW that clips, and drops a step whose gradient norm is not finite or that its guard refuses."""

    drops_on_device = True
