"""What LONGMIX_KERNELS asks for; kernels/selection.py says what it means."""

import os

ENVIRONMENT_VARIABLE = "LONGMIX_KERNELS"
CHOICES = ("auto", "reference", "portable", "cpu", "triton")


def asked_by_environment() -> str:
    """One of CHOICES. Raises ValueError for another value."""
    choice = os.environ.get(ENVIRONMENT_VARIABLE) or "auto"
    if choice not in CHOICES:
        raise ValueError(f"{ENVIRONMENT_VARIABLE} is {choice!r}; allowed: {', '.join(CHOICES)}")
    return choice
