"""Runs that an earlier version began with other defaults go on with those, as does what starts from their models."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
import yaml

import longmix.modeling  # noqa: F401

# By default test_stored_folders.py goes on with runs of an earlier version.
pytestmark = pytest.mark.full

TESTS = Path(__file__).parent
SET = TESTS / "stored_defaults" / "7a76805"
COMMANDS = """
import json, sys
from longmix.trainer.cli import main
sys.exit(max(main(arguments) for arguments in json.loads(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The folder in which both runs were resumed: one by its folder, one by a run file that names no new field."""
    folder = tmp_path_factory.mktemp("defaults") / "set"
    shutil.copytree(SET, folder, symlinks=True)
    shutil.copytree(TESTS / "stored" / "b911d7a" / "data", folder / "data", symlinks=True)
    values = yaml.safe_load((folder / "runs/s3attention/config.yaml").read_text())
    del values["provenance"]
    values["run"]["stop_at_step"] = None
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    # Its config.yaml is lost, and a copy of the run file, which never named a default, stands in for it.
    shutil.copytree(folder / "runs" / "transformer", folder / "runs" / "replaced", symlinks=True)
    values = yaml.safe_load((folder / "runs/transformer/config.yaml").read_text())
    del values["provenance"]
    values["run"].update(dir="runs/replaced", stop_at_step=None)
    for path in ("replaced.yaml", "runs/replaced/config.yaml"):
        (folder / path).write_text(yaml.safe_dump(values))
    started = ["model.from=runs/transformer/model", "run.dir=runs/started"]
    common = ["data.train=data/text/train", "optim.max_steps=1", "optim.warmup_steps=0", "batch.samples=8"]
    common += ["batch.micro_batch=8", "deepspeed=null", "log.tensorboard=false", "precision=fp32"]
    (folder / "empty.yaml").write_text("run: {dir: runs/none}\n")
    commands = [
        ["train", "runs/transformer", "run.stop_at_step=null"],
        ["train", "run.yaml"],
        ["train", "replaced.yaml"],
        ["train", "empty.yaml", *started, *common],
    ]
    result = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize(
    ("run", "begun"), [("transformer", "transformer"), ("s3attention", "s3attention"), ("replaced", "transformer")]
)
def test_a_stopped_run_ends_as_it_would_have_ended(resumed, run, begun):
    records = [json.loads(line) for line in (resumed / "runs" / run / "metrics.jsonl").read_text().splitlines()]
    losses = {
        f"{one['kind']} {one['step']}": one["loss"] for one in records if one["step"] > 2 and one["kind"] != "model"
    }
    assert losses == pytest.approx(json.loads((resumed / "expected.json").read_text())[begun], rel=1e-5)


def test_its_folder_now_says_what_it_was_begun_with(resumed):
    noted = {
        run: yaml.safe_load((resumed / "runs" / run / "config.yaml").read_text())["model_defaults"][run]
        for run in ("transformer", "s3attention")
    }
    assert noted["transformer"]["position_embedding_type"] == "learned"
    assert noted["s3attention"]["decay_spectrum"] is True


def test_a_run_that_starts_from_its_model_has_its_positions(resumed):
    config = transformers.AutoConfig.from_pretrained(resumed / "runs" / "started" / "model")
    assert config.position_embedding_type == "learned"
