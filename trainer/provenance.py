"""What a run was made with: versions, commit and local changes."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = (
    "longmix",
    "torch",
    "deepspeed",
    "accelerate",
    "transformers",
    "tokenizers",
    "sentencepiece",
    "datasets",
    "pyarrow",
    "numpy",
    "PyWavelets",
    "triton",
)
LONGEST_DIFF = 200_000


def versions() -> dict[str, str]:
    """Version of Python and of each package that is installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def provenance() -> dict[str, Any]:
    """Versions, and the commit and uncommitted changes of the checkout that longmix runs from (null if installed)."""
    source = Path(__file__).resolve().parent
    commit = _git(source, "rev-parse", "HEAD") if (source.parent / ".git").exists() else None
    diff = _git(source.parent, "diff", "HEAD") if commit else None
    if diff is not None and len(diff) > LONGEST_DIFF:
        diff = diff[:LONGEST_DIFF] + "\n[cut]\n"
    return {"versions": versions(), "git_commit": commit, "git_diff": diff}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    # A diff may hold bytes that are no UTF-8.
    return result.stdout.decode(errors="replace").strip()
