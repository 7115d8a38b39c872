"""Checkpoints as folders: what is incomplete or damaged is passed over, what is not needed is deleted."""

import errno
import json
import logging
import os
import shutil

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.checkpoints import folders
from longmix.trainer.checkpoints.state import RunState, read_state
from longmix.trainer.export.publish import export_model
from longmix.trainer.settings.sections import CheckpointSection

DATA = {"data.train": [64 * "0"], "data.eval": [], "data.test": []}


def fill(folder):
    """All that a checkpoint without DeepSpeed has, as far as that is looked at before it is loaded."""
    (folder / "model").mkdir()
    for name in ("model/config.json", "model/model.safetensors", "random.json", "engine.json"):
        (folder / name).write_text("{}")
    (folder / "engine.safetensors").write_bytes(bytes(range(200)))
    (folder / "layout.json").write_text('{"stage": null, "ranks": 1, "precision": "fp32"}')


def write(run, step, **state):
    run.mkdir(exist_ok=True)
    folder = folders.begin(run, step)
    fill(folder)
    return folders.finish(folder, run, RunState(step=step, data=DATA, **state))


def test_a_checkpoint_exists_only_when_it_is_finished(tmp_path):
    folder = folders.begin(tmp_path, 3)
    fill(folder)
    assert folders.steps(tmp_path) == [] and folders.newest(tmp_path) is None
    state = RunState(step=3, samples=12, data=DATA)
    final = folders.finish(folder, tmp_path, state)
    assert final.name == "step-00000003" and folders.newest(tmp_path) == final
    assert read_state(final) == state
    files = {entry["file"]: entry for entry in json.loads((final / "manifest.json").read_text())["files"]}
    assert set(files) == {path.relative_to(final).as_posix() for path in final.rglob("*") if path.is_file()} - {
        "manifest.json"
    }
    assert files["engine.safetensors"]["bytes"] == 200 and len(files["engine.safetensors"]["sha256"]) == 64


def test_what_a_killed_save_left_behind_is_replaced(tmp_path):
    left = folders.begin(tmp_path, 3)
    (left / "old").write_text("half")
    shutil.copytree(left, left.with_name(".step-00000002.tmp"))
    final = write(tmp_path, 3)
    assert not (final / "old").exists() and [path.name for path in (tmp_path / "checkpoints").iterdir()] == [final.name]


def test_a_run_folder_that_has_gone_is_not_made_anew(tmp_path):
    with pytest.raises(FileNotFoundError):
        folders.begin(tmp_path / "gone", 3)
    assert not (tmp_path / "gone").exists()


def test_latest_is_for_people_only(tmp_path):
    newest = [write(tmp_path, step) for step in (2, 4)][-1]
    for step in (2, 4, 2):
        folders.point_to(tmp_path, step)
        assert (tmp_path / "checkpoints" / "latest").resolve() == folders.path_of(tmp_path, step).resolve()
    assert folders.newest(tmp_path) == newest and folders.steps(tmp_path) == [2, 4]


def damage_truncate(folder):
    (folder / "engine.safetensors").write_bytes(b"short")
    return "engine.safetensors has 5 bytes instead of 200"


def damage_flip(folder):
    contents = bytearray((folder / "engine.safetensors").read_bytes())
    contents[100] ^= 1
    (folder / "engine.safetensors").write_bytes(contents)
    return "engine.safetensors does not have the contents that were written"


def damage_remove(folder):
    (folder / "model" / "config.json").unlink()
    return "config.json is missing"


def damage_manifest(folder):
    (folder / "manifest.json").write_text("[")
    return "manifest.json is damaged"


def damage_empty_manifest(folder):
    (folder / "manifest.json").write_text('{"step": 9, "files": []}')
    return "manifest.json is damaged (it does not list state.json)"


def damage_no_manifest(folder):
    (folder / "manifest.json").unlink()
    return "manifest.json is missing"


def damage_state(folder):
    (folder / "state.json").write_text((folder / "state.json").read_text().replace('"step": 9', '"step": 8'))
    return "state.json does not have the contents"


DAMAGES = [
    damage_truncate,
    damage_flip,
    damage_remove,
    damage_manifest,
    damage_empty_manifest,
    damage_no_manifest,
    damage_state,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_is_named_and_passed_over(tmp_path, caplog, damage):
    good = write(tmp_path, 5)
    bad = write(tmp_path, 9)
    expected = damage(bad)
    with caplog.at_level(logging.WARNING):
        assert folders.newest(tmp_path) == good
    assert len(caplog.records) == 1
    assert expected in caplog.text and str(bad) in caplog.text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../step-00000002/engine.safetensors", "which is not of this checkpoint"),
        ("/etc/hostname", "which is not of this checkpoint"),
        ("n" * 300, "cannot be read (File name too long)"),
        ("locked", "cannot be read (Input/output error)"),
    ],
)
def test_files_that_cannot_be_looked_at_are_told_and_the_checkpoint_passed_over(
    tmp_path, caplog, monkeypatch, name, message
):
    whole, newest = write(tmp_path, 2), write(tmp_path, 4)
    manifest = json.loads((newest / "manifest.json").read_text())
    (newest / "locked").write_bytes(bytes(7))
    manifest["files"].append({"file": name, "bytes": 7, "sha256": "0" * 64})
    (newest / "manifest.json").write_text(json.dumps(manifest))
    read = folders.sha256_of_file

    def refuse(path):
        if path.name == "locked":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(folders, "sha256_of_file", refuse)
    with caplog.at_level(logging.WARNING):
        assert folders.newest(tmp_path) == whole
    assert message in caplog.text and name[:200] in caplog.text


def test_what_a_file_puts_into_a_warning_stays_in_its_line(tmp_path, caplog):
    whole, newest = write(tmp_path, 2), write(tmp_path, 4)
    odd = "evil\n\x1b[2Jname"
    manifest = json.loads((newest / "manifest.json").read_text())
    for changed in (
        {"file": odd, "bytes": 7, "sha256": "0" * 64},
        {"file": "engine.json", "bytes": odd, "sha256": "0" * 64},
        {"file": "lone \ud800 surrogate \0 zero", "bytes": 7, "sha256": "0" * 64},
    ):
        (newest / "manifest.json").write_text(json.dumps({**manifest, "files": [*manifest["files"], changed]}))
        with caplog.at_level(logging.WARNING):
            assert folders.newest(tmp_path) == whole
    assert len(caplog.messages) == 3 and all(message.isprintable() for message in caplog.messages)
    assert "evil\\n\\x1b[2Jname is missing" in caplog.messages[0]


def test_no_whole_checkpoint_at_all(tmp_path):
    damage_flip(write(tmp_path, 5))
    assert folders.newest(tmp_path) is None


def kept(tmp_path, upto, state=None, **section):
    for step in range(1, upto + 1):
        write(tmp_path, step)
        folders.prune(tmp_path, CheckpointSection(**section), state or RunState(step=step))
    return folders.steps(tmp_path)


def test_the_newest_are_kept_and_every_so_many_and_the_best(tmp_path):
    assert kept(tmp_path / "a", 6, keep=2) == [5, 6]
    assert kept(tmp_path / "b", 9, keep=1, keep_every=4) == [4, 8, 9]
    assert kept(tmp_path / "c", 6, state=RunState(step=6, best_step=2), keep=1) == [2, 6]


def test_a_damaged_newer_checkpoint_does_not_cost_the_whole_ones(tmp_path):
    write(tmp_path, 4)
    damage_flip(write(tmp_path, 8))
    # The run has gone on from step 4 and saves at step 6.
    good = write(tmp_path, 6)
    folders.prune(tmp_path, CheckpointSection(keep=1), RunState(step=6))
    assert folders.newest(tmp_path) == good
    assert folders.steps(tmp_path) == [6]


def test_export_takes_the_newest_whole_checkpoint_or_the_step_asked_for(tmp_path):
    run = tmp_path / "run"
    for step in (2, 4, 6):
        (write(run, step) / "model" / "note").write_text(str(step))
    damage_truncate(folders.path_of(run, 6))
    assert (export_model(str(run), None, str(tmp_path / "out")) / "note").read_text() == "4"
    assert (export_model(str(run), 2, str(tmp_path / "out")) / "note").read_text() == "2"
    with pytest.raises(UserError, match="no checkpoint of step 3; it has: 2, 4, 6"):
        export_model(str(run), 3, str(tmp_path / "other"))
    with pytest.raises(UserError, match=r"checkpoint of step 6 is damaged: .*engine.safetensors"):
        export_model(str(run), 6, str(tmp_path / "other"))
    with pytest.raises(UserError, match="holds no checkpoint"):
        export_model(str(tmp_path / "nowhere"), None, str(tmp_path / "other"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("do not lose me")
    with pytest.raises(UserError, match=r"holds thesis\.txt, which longmix did not write there"):
        export_model(str(run), 2, str(tmp_path / "taken"))
    assert (tmp_path / "taken" / "thesis.txt").exists() and not (tmp_path / "other").exists()


def test_what_somebody_has_put_among_the_checkpoints_stays(tmp_path):
    for step in (2, 4, 6):
        write(tmp_path, step)
    place = tmp_path / "checkpoints"
    (folders.path_of(tmp_path, 2) / "model" / "notes.txt").write_text("mine")
    for name in (".step-mine.tmp", "best", "latest"):
        (place / name).mkdir()
        (place / name / "thesis").write_text("mine")
    (note,) = folders.prune(tmp_path, CheckpointSection(keep=1), RunState(step=6))
    assert "step-00000002 is not deleted: it holds model/notes.txt, which is not of the checkpoint" in note
    (note,) = folders.point_to(tmp_path, 6)
    assert note.startswith(f"note: {place / 'latest'} is no link")
    folders.begin(tmp_path, 8)
    assert folders.steps(tmp_path) == [2, 6]
    folders.remove_all(tmp_path)
    assert sorted(path.name for path in place.iterdir()) == [".step-mine.tmp", "best", "latest", "step-00000002"]
    assert len(list(place.rglob("thesis"))) == 3 and len(list(place.rglob("notes.txt"))) == 1
