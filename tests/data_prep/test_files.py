"""Files that are there whole or not at all, whatever becomes of the process that writes them."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from longmix.data_prep import files
from longmix.data_prep.errors import UserError, in_one_line
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.parquet_columns import read_rows
from longmix.data_prep.tasks import labelled_files
from longmix.data_prep.tasks.dna import read_fasta
from longmix.data_prep.tasks.forecasting import read_series
from longmix.data_prep.text.parts import TextFile
from longmix.data_prep.tokenizer import load_tokenizer


def test_what_killed_processes_were_writing_is_removed_and_what_others_write_is_left_alone(tmp_path):
    left = tmp_path / ".table.md.7.tmp"
    others_own = {".table.md.8.tmp", ".table.md.tmp", ".table.md.7.tmp.txt", ".other.md.7.tmp"}
    for path in (left, *(tmp_path / name for name in others_own)):
        path.write_text("half")
    with open(tmp_path / ".table.md.8.tmp", "rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        files.write_text(tmp_path / "table.md", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"table.md", *others_own}
    assert (tmp_path / "table.md").read_text() == "whole"


def test_a_file_that_is_being_written_is_taken_for_no_killed_processes(tmp_path):
    with files.atomic_path(tmp_path / "table.md") as temporary:
        temporary.write_text("mine")
        (tmp_path / "moved").mkdir()
        # Another process writes the same file meanwhile.
        temporary.rename(tmp_path / "moved" / temporary.name)
        (tmp_path / "moved" / temporary.name).rename(temporary.with_name(".table.md.9.tmp"))
        files.write_text(tmp_path / "table.md", "another's")
        temporary.with_name(".table.md.9.tmp").rename(temporary)
    assert (tmp_path / "table.md").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["table.md"]


def _remove_nested(name):
    """Remove folders within folders, all of one name: pytest's own removal is not made for so many."""
    depth = 0
    while os.path.isdir(name):
        os.chdir(name)
        depth += 1
    for _ in range(depth):
        os.chdir("..")
        os.rmdir(name)


@pytest.mark.full
def test_a_folder_of_any_depth_is_made_unless_its_files_would_have_no_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    deep = Path(*["d"] * 1500)
    try:
        files.make_folder(deep)
        files.make_folder(deep)
        assert deep.is_dir()
    finally:
        _remove_nested("d")
    try:
        with pytest.raises(OSError, match="it has more than 3500 bytes") as caught:
            files.make_folder(Path(*["d"] * 2000))
        assert "d/d/d/" in str(in_one_line(caught.value)) and not Path("d").exists()
    finally:
        _remove_nested("d")
    Path("file").touch()
    for name in ("file", "file/folder"):
        with pytest.raises(OSError):
            files.make_folder(Path(name))


# Sockets, for opening a named pipe would never end without the check.
READERS = {
    "hash": ("shard", files.sha256_of_file),
    "library": ("shard.parquet", files.require_input),
    "manifest": ("manifest.json", lambda path: Manifest.load(path.parent)),
    "tokenizer": ("tokenizer_config.json", lambda path: load_tokenizer(path.parent)),
    "text": ("text.txt", lambda path: list(TextFile(path).units())),
    "rows": ("rows.parquet", lambda path: list(read_rows(path, {}, "", 1))),
    "labelled": ("text.txt", lambda path: list(labelled_files.read_text(path))),
    "sequences": ("dna.fa", lambda path: list(read_fasta(path, 8))),
    "packed sequences": ("dna.fa.gz", lambda path: list(read_fasta(path, 8))),
    "series": ("series.csv", read_series),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_told_and_never_waited_for(tmp_path, reader):
    name, read = READERS[reader]
    os.mknod(tmp_path / name, stat.S_IFSOCK | 0o600)
    with pytest.raises((OSError, UserError)) as caught:
        read(tmp_path / name)
    line = in_one_line(caught.value)
    assert isinstance(line, UserError) and "it is a socket, not a file" in str(line) and name in str(line)


def test_a_tokenizer_whose_files_are_none_is_not_loaded_without_them(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    os.mknod(tmp_path / "tokenizer.json", stat.S_IFSOCK | 0o600)
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read: it is a socket, not a file"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(2**36)
    with pytest.raises(UserError, match="no tokenizer needs"):
        load_tokenizer(tmp_path)


def test_linked_folders_are_entered_once_and_not_where_they_lead_back(tmp_path):
    (tmp_path / "elsewhere" / "part").mkdir(parents=True)
    (tmp_path / "elsewhere" / "part" / "a.txt").touch()
    root = tmp_path / "text"
    (root / "v2").mkdir(parents=True)
    (root / "v2" / "b.txt").touch()
    (root / "latest").symlink_to("v2")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "up").symlink_to(tmp_path)
    (tmp_path / "elsewhere" / "back").symlink_to(root)
    (root / "gone").symlink_to(tmp_path / "nowhere")
    found = [path.relative_to(root).as_posix() for path in files.files_below(root)]
    assert found == ["linked/part/a.txt", "v2/b.txt"]


def test_what_a_file_system_keeps_for_itself_may_be_unreadable(tmp_path, monkeypatch):
    for name in ("lost+found", ".Trash-0", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").touch()
    whole, shut = Path.iterdir, {"lost+found", ".Trash-0"}

    def reading(self):
        if self.name in shut:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return whole(self)

    monkeypatch.setattr(Path, "iterdir", reading)
    assert files.files_below(tmp_path) == [tmp_path / "mine" / "a.txt"]
    shut.add("mine")
    with pytest.raises(PermissionError):
        files.files_below(tmp_path)
