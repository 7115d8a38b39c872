"""The provenance of a run: versions, commit and local changes."""

import importlib.metadata
import os
import platform
import re
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
HIDDEN = "[hidden]"
_SECRET_NAME = r"[A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|KEY)[A-Z0-9_]*"
# Of the hub, GitHub, GitLab, AWS, Slack, and what calls itself a secret key.
_KNOWN_SECRET = re.compile(
    r"hf_\w{16,}|gh[a-z]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|AKIA\w{12,}|xox[a-z]-[\w-]{10,}|sk-[\w-]{16,}"
)
# As in a shell or a service file, and in a URL.
_ASSIGNED = re.compile(rf"\b({_SECRET_NAME}\s*=\s*)[^\s$]\S*")
_IN_URL = re.compile(r"(://)[^/\s:@]+:[^/\s@]+(?=@)")
_SHORTEST_SECRET = 6


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
    repository = Path(__file__).resolve().parents[2]
    commit = _git(repository, "rev-parse", "HEAD") if (repository / ".git").exists() else None
    diff = _git(repository, "diff", "HEAD") if commit else None
    if diff is not None and len(diff) > LONGEST_DIFF:
        diff = diff[:LONGEST_DIFF] + "\n[cut]\n"
    if diff is not None:
        diff = without_secrets(diff)
    return {"versions": versions(), "git_commit": commit, "git_diff": diff}


def without_secrets(text: str) -> str:
    """A text for others to read, without what the environment keeps secret, and without what looks like a secret."""
    for name, value in os.environ.items():
        if re.fullmatch(_SECRET_NAME, name.upper()) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, HIDDEN)
    text = _KNOWN_SECRET.sub(HIDDEN, text)
    text = _ASSIGNED.sub(rf"\1{HIDDEN}", text)
    return _IN_URL.sub(rf"\1{HIDDEN}", text)


def holds_password(url: str) -> bool:
    """Whether a URL tells a user's name and password."""
    return _IN_URL.search(url) is not None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    # A diff may hold bytes that are no UTF-8.
    return result.stdout.decode(errors="replace").strip()
