"""Triton's interpreter, which runs kernels without a GPU."""

import os


def interpreted() -> bool:
    """True if kernels are interpreted: Triton decides by the same environment variable when it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"
