"""Single files in folders of the user's: written over only as longmix wrote them."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from longmix.data_prep import made_files
from longmix.data_prep.errors import UserError
from longmix.data_prep.made_files import (
    RECORD,
    put_file,
    refuse_foreign_files,
    refuse_other_json,
    remove_files,
    write_files,
)

FILES = {"report.md": "# Results\n", "report.csv": "task\n"}


def never(path):
    return False


def test_its_own_files_are_written_over_and_others_beside_them_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    write_files(tmp_path, FILES, never)
    write_files(tmp_path, {"results.json": "{}\n"}, never)
    write_files(tmp_path, {**FILES, "report.md": "# Results\n\nMore.\n"}, never)
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "results.json", "notes.txt", RECORD}
    assert (tmp_path / "report.md").read_text() == "# Results\n\nMore.\n"


@pytest.mark.parametrize("record", [True, False], ids=["recorded", "no record"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_users_keeps_all_from_being_written(tmp_path, name, record):
    if record:
        write_files(tmp_path, FILES, never)
    (tmp_path / name).write_text("mine")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    what = "has changed since longmix wrote it" if record else "is not longmix's"
    with pytest.raises(UserError, match=f"{re.escape(name)} {what}, and would be written over: move it away"):
        write_files(tmp_path, dict.fromkeys(FILES, "new\n"), never)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_links_and_folders_are_no_files_of_its_own(tmp_path):
    write_files(tmp_path, FILES, never)
    (tmp_path / "report.md").rename(tmp_path / "kept.md")
    (tmp_path / "report.md").symlink_to("kept.md")
    with pytest.raises(UserError, match=r"report\.md is not longmix's"):
        write_files(tmp_path, FILES, never)
    (tmp_path / "report.md").unlink()
    (tmp_path / "report.md").mkdir()
    with pytest.raises(UserError, match=r"report\.md is not longmix's"):
        write_files(tmp_path, FILES, never)


def test_of_files_that_are_written_at_once_each_is_known(tmp_path):
    def put(name):
        made = tmp_path / "made" / name
        made.write_text(name)
        put_file(made, tmp_path / "out" / name, never)

    for folder in ("made", "out"):
        (tmp_path / folder).mkdir()
    names = [f"{number}.csv" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(put, names))
    refuse_foreign_files(tmp_path / "out", names, never)


def test_what_an_earlier_version_wrote_is_known_by_its_content(tmp_path):
    (tmp_path / "report.md").write_text("# Results\n\nOld.\n")
    write_files(tmp_path, FILES, lambda path: path.read_text().startswith("# Results"))
    # From then on it is known by its hash alone.
    (tmp_path / "report.md").write_text("# Results\n\nOld.\n")
    with pytest.raises(UserError, match="has changed"):
        write_files(tmp_path, FILES, lambda path: path.read_text().startswith("# Results"))


@pytest.mark.parametrize("writes", range(4))
def test_after_a_kill_between_two_files_all_are_still_known(tmp_path, monkeypatch, writes):
    write_files(tmp_path, FILES, never)
    new = {name: f"{text}new\n" for name, text in FILES.items()}
    count = []

    def dying(write):
        def run(path, value):
            if len(count) == writes:
                raise KeyboardInterrupt
            count.append(path)
            write(path, value)

        return run

    with monkeypatch.context() as patch:
        for name in ("write_text", "write_json"):
            patch.setattr(made_files, name, dying(getattr(made_files, name)))
        with pytest.raises(KeyboardInterrupt):
            write_files(tmp_path, new, never)
    write_files(tmp_path, new, never)
    assert {name: (tmp_path / name).read_text() for name in new} == new


def test_json_of_others_is_told_by_its_keys(tmp_path):
    path = tmp_path / "sweep.json"
    for text, is_refused in [
        ('{"seeds": 3}', False),
        ("", False),
        ("{}", False),
        ('{"seeds": 3, "mine": 1}', True),
        ("[1]", True),
        ("notes", True),
    ]:
        path.write_text(text)
        if is_refused:
            with pytest.raises(UserError, match=r"sweep\.json is not longmix's, and would be written over"):
                refuse_other_json(path, "seeds")
        else:
            refuse_other_json(path, "seeds")
    path.unlink()
    refuse_other_json(path, "seeds")
    path.symlink_to("gone")
    with pytest.raises(UserError, match="is not longmix's"):
        refuse_other_json(path, "seeds")


def test_only_files_of_the_given_names_are_removed(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "shard-1").touch()
    remove_files(tmp_path / "own", re.compile("shard-[0-9]"))
    assert not (tmp_path / "own").exists()
    (tmp_path / "shard-1").touch()
    (tmp_path / "shard-10").touch()
    (tmp_path / "shard-2").mkdir()
    (tmp_path / "shard-3").symlink_to("shard-10")
    (tmp_path / "link").symlink_to(".")
    remove_files(tmp_path / "link", re.compile("shard-[0-9]"))
    remove_files(tmp_path, re.compile("shard-[0-9]"))
    assert {path.name for path in tmp_path.iterdir()} == {"shard-10", "shard-2", "shard-3", "link"}
