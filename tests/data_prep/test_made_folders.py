"""Folders that longmix makes as a whole: what it may replace, and what it removes."""

import contextlib
import json
import os
import re
from pathlib import Path

import pytest

from longmix.data_prep import made_folders
from longmix.data_prep.errors import UserError
from longmix.data_prep.files import MARKER
from longmix.data_prep.made_folders import TEXT, new_folder, put_in_place, refuse_foreign, remove_made


def make(folder, **files):
    """Make a folder with these texts, in the place of an older one."""
    with new_folder(folder) as temporary:
        for name, text in files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_text(text)
        put_in_place(temporary, folder, TEXT)


def test_what_it_made_itself_is_replaced_and_moves_and_copies_stay_its_own(tmp_path, contents):
    make(tmp_path / "first", one="1", **{"below/two": "2"})
    moved = (tmp_path / "first").rename(tmp_path / "moved")
    make(moved, three="3")
    assert set(contents(tmp_path)) == {"moved", "moved/three", f"moved/{MARKER}"}
    assert json.loads((moved / MARKER).read_text())["kind"] == TEXT


CHANGES = {
    "added": (lambda folder: (folder / "notes.txt").write_text("mine"), "notes.txt, which longmix did not write"),
    "added below": (lambda folder: (folder / "below" / "mine").touch(), "below/mine, which longmix did not write"),
    "edited": (lambda folder: (folder / "one").write_text("2"), "one, which has changed since longmix wrote it"),
    "grown": (lambda folder: (folder / "one").write_text("1+"), "one, which has changed since longmix wrote it"),
    "an empty folder": (lambda folder: (folder / "plans").mkdir(), "plans, which longmix did not make"),
    "a link": (lambda folder: (folder / "link").symlink_to("/etc"), "link, which is a link or no plain file"),
    "a dangling link": (lambda folder: (folder / "link").symlink_to("gone"), "link, which is a link"),
    "a pipe": (lambda folder: os.mkfifo(folder / "pipe"), "pipe, which is a link or no plain file"),
    "a file as a link": (
        lambda folder: ((folder / "one").rename(folder.parent / "kept"), (folder / "one").symlink_to("../kept")),
        "one, which is a link",
    ),
    "no marker": (lambda folder: (folder / MARKER).unlink(), "which longmix did not write there"),
    "a damaged marker": (lambda folder: (folder / MARKER).write_text("{"), "does not say what longmix wrote there"),
    "a marker of nothing": (lambda folder: (folder / MARKER).write_text("[3]"), "does not say what longmix wrote"),
    "another kind": (
        lambda folder: (folder / MARKER).write_text('{"kind": "model", "files": []}'),
        "holds a model, and this is a text",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_somebody_has_changed_is_refused_and_stays(tmp_path, change, contents):
    make(tmp_path / "made", one="1", **{"below/two": "2"})
    spoil, message = CHANGES[change]
    spoil(tmp_path / "made")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=re.escape(message)) as refusal:
        make(tmp_path / "made", three="3")
    assert "\n" not in str(refusal.value) and str(tmp_path / "made") in str(refusal.value)
    remove_made(tmp_path / "made")
    assert contents(tmp_path) == before


def test_places_that_no_folder_can_take(tmp_path, monkeypatch, contents):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path / "real" / "inner")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    before = contents(tmp_path)
    for place, message in [
        ("file", "is no folder"),
        ("pipe", "is no folder"),
        ("link", "is a symbolic link, and none is replaced"),
        ("dangling", "is a symbolic link"),
        ("real", "is the current folder, or holds it"),
        ("home", "is the home folder"),
        ("/proc", "is a mount point"),
        ("/", "is a mount point"),
    ]:
        with pytest.raises(UserError, match=message):
            refuse_foreign(tmp_path / place, TEXT)
    assert contents(tmp_path) == before


def test_a_large_file_is_known_by_its_size_at_a_quick_look_only(tmp_path, monkeypatch):
    monkeypatch.setattr(made_folders, "QUICK_BYTES", 3)
    make(tmp_path / "made", large="1234", small="12")
    (tmp_path / "made" / "large").write_text("4321")
    refuse_foreign(tmp_path / "made", TEXT, is_quick=True)
    with pytest.raises(UserError, match="large, which has changed"):
        refuse_foreign(tmp_path / "made", TEXT)
    (tmp_path / "made" / "small").write_text("21")
    with pytest.raises(UserError, match="small, which has changed"):
        refuse_foreign(tmp_path / "made", TEXT, is_quick=True)


def test_hidden_names_beside_the_folder_are_removed_only_if_they_are_leftovers(tmp_path):
    """As a user, or a process that was killed, may have left them: `.made.7.new`, `.made.7.old`."""
    for suffix in ("new", "old"):
        (tmp_path / f".made.7.{suffix}").mkdir()
        (tmp_path / f".made.7.{suffix}" / "thesis").write_text("mine")
        make(tmp_path / "left", one="1")
        (tmp_path / "left").rename(tmp_path / f".made.8.{suffix}")
        (tmp_path / f".made.9.{suffix}").symlink_to("kept")
    (tmp_path / ".made.10.new").mkdir()
    (tmp_path / ".made.10.new" / MARKER).write_text('{"kind": "unfinished folder"}')
    (tmp_path / ".made.10.new" / "half").touch()
    # Of this very process's number, as all are in a container.
    (tmp_path / f".made.{os.getpid()}.new").mkdir()
    (tmp_path / f".made.{os.getpid()}.new" / "thesis").write_text("mine")
    (tmp_path / "kept").mkdir()
    make(tmp_path / "made", one="1")
    assert {path.name for path in tmp_path.iterdir()} == {
        *("made", "kept", ".made.7.new", ".made.7.old", ".made.9.new", ".made.9.old", f".made.{os.getpid()}.new"),
    }
    assert len(list(tmp_path.rglob("thesis"))) == 3


def test_a_file_that_comes_at_the_last_moment_is_not_removed(tmp_path, monkeypatch):
    make(tmp_path / "made", one="1")
    rename = os.rename

    def late(source, target):
        if Path(source) == tmp_path / "made":
            (tmp_path / "made" / "late").write_text("mine")
        rename(source, target)

    monkeypatch.setattr(made_folders.os, "rename", late)
    make(tmp_path / "made", one="2")
    assert (tmp_path / "made" / "one").read_text() == "2"
    assert [path.read_text() for path in tmp_path.rglob("late")] == ["mine"]


def test_a_folder_that_was_hardly_begun_is_removed(tmp_path):
    left, kept = tmp_path / ".made.7.new", tmp_path / ".made.8.new"
    for folder in (left, kept):
        folder.mkdir()
        (folder / f".{MARKER}.7.tmp").write_text("{")
    (kept / "notes").write_text("mine")
    make(tmp_path / "made", one="1")
    assert not left.exists() and (kept / "notes").exists()


@pytest.mark.parametrize("removed", range(1, 5))
def test_a_folder_whose_removal_was_cut_short_is_removed_by_the_next_writer(tmp_path, monkeypatch, removed):
    left = tmp_path / ".made.7.new"
    (left / "below").mkdir(parents=True)
    for name in ("one", "below/two", "z"):
        (left / name).write_text(name)
    made_folders._write_marker(left, made_folders._UNFINISHED, [])
    done, unlink = [], os.unlink

    def cut_short(path, **options):
        if len(done) == removed:
            raise KeyboardInterrupt  # as a kill: nothing after it happens
        done.append(path)
        unlink(path, **options)

    with monkeypatch.context() as patches, contextlib.suppress(KeyboardInterrupt):
        patches.setattr(os, "unlink", cut_short)
        make(tmp_path / "made", one="1")
    assert len(done) == removed
    make(tmp_path / "made", one="1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]
