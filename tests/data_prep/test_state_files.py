"""The reader of state files, and what errors of the system mean to a user."""

import dataclasses
import errno
import os
import shutil

import pytest

from longmix.data_prep.errors import MachineFault, UserError, in_one_line, naming, refused
from longmix.data_prep.state_files import checked, parse, read_json, read_or_none, read_state


@dataclasses.dataclass
class Part:
    count: int
    names: list[str]


@dataclasses.dataclass
class Whole:
    format: int
    part: Part | None
    figures: dict[str, float]


WHOLE = '{"format": 1, "part": {"count": 2, "names": ["a"]}, "figures": {"loss": 1}}'


def test_a_whole_file_is_read(tmp_path):
    (tmp_path / "state.json").write_text(WHOLE)
    assert read_state(tmp_path / "state.json", Whole, "") == Whole(1, Part(2, ["a"]), {"loss": 1.0})
    assert checked([1.5, float("nan")], list[float])[0] == 1.5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (WHOLE[:30], "Expecting"),
        ("", "Expecting value"),
        ("[1]", "the whole is .* but takes a map"),
        ("null", "the whole is None"),
        ('{"format": 1, "part": null}', "figures is missing"),
        (WHOLE.replace("1,", "true,"), "format is True, but takes a whole number"),
        (WHOLE.replace("1}}", '"1"}}'), "figures.loss is '1', but takes a number"),
        (WHOLE.replace('["a"]', "[1]"), r"part\.names\[0\] is 1, but takes a text"),
        (WHOLE.replace('"format"', '"formal"'), "formal is not a key of this file; did you mean format"),
        (WHOLE.replace('"figures"', '"format": 2, "figures"'), "the key 'format' stands twice"),
        (WHOLE.replace("1}}", "NaN}}"), "it holds NaN"),
        ("[" * 100_000, "nested too deeply"),
        (b"\xff\xfe{}", "decode"),
        ("1" * 5000, "digits"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong_and_what_to_do(tmp_path, text, reason):
    path = tmp_path / "state.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UserError, match=rf"{path} is damaged \(.*{reason}.*\): delete it"):
        read_state(path, Whole, "delete it")
    assert read_or_none(path, Whole) is None


def test_nothing_is_waited_for_and_nothing_endless_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a named pipe, not a file"):
        read_json(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a folder, not a file"):
        read_json(tmp_path)
    (tmp_path / "long").write_text("[" + " " * 100 + "]")
    with pytest.raises(OSError, match="more than 50 bytes"):
        read_json(tmp_path / "long", largest=50)
    with pytest.raises(UserError, match=r"absent cannot be read: No such file.*; delete it"):
        read_state(tmp_path / "absent", Whole, "delete it")
    assert parse("[NaN]", allows_nan=True)


def system_error(number, name=None):
    return OSError(number, os.strerror(number), name)


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


def hidden(cause):
    """The error of a library that met another one."""
    error = RuntimeError("unexpected pos 64")
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (system_error(errno.ENOSPC, "a/b"), MachineFault, "a/b: No space left on device"),
        (system_error(errno.EDQUOT), MachineFault, "quota"),
        (system_error(errno.EROFS, "x"), MachineFault, "x: Read-only file system"),
        (system_error(errno.EIO, b"x"), MachineFault, "x: Input/output error"),
        (system_error(errno.EMFILE), MachineFault, "Too many open files"),
        (system_error(errno.ENOMEM), MachineFault, "Cannot allocate memory"),
        (shutil.Error([("from", "to", "[Errno 28] No space left on device: 'from'")]), MachineFault, "to: No space"),
        (RuntimeError("I/O error: no space left (os error 28)"), MachineFault, "No space left on device"),
        (hidden(system_error(errno.ENOSPC, "part")), MachineFault, "part: No space left"),
        (MemoryError(), MachineFault, "memory of this machine is exhausted"),
        (OutOfMemoryError("CUDA"), MachineFault, "memory of this machine is exhausted .CUDA"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), MachineFault, "exhausted"),
        (system_error(errno.ENAMETOOLONG, "x" * 9), UserError, "xxx: File name too long"),
        (system_error(errno.EACCES, "x"), UserError, "x: Permission denied"),
        (system_error(errno.ELOOP, "x"), UserError, "x: Too many levels"),
        (UnicodeEncodeError("utf-8", '{"a": "b\udcff"}', 8, 9, "surrogates not allowed"), UserError, r"'b\\udcff'"),
        (ValueError("embedded null byte"), UserError, "zero byte"),
    ],
)
def test_an_error_of_the_system_is_a_mistake_or_a_fault(error, kind, text):
    told = in_one_line(error)
    assert type(told) is kind
    with pytest.raises(kind, match=text):
        raise told
    assert len(str(told).splitlines()) == 1


@pytest.mark.parametrize("bug", [KeyError("x"), RuntimeError("no"), system_error(errno.EBADF), OSError("odd")])
def test_a_bug_is_no_line(bug):
    assert in_one_line(bug) is None


def test_a_missing_file_in_whose_handling_a_bug_shows_hides_no_bug():
    bug = KeyError("bug")
    bug.__context__ = system_error(errno.ENOENT, "a")
    assert in_one_line(bug) is None


def test_what_is_refused_names_its_file_once(tmp_path):
    with pytest.raises(OSError) as met, naming(tmp_path / "a"):
        raise system_error(errno.ENOSPC)
    assert met.value.filename == str(tmp_path / "a")
    told = refused("--output x cannot be written", met.value, "make room")
    assert type(told) is MachineFault
    assert str(told) == f"--output x cannot be written: No space left on device ({tmp_path / 'a'}); make room"
    assert str(refused("a is refused", system_error(errno.EACCES, "a"))) == "a is refused: Permission denied"
