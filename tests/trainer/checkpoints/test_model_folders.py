"""RUN, RUN/model and a checkpoint mean a model folder wherever a model is expected."""

import shutil
from pathlib import Path

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.checkpoints.model_folders import model_folder
from longmix.trainer.cli import main

RUN = Path(__file__).parents[2] / "stored" / "ce0a594" / "runs" / "deepspeed"
MODEL = Path("checkpoints", "step-00000002", "model")


@pytest.fixture
def run(tmp_path):
    """A run of two steps, with its checkpoint and its final model."""
    run = shutil.copytree(RUN, tmp_path / "run", symlinks=True)
    shutil.copytree(run / MODEL, run / "model")
    return run


def test_a_run_means_its_final_model_or_its_newest_checkpoint(run):
    assert model_folder(str(run)) == str(run / "model")
    assert model_folder(str(run), step=2) == str(run / MODEL)
    assert model_folder(str(run / "model")) == str(run / "model")
    assert model_folder(str(run / MODEL.parent)) == str(run / MODEL)
    shutil.rmtree(run / "model")
    assert model_folder(str(run)) == str(run / MODEL)
    assert model_folder("bert-base-uncased") == "bert-base-uncased"


def test_what_is_damaged_or_not_there_is_refused(run):
    with pytest.raises(UserError, match=r"no checkpoint of step 3; it has: 2"):
        model_folder(str(run), step=3)
    with pytest.raises(UserError, match=r"--step is 2, but .*model is no run"):
        model_folder(str(run / "model"), step=2)
    (run / MODEL / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"step-00000002 is damaged: .*model.safetensors has 0 bytes"):
        model_folder(str(run / MODEL.parent))
    shutil.rmtree(run / "model")
    with pytest.raises(UserError, match="every checkpoint is damaged"):
        model_folder(str(run))


@pytest.mark.parametrize("place", ["", "model", "checkpoints/step-00000002", "checkpoints/latest"])
def test_evaluate_and_export_take_all_of_them(run, tmp_path, capsys, place):
    assert main(["evaluate", str(run / place), "--fill", "[MASK] dog"]) == 0
    assert "%" in capsys.readouterr().out
    assert main(["export", str(run / place), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "config.json").is_file()


def test_a_folder_of_runs_names_them(tmp_path):
    for name in ("task/lr-1/seed-0", "task/seed-0", "task/seed-1"):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "config.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"is no model, but holds runs: name one of \S+lr-1/seed-0, \S+seed-0, \S+seed-1$"
    ):
        model_folder(str(tmp_path))
    assert model_folder(str(tmp_path / "task" / "seed-0")) == str(tmp_path / "task" / "seed-0" / "model")
    assert model_folder("someone/name") == "someone/name"
