"""Under bf16 gradients are summed up in fp32, over micro-batches and over ranks: what each gives is rounded once."""

import json

import pytest

from longmix.trainer.settings import deepspeed_file

ENGINES = ("zero1", "zero2", "zero3")


@pytest.fixture(scope="module")
def sums(forked_ranks, run_values, tmp_path_factory):
    """sums(engine, precision) -> the report of gradient_sums.py by two ranks."""
    asked = [(engine, gradients) for engine in ENGINES for gradients in ("fp32", "bf16")]
    folder = tmp_path_factory.mktemp("sums")

    def job(engine, gradients):
        cut = {"batch.samples": 64, "batch.micro_batch": 8, "precision": "bf16", "optim.grad_clip": None}
        return {"values": run_values(folder, "transformer", deepspeed=engine, **cut), "sums": gradients}

    return dict(zip(asked, forked_ranks.run(2, [job(*one) for one in asked]), strict=True))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_are_summed_up_in_fp32(sums, engine):
    report = sums[engine, "fp32"]
    # fp32 sums in another order at most; bf16 ones are a hundred times as far away.
    assert report["error"] < 1e-6 and report["gradients"] == "fp32" and report["steps"]
    assert sums[engine, "bf16"]["error"] > 1e-4


@pytest.mark.slow
@pytest.mark.full
def test_stages_1_and_2_have_one_optimizer(sums):
    """DeepSpeed's own choice at stage 1, BF16_Optimizer, has another form of checkpoint and sums all up at once."""
    assert {sums[engine, "fp32"]["kind"] for engine in ("zero1", "zero2")} == {"DeepSpeedZeroOptimizer"}


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_with_an_offloaded_optimizer_learns(train, read_metrics, tmp_path, engine):
    values = deepspeed_file.read(engine)
    values["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    values["optimizer"] = {"type": "AdamW", "params": {"torch_adam": True}}
    (tmp_path / "own.json").write_text(json.dumps(values))
    changes = {"precision": "bf16", "batch.micro_batch": 4}
    for name, deepspeed in (("own", str(tmp_path / "own.json")), ("shipped", engine)):
        assert train(tmp_path / name, deepspeed=deepspeed, **changes).code == 0
    own, shipped = (
        [record["loss"] for record in read_metrics(tmp_path / name, "train")] for name in ("own", "shipped")
    )
    assert own == pytest.approx(shipped, rel=5e-3)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_runs_of_earlier_versions_go_on_as_they_were_begun(sums, engine):
    report = sums[engine, "bf16"]
    assert report["gradients"] == "bf16" and report["steps"]
