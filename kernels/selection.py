"""Which implementation of an operation runs.

The environment variable LONGMIX_KERNELS = auto | reference | portable overrides the choice.
"""

import os
from collections.abc import Callable

import torch

ENVIRONMENT_VARIABLE = "LONGMIX_KERNELS"
CHOICES = ("auto", "reference", "portable")
OPERATIONS = (
    "feature_attention",
    "givens_mix",
    "lifting_analysis",
    "lifting_synthesis",
    "linear_attention",
    "link_mix",
    "spectral_filter",
    "wavelet_analysis",
    "wavelet_synthesis",
)


def implementation(operation: str, device: torch.device | str) -> str:
    """Name of the implementation that `operation` runs on `device`: "reference" or "portable".

    Raises:
        ValueError: unknown operation, or LONGMIX_KERNELS has a value that is not one of `CHOICES`.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"operation {operation!r} is unknown; allowed: {', '.join(OPERATIONS)}")
    torch.device(device)
    choice = os.environ.get(ENVIRONMENT_VARIABLE, "auto")
    if choice not in CHOICES:
        raise ValueError(f"{ENVIRONMENT_VARIABLE} is {choice!r}; allowed: {', '.join(CHOICES)}")
    return "portable" if choice == "auto" else choice


def select(operation: str, device: torch.device, implementations: dict[str, Callable]) -> Callable:
    """The one of `implementations`, by name, that `operation` runs on `device`."""
    return implementations[implementation(operation, device)]
