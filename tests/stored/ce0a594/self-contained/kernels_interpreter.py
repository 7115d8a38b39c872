# Part of longmix 0.1.0, longmix.kernels.interpreter. Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0.
# Changed by longmix export: its imports.
"""Whether Triton interprets its kernels, which needs no GPU."""

import os


def interpreted() -> bool:
    """Triton decides by the same environment variable when it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"
