"""How much memory there is, where a container or a job of a cluster may have a part of it."""

import pytest

from longmix.trainer.samples import host_memory


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """groups(own, {path: limit}): what the system would say of the groups of this process."""
    monkeypatch.setattr(host_memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(host_memory, "OWN_CGROUPS", tmp_path / "own")

    def make(own, limits):
        if own is not None:
            (tmp_path / "own").write_text(own)
        for path, limit in limits.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(f"{limit}\n")
        return host_memory.host_memory()

    return make


@pytest.mark.parametrize(
    ("own", "limits", "memory"),
    [
        ("0::/slurm/job_7/step_0\n", {"slurm/job_7/memory.max": 4096, "slurm/job_7/step_0/memory.max": "max"}, 4096),
        ("4:memory:/slurm/job_7\n0::/\n", {"memory/slurm/job_7/memory.limit_in_bytes": 8192}, 8192),
        ("0::/not/seen/here\n", {"memory.max": 2048}, 2048),
        (None, {"memory/memory.limit_in_bytes": 1024}, 1024),
    ],
    ids=["a job", "a job, groups of version 1", "a container", "nothing known of groups"],
)
def test_it_is_that_of_the_group_of_this_process(groups, own, limits, memory):
    assert groups(None, {}) > 2**20
    assert groups(own, limits) == memory


def test_what_is_free_is_no_more_than_this_process_may_have(groups, monkeypatch, tmp_path):
    assert 2**20 < host_memory.free_memory() < host_memory.host_memory()
    groups("0::/job\n", {"job/memory.max": 4096})
    assert host_memory.free_memory() == 4096
    monkeypatch.setattr(host_memory, "MACHINE", tmp_path / "nothing")
    assert host_memory.free_memory() == 4096
