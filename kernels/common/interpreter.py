"""Whether Triton interprets its kernels, which needs no GPU."""

import os


def interpreted() -> bool:
    """Triton decides by the same environment variable when it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"
