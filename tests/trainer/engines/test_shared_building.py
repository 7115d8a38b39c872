"""At ZeRO stage 3 a model is built in shares, with the weights that it has when it is built whole."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file

from longmix.modeling import MODEL_TYPES
from longmix.trainer.settings import deepspeed_file


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


@pytest.mark.slow
@pytest.mark.full
def test_what_deepspeed_refuses_is_named(forked_ranks, run_values, tmp_path):
    """Where a model is built in shares, DeepSpeed reads its file before there is an engine."""
    messages = {
        "mics_shard_size": "DeepSpeed cannot do what .* asks for .*mics_shard_size",
        "stage4": "holds what DeepSpeed refuses: stage4: Extra inputs are not permitted",
    }
    jobs = []
    for key in messages:
        values = deepspeed_file.read("zero3")
        values["zero_optimization"][key] = 2
        (tmp_path / f"{key}.json").write_text(json.dumps(values))
        changes = {"deepspeed": str(tmp_path / f"{key}.json"), "batch.micro_batch": 8}
        jobs.append({"values": run_values(tmp_path / key, "transformer", **changes)})
    for report, message in zip(forked_ranks.run(2, jobs), messages.values(), strict=True):
        assert re.match(f"deepspeed: .*{message}", report["error"]), report


@pytest.mark.slow
@pytest.mark.full
def test_no_layer_keeps_its_gathered_weight_for_the_backward_pass(forked_ranks, run_values, tmp_path):
    values = deepspeed_file.read("zero3")
    values["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    (tmp_path / "none_stays.json").write_text(json.dumps(values))
    changes = {"deepspeed": str(tmp_path / "none_stays.json"), "batch.micro_batch": 8, "optim.max_steps": 2}
    (report,) = forked_ranks.run(2, [{"values": run_values(tmp_path / "run", "transformer", **changes)}])
    assert (report.get("code"), report.get("shared"), report.get("kept")) == (0, 1.0, 0.0), report


@pytest.mark.parametrize(
    ("key", "value", "is_plain"),
    [
        ("offload_param", {"device": "cpu"}, True),
        ("offload_param", None, True),
        ("offload_param", {"device": "nvme", "nvme_path": "."}, False),
        ("zero_quantized_weights", True, False),
        ("zero_quantized_nontrainable_weights", True, False),
        ("zero_hpz_partition_size", 2, True),
    ],
)
def test_shares_on_disks_or_in_8_bits_are_left_to_deepspeed(key, value, is_plain):
    """They cannot be cast where they are, or are exchanged with other values than were given."""
    values = deepspeed_file.read("zero3")
    values["zero_optimization"][key] = value
    assert deepspeed_file.keeps_plain_shares(values) is is_plain
