"""Files that are there whole or not at all, whatever becomes of the process that writes them."""

import fcntl

from longmix.data_prep import files


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
