"""Ranks on a network file system see late what another has made or renamed: it is the same run."""

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.processes import shared_files

LAG = 0.3


@pytest.mark.slow
@pytest.mark.full
def test_what_others_see_late_changes_nothing(forked_ranks, run_values, write_data, read_metrics, untimed, tmp_path):
    """Two ranks save, change a key, resume as it was and converted, read the test set, and publish."""
    write_data(tmp_path / "test", 20, 3, split="test")
    weights, records = [], []
    for name, slow in (("at once", {}), ("late", {"slow": {"notes": str(tmp_path / "notes"), "lag": LAG}})):
        folder = tmp_path / name
        common = {
            "data.test": str(tmp_path / "test"),
            "checkpoint.best": {"metric": "loss", "mode": "min"},
            "checkpoint.asynchronous": True,
            "checkpoint.max_failures": 0,
            "optim.max_steps": 5,
            "precision": "bf16",
        }
        phases = (
            {"deepspeed": "zero1", "run.stop_at_step": 2},
            {"deepspeed": "zero1", "run.stop_at_step": 3, "optim.lr": 4e-3, "run.allow_changes": ["optim.lr"]},
            {"deepspeed": "zero2", "optim.lr": 4e-3},
        )
        for phase in phases:
            (report,) = forked_ranks.run(2, [{"values": run_values(folder, **common, **phase), **slow}])
            assert report.get("code") == (75 if "run.stop_at_step" in phase else 0), (name, phase, str(report))
        weights.append((folder / "model" / "model.safetensors").read_bytes())
        records.append(untimed(read_metrics(folder)))
    assert weights[0] == weights[1] and records[0] == records[1]


def test_what_is_not_seen_in_time_is_told(world, tmp_path, monkeypatch):
    monkeypatch.setattr(shared_files, "PATIENCE_SECONDS", 0.0)
    shared_files.see_together(world, tmp_path)
    with pytest.raises(
        UserError, match=r"away: \S+ does not see in 0 s .*: run\.dir must lie where all hosts share it"
    ):
        shared_files.see_together(world, tmp_path / "away")
