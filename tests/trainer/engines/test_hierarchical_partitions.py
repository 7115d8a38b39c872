"""ZeRO stage 3 with a copy of the parameters in each host (hpZ, Wang et al. 2023, ZeRO++ section 3.2)."""

import json

import numpy as np
import pytest

from longmix.trainer.settings import deepspeed_file

RARE = {"eval.every_steps": 1000, "checkpoint.every_steps": 1000, "optim.max_steps": 8}


@pytest.fixture
def own_file(tmp_path):
    """DeepSpeed's file for stage 3, with a copy for every two ranks."""
    values = deepspeed_file.read("zero3")
    values["zero_optimization"] |= {"zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0}
    path = tmp_path / "own.json"
    path.write_text(json.dumps(values))
    return str(path)


@pytest.mark.slow
@pytest.mark.full
def test_every_two_ranks_have_a_copy_and_gradients_are_those_of_all(forked_ranks, run_values, tmp_path, own_file):
    cut = {"batch.samples": 128, "batch.micro_batch": 8, "precision": "bf16", "optim.grad_clip": None}
    files = {name: run_values(tmp_path, "transformer", deepspeed=name, **cut) for name in ("zero3", own_file)}
    reports = forked_ranks.run(4, [{"values": values, "sums": "fp32"} for values in files.values()])
    assert [report["copies"] for report in reports] == [0, 6]  # weights and biases of three layers
    assert all(report["error"] < 1e-6 and report["steps"] for report in reports)


@pytest.mark.slow
@pytest.mark.full
def test_losses_are_those_of_stage_1_and_another_number_of_ranks_goes_on(
    forked_ranks, run_values, read_metrics, tmp_path, own_file
):
    def job(name, deepspeed, ranks, **changes):
        values = run_values(
            tmp_path / name, "transformer", deepspeed=deepspeed, **{**RARE, "batch.micro_batch": 8 // ranks, **changes}
        )
        return {"values": values}

    forked_ranks.run(4, [job("whole", "zero1", 4), job("parts", own_file, 4, **{"run.stop_at_step": 4})])
    (report,) = forked_ranks.run(2, [job("parts", own_file, 2)])
    assert report["code"] == 0
    losses = [[record["loss"] for record in read_metrics(tmp_path / name, "train")] for name in ("whole", "parts")]
    assert len(losses[0]) == 8
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.full
def test_under_bf16_the_copies_of_a_new_model_are_in_bf16(forked_ranks, run_values, read_metrics, tmp_path, own_file):
    changes = {**RARE, "optim.max_steps": 3, "batch.micro_batch": 8, "precision": "bf16"}
    names = {"copies": own_file, "none": "zero3"}
    reports = forked_ranks.run(
        2,
        [
            {"values": run_values(tmp_path / name, "transformer", deepspeed=deepspeed, **changes)}
            for name, deepspeed in names.items()
        ],
    )
    assert [(report.get("code"), report.get("shared")) for report in reports] == [(0, 1.0)] * 2, reports
    copies, none = ([record["loss"] for record in read_metrics(tmp_path / name, "train")] for name in names)
    assert copies == none
