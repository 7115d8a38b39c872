"""A run file for a command."""

import pytest


@pytest.fixture
def run_file(run_values, write_run_file, tmp_path):
    """run_file(**changes) -> path of a tiny run file."""
    return lambda **changes: write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", **changes))
