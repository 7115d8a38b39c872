"""Which cards multiply fp32 on tensor cores."""

import triton

from .interpreter import interpreted


def multiply_tf32() -> bool:
    """Whether the card that kernels are compiled for has tensor cores for numbers of 11 digits, from A100 on.

    Triton's interpreter computes all products alike, and counts as such a card.
    """
    if interpreted():
        return True
    target = triton.runtime.driver.active.get_current_target()
    return target.backend == "cuda" and target.arch >= 80
