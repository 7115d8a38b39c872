"""Folders that earlier commits made still resume, load and evaluate, with the figures that those commits gave."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import longmix.modeling  # noqa: F401
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tokenizer import load_tokenizer

# The oldest is in every run of the suite, those since then in the full one.
OLDEST, PLACE = "ce0a594", Path(__file__).with_name("stored")
STORED = [
    pytest.param(path, marks=() if path.name == OLDEST else pytest.mark.full, id=path.name)
    for path in sorted(PLACE.iterdir())
    if path.is_dir()
]
# One process for all commands: importing torch and DeepSpeed costs more than what they do here.
COMMANDS = """
import json, sys
from longmix.trainer.cli import main
codes = [main(arguments) for arguments in json.loads(sys.argv[1])]
sys.exit(max(codes))
"""


# As somebody does who has transformers and, for other reasons, longmix: the code in the folder runs.
LOAD_SELF_CONTAINED = """
import os, torch, transformers
os.environ["LONGMIX_KERNELS"] = "portable"
model = transformers.AutoModelForMaskedLM.from_pretrained("self-contained", trust_remote_code=True)
assert type(model).__module__.startswith("transformers_modules"), type(model)
del os.environ["LONGMIX_KERNELS"]
logits = model(torch.arange(32)[None]).logits
logits.sum().backward()
import longmix.modeling
today = transformers.AutoModelForMaskedLM.from_pretrained("self-contained")
assert type(today) is longmix.modeling.paramixer.ParamixerForMaskedLM, type(today)
expected = today(torch.arange(32)[None]).logits
expected.sum().backward()
torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
for old, new in zip(model.parameters(), today.parameters(), strict=True):
    torch.testing.assert_close(old.grad, new.grad, rtol=1e-4, atol=1e-4)
"""


@pytest.fixture(scope="module", params=STORED)
def used(request, tmp_path_factory):
    """A copy of the folders of one commit after today's commands have gone on with them, and what these have said."""
    folder = tmp_path_factory.mktemp("stored") / request.param.name
    shutil.copytree(request.param, folder, symlinks=True)
    shutil.unpack_archive(folder / "self-contained.zip", folder)
    model = "runs/deepspeed/checkpoints/step-00000002/model"
    task = ("--task", "custom", "--data", "task", "--text-columns", "text", "--label-column", "label", "--epochs", "1")
    commands = [
        ["train", "runs/deepspeed", "run.stop_at_step=null"],
        ["train", "runs/accelerate", "run.stop_at_step=null"],
        ["evaluate", "runs/deepspeed/model", "--data", "data/text/validation"],
        ["export", "runs/accelerate", "--output", "exported"],
        ["finetune", "--model", model, *task, "--seeds", "2", "--output", "finetuned"],
        ["inspect-order", "runs/deepspeed", "--step", "3"],
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return folder, result


@pytest.fixture(scope="module")
def expected(used):
    return json.loads((used[0] / "expected.json").read_text())


@pytest.mark.parametrize("run", ["deepspeed", "accelerate"])
def test_a_stopped_run_ends_as_it_would_have_ended(used, expected, run):
    folder, result = used
    assert result.stderr.count("going on from step 2") == 2
    records = [json.loads(line) for line in (folder / "runs" / run / "metrics.jsonl").read_text().splitlines()]
    losses = {
        f"{one['kind']} {one['step']}": one["loss"] for one in records if one["step"] > 2 and one["kind"] != "model"
    }
    assert losses == pytest.approx(expected["losses"][run], rel=1e-5)


def test_its_model_has_the_figures_of_that_commit(used, expected):
    figures = dict(line.split() for line in expected["evaluated"].splitlines())
    for name, value in figures.items():
        assert f"{name:<17} {value}\n" in used[1].stdout


def test_finished_seeds_of_fine_tuning_are_kept_and_further_ones_join_them(used):
    folder, _ = used
    before = (PLACE / folder.name / "finetuned/custom/seed-0").resolve()
    after = folder / "finetuned" / "custom"
    for name in ("metrics.jsonl", "model/model.safetensors", "predictions/dev.json"):
        assert (after / "seed-0" / name).read_bytes() == (before / name).read_bytes()
    assert (after / "seed-1" / "predictions" / "dev.json").is_file()
    assert "2 seeds" in (folder / "finetuned" / "results.md").read_text()


def test_models_load_as_transformers_models(used):
    folder, _ = used
    masked = transformers.AutoModelForMaskedLM.from_pretrained(
        folder / "runs/deepspeed/checkpoints/step-00000002/model"
    )
    tokenizer = load_tokenizer(folder / "data" / "text" / "tokenizer")
    tokens = torch.tensor([tokenizer("The old river")["input_ids"]])
    assert masked(tokens).logits.isfinite().all()
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "exported")
    assert classifier.config.num_labels == 10


def test_models_exported_with_their_code_run_it_beside_todays_longmix(used, tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", LOAD_SELF_CONTAINED]
    result = subprocess.run(command, cwd=used[0], env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_data_sets_are_read(used):
    for name in ("text/train", "text/validation", "listops/train", "listops/validation", "listops/test"):
        assert Manifest.load(str(used[0] / "data" / name)).samples > 0
    assert len([line for line in used[1].stdout.splitlines() if "shard-00000" in line]) == 8
