"""Checkpoints that lack something or say what cannot be, with a manifest that fits: named, and passed over."""

import dataclasses
import json
import logging
import shutil

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.checkpoints import folders
from longmix.trainer.checkpoints.state import ADDED_KEYS, RunState


@pytest.fixture
def forge(interrupted, rewrite_manifest, tmp_path):
    """forge(engine, spoil) -> the folder of the newest checkpoint of a run, which `spoil` has changed, and whose
    manifest says that this is what was written."""

    def make(engine, spoil):
        run = shutil.copytree(interrupted(engine), tmp_path / "run", symlinks=True)
        folder = folders.path_of(run, 4)
        assert folders.newest(run) == folder
        spoil(folder)
        rewrite_manifest(folder)
        return folder

    return make


@pytest.fixture
def passed_over(forge, caplog):
    """passed_over(engine, spoil) -> what is told of a checkpoint that is changed so."""

    def look(engine, spoil):
        folder = forge(engine, spoil)
        with caplog.at_level(logging.WARNING):
            assert folders.newest(folder.parent.parent) == folder.with_name("step-00000002")
        (message,) = caplog.messages
        caplog.clear()
        shutil.rmtree(folder.parent.parent)
        assert message.isprintable() and message.startswith(f"checkpoint passed over: {folder}"), message
        return message

    return look


def change_state(changes):
    def spoil(folder):
        values = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps({**values, **changes}))

    return spoil


HASH = 64 * "0"
DATA = {"data.train": [HASH], "data.eval": [], "data.test": []}
STATES = [
    ({"step": 3}, "step is 3, but the folder is step-00000004"),
    ({"step": "4"}, "step is '4', but takes a whole number"),
    ({"step": True}, "step is True, but takes a whole number"),
    ({"samples": -1}, "samples is -1"),
    ({"samples": None}, "samples is None"),
    ({"samples": 2**63}, "samples is 9223372036854775808"),
    ({"tokens": -1}, "tokens is -1"),
    ({"skipped": 5}, "skipped is 5, but must be 0 to 4 (step)"),
    ({"row_of_skips": 1}, "row_of_skips is 1, but must be 0 to 0 (skipped)"),
    ({"row_of_spikes": -1}, "row_of_spikes is -1"),
    ({"recent": [[1.0]]}, "interval and recent"),
    ({"recent": [[1.0, float("nan")]]}, "recent holds NaN"),
    ({"interval": [0.0]}, "interval"),
    ({"interval": ["a", "b", "c"]}, "interval"),
    ({"figures": []}, "figures is []"),
    ({"figures": {"loss": "low"}}, "figures"),
    ({"figures": {"loss": True}}, "figures"),
    ({"best_by": ["loss", "min"]}, "best_by is ['loss', 'min'], but takes"),
    ({"best_by": ["loss", "least", None]}, "best_by is"),
    ({"best_by": ["loss", "min", 0]}, "best_by is"),
    ({"best_step": 2}, "best_step needs best_value and figures"),
    ({"best_step": 5, "best_value": 1.0, "figures": {"loss": 1.0}}, "best_step is 5, but must be 1 to 4"),
    ({"best_value": 1.0}, "best_value needs best_step"),
    ({"evaluation_due": 1}, "evaluation_due is 1, but takes true or false"),
    ({"stopped_by": 5}, "stopped_by is 5"),
    ({"products": "MKL"}, "products is 'MKL', but takes oneDNN or torch"),
    ({"seed": 2**80}, f"seed is {2**80}, but takes null, or 0 to {2**63 - 1}"),
    ({"seed": -2}, "seed is -2, but takes null"),
    ({"data": {}}, "data must hold the SHA-256 of the data sets of data.train, data.eval, data.test"),
    ({"data": []}, "data is []"),
    ({"data": {**DATA, "data.train": []}}, "data must hold"),
    ({"data": {**DATA, "data.eval": HASH}}, "data.data.eval is"),
    ({"data": {**DATA, "data.eval": [5]}}, "data.data.eval[0] is 5"),
    ({"data": {**DATA, "data.test": ["none"]}}, "data must hold"),
    ({"data": {**DATA, "more": []}}, "data must hold"),
    ({"surprise": 1}, "surprise is not a key"),
    ({"evil\n\x1b[2J": 1}, "evil\\n\\x1b[2J is not a key"),
]


@pytest.mark.parametrize(("changes", "message"), STATES)
def test_a_state_that_cannot_be_is_passed_over(passed_over, changes, message):
    assert f"state.json: {message}" in passed_over(None, change_state(changes))


def test_a_state_that_lacks_something_is_passed_over(passed_over):
    names = {entry.name for entry in dataclasses.fields(RunState)} - set(ADDED_KEYS)
    for lacking in names:

        def spoil(folder, name=lacking):
            values = json.loads((folder / "state.json").read_text())
            del values[name]
            (folder / "state.json").write_text(json.dumps(values))

        assert f"state.json: {lacking} is missing" in passed_over(None, spoil)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"step": 4', "null"])
def test_a_state_that_is_no_map_is_passed_over(passed_over, text):
    assert "state.json" in passed_over(None, lambda folder: (folder / "state.json").write_text(text))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stage": True}, "stage is True, but takes null or one of 0, 1, 2, 3"),
        ({"ranks": -3}, "ranks is -3, but takes a whole number from 1 on"),
        ({"precision": "\x1b[2J"}, "precision is '\\x1b[2J', but takes one of fp32, bf16, fp16"),
        ({"ranks": 10**12, "stage": 1}, "engine holds 0 of 1 files *_model_states.pt"),
    ],
)
def test_a_layout_that_cannot_be_is_passed_over(passed_over, changes, message):
    def spoil(folder):
        values = json.loads((folder / "layout.json").read_text())
        (folder / "layout.json").write_text(json.dumps({**values, **changes}))

    assert message in passed_over(None, spoil)


@pytest.mark.parametrize(
    ("engine", "lacking", "message"),
    [
        (None, "layout.json", "layout.json is missing from the manifest"),
        (None, "random.json", "random.json is missing from the manifest"),
        (None, "engine.json", "engine.json is missing from the manifest"),
        (None, "engine.safetensors", "engine.safetensors is missing from the manifest"),
        (None, "model/config.json", "model/config.json is missing from the manifest"),
        (None, "model/model.safetensors", "model holds no weights: model.safetensors is missing"),
        ("zero0", "engine/*", "engine holds 0 of 1 files *_model_states.pt"),
        ("zero2", "random.json", "random.json is missing from the manifest"),
        ("zero2", "engine/mp_rank_00_model_states.pt", "engine holds 0 of 1 files *_model_states.pt"),
        ("zero2", "engine/*_optim_states.pt", "engine holds 0 of 1 files *_optim_states.pt"),
        ("zero3", "engine/*_model_states.pt", "engine holds 0 of 1 files *_model_states.pt"),
    ],
)
def test_a_checkpoint_that_lacks_a_file_is_passed_over(passed_over, engine, lacking, message):
    def spoil(folder):
        for path in list(folder.glob(lacking)):
            path.unlink()

    assert message in passed_over(engine, spoil)


def test_a_run_goes_on_from_the_one_before_and_still_compares_its_data(
    train, write_data, rewrite_manifest, tmp_path, caplog
):
    changes = {"data.train": str(tmp_path / "set"), "data.eval": None}
    write_data(tmp_path / "set", 60, 1)
    assert train(tmp_path / "run", **changes, **{"run.stop_at_step": 4}).code == 75
    folder = folders.path_of(tmp_path / "run", 4)
    change_state({"data": {}})(folder)
    rewrite_manifest(folder)
    write_data(tmp_path / "set", 60, 2)
    with pytest.raises(UserError, match=r"^data\.train: the data of the run in .* have changed since"):
        train(tmp_path / "run", **changes)
    write_data(tmp_path / "set", 60, 1)
    with caplog.at_level(logging.WARNING):
        assert train(tmp_path / "run", **changes).code == 0
    assert "step-00000004/state.json: data must hold" in caplog.text
