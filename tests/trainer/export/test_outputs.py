"""The output of an export: what it replaces, and what of the user's it refuses to touch."""

import json
import os
import shutil
from pathlib import Path

import pytest

from longmix.data_prep.files import MARKER
from longmix.trainer.cli import main

STORED = Path(__file__).parents[2] / "stored" / "ce0a594"  # of a version without markers
MODEL = STORED / "runs" / "deepspeed" / "checkpoints" / "step-00000002" / "model"


@pytest.fixture
def export(capsys):
    """export(source, output) -> (exit code, what it said)."""

    def run(source, output):
        code = main(["export", str(source), "--output", str(output)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.fixture
def source(tmp_path):
    return shutil.copytree(MODEL, tmp_path / "source")


def project(folder):
    """A folder of the user's with a config.json, sources and texts."""
    (folder / "src").mkdir(parents=True)
    (folder / "config.json").write_text('{"name": "mine"}')
    (folder / "src" / "main.py").write_text("print(1)\n")
    (folder / "thesis.txt").write_text("mine")


def model_of_somebody(folder):
    """As save_pretrained leaves it: every name is one that longmix writes, too."""
    shutil.copytree(MODEL, folder)
    (folder / "README.md").unlink()
    (folder / "objective.json").unlink()


def own_card(folder):
    shutil.copytree(MODEL, folder)
    (folder / "README.md").write_text("# My model\n")


def own_weights(folder):
    shutil.copytree(MODEL, folder)
    (folder / "model.safetensors").write_text("no weights, but mine")


def only_config(folder):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))


@pytest.mark.parametrize("make", [project, model_of_somebody, own_card, own_weights, only_config])
def test_a_folder_of_the_users_is_never_replaced(export, source, tmp_path, make, contents):
    make(tmp_path / "mine")
    before = contents(tmp_path)
    code, said = export(source, tmp_path / "mine")
    assert (code, said.count("\n")) == (2, 1) and "which longmix did not write there: move it away" in said
    assert contents(tmp_path) == before


def test_what_an_earlier_version_has_exported_is_replaced_and_what_this_one_has_is(export, source, tmp_path):
    shutil.copytree(MODEL, tmp_path / "out")
    (source / "notes").write_text("of the source")
    for _ in range(2):
        assert export(source, tmp_path / "out")[0] == 0
        assert {path.name for path in (tmp_path / "out").iterdir()} == {
            *(path.name for path in source.iterdir()),
            MARKER,
        }
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]
    (tmp_path / "out" / "README.md").write_text("mine")
    code, said = export(source, tmp_path / "out")
    assert code == 2 and "holds README.md, which has changed since longmix wrote it" in said


def test_a_card_of_ours_names_the_folder_that_it_has_come_to(export, source, tmp_path):
    card = (source / "README.md").read_text()
    assert export(source, tmp_path / "a_b*")[0] == 0
    given = (tmp_path / "a_b*" / "README.md").read_text()
    assert given == card.replace("\n# deepspeed\n", "\n# a_b\\*\n") != card
    (source / "README.md").write_text("# Of somebody\n")
    assert export(source, tmp_path / "other")[0] == 0
    assert (tmp_path / "other" / "README.md").read_text() == "# Of somebody\n"


def test_exported_onto_itself_a_model_keeps_the_users_files_and_is_no_less_theirs(export, source, tmp_path, contents):
    (source / "notes").write_text("mine")
    before = contents(source)
    assert export(source, source)[0] == 0
    assert contents(source) == before  # no marker: the notes are not longmix's
    code, said = export(MODEL, source)
    assert code == 2 and "notes, which longmix did not write there" in said
    (source / "notes").unlink()
    assert export(source, source)[0] == 0 and (source / MARKER).is_file()


def test_what_was_edited_is_known_as_edited_after_an_export_onto_itself(export, tmp_path):
    out = tmp_path / "out"
    assert export(MODEL, out)[0] == 0
    with open(out / "README.md", "a") as card:
        card.write("my text")
    assert export(out, out)[0] == 0 and "my text" in (out / "README.md").read_text()
    code, said = export(MODEL, out)
    assert code == 2 and "holds README.md, which longmix did not write there" in said
    assert "my text" in (out / "README.md").read_text()


def test_places_that_are_refused(export, source, tmp_path, monkeypatch, contents):
    run = shutil.copytree(STORED / "runs" / "deepspeed", tmp_path / "run")
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    (tmp_path / "dangling").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path / "here")
    before = contents(tmp_path)
    for output, message in [
        (".", "is the current folder, or holds it"),
        ("..", "is the current folder, or holds it"),
        ("../here", "is the current folder, or holds it"),
        ("/", "is a mount point"),
        ("../link", "is a symbolic link"),
        ("../link/", "is a symbolic link"),
        ("../dangling", "is a symbolic link"),
        ("../pipe", "is no folder"),
        ("../source/below", "lies within"),
        ("../run", "holds .lock, which longmix did not write there"),
        ("../run/checkpoints/step-00000002/model", "lies within the checkpoint"),
        ("../run/checkpoints/step-00000002/new", "lies within the checkpoint"),
    ]:
        code, said = export(source, output)
        assert (code, said.count("\n")) == (2, 1) and message in said, (output, said)
    assert contents(tmp_path) == before
    # Through a link among the parents it is an ordinary folder.
    assert export(run, "../link/out")[0] == 0 and (tmp_path / "here" / "out" / "config.json").is_file()
