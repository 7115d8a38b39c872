"""At ZeRO stage 3 a model is built in shares, with the weights that it has when it is built whole."""

import pytest
import torch
from safetensors.torch import load_file

from longmix.modeling import MODEL_TYPES


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_model_begins_with_the_weights_of_stage_2(forked_ranks, run_values, tmp_path, precision):
    engines = ("zero2", "zero3")

    def job(model_type, engine):
        # One step that moves nothing by more than it.
        changes = {"optim.max_steps": 1, "optim.warmup_steps": 0, "optim.lr": 1e-30, "batch.micro_batch": 8}
        changes |= {"eval.every_steps": 1000, "checkpoint.every_steps": 1000}
        folder = tmp_path / f"{model_type}-{engine}"
        return {"values": run_values(folder, model_type, precision=precision, deepspeed=engine, **changes)}

    reports = forked_ranks.run(2, [job(model_type, engine) for model_type in MODEL_TYPES for engine in engines])
    assert [(report["code"], report["shared"]) for report in reports] == [(0, 0.0), (0, 1.0)] * len(MODEL_TYPES)
    for model_type in MODEL_TYPES:
        whole, shared = (
            load_file(tmp_path / f"{model_type}-{engine}" / "model" / "model.safetensors") for engine in engines
        )
        torch.testing.assert_close(shared, whole, rtol=0, atol=1e-29)


@pytest.mark.slow
@pytest.mark.full
def test_what_is_loaded_or_is_not_ours_or_moves_matrices_is_built_whole(forked_ranks, run_values, tmp_path):
    changes = {"optim.max_steps": 2, "batch.micro_batch": 8, "deepspeed": "zero3"}
    first = run_values(tmp_path / "first", "transformer", **changes)
    others = [
        run_values(tmp_path / "muon", "transformer", **changes, **{"optim.name": "muon"}),
        run_values(tmp_path / "bert", "bert", **changes),
        run_values(tmp_path / "loaded", "transformer", **changes, **{"model.from": str(tmp_path / "first" / "model")}),
    ]
    reports = forked_ranks.run(2, [{"values": values} for values in (first, *others)])
    assert [(report.get("code"), report.get("shared")) for report in reports] == [(0, 1.0), *[(0, 0.0)] * 3], reports
