"""A process from its first moment on: signals end it with 75, and a disk that is full with one line."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from longmix.trainer.cli import main

# The signal comes while the command is still being imported, or while it works.
EARLY = """
import builtins, os, signal
from longmix.trainer.{module} import {function}
load, number = builtins.__import__, {number}
def load_and_signal(name, *others):
    if name.endswith("{at}"):
        os.kill(os.getpid(), number)
    return load(name, *others)
builtins.__import__ = load_and_signal
{function}()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
@pytest.mark.parametrize(
    ("module", "function", "at"),
    [
        ("__main__", "run", "cli"),
        ("finetune.__main__", "main", "processes.ending"),
        ("quickstart.__main__", "run", "processes.ending"),
    ],
)
def test_a_signal_among_the_imports_is_an_interruption(module, function, at, name):
    code = EARLY.format(module=module, function=function, at=at, number=int(getattr(signal, name)))
    process = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stdout) == (75, "")
    assert process.stderr == f"longmix: stopped by {name}; there was nothing to save\n"


# A signal that a library does not let through, and one that falls into a destructor.
SWALLOWED = """
import os, signal, sys, time
from longmix.trainer.processes import ending, signals
class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)
def work():
    if {where!r} == "destructor":
        Held()
        time.sleep(5)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    except KeyboardInterrupt:
        raise ImportError("cannot load module more than once per process") from None
signals.listen()
ending.leave(lambda: ending.exit_code(work))
"""


@pytest.mark.parametrize("where", ["import", "destructor"])
def test_a_signal_is_an_interruption_wherever_it_falls(where):
    code = SWALLOWED.format(where=where)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    told = "longmix: interrupted; the same command goes on from here\n"
    assert (process.returncode, process.stdout, process.stderr) == (75, "", told)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_a_fault_that_names_it(unbuffered):
    code = (
        "from longmix.trainer.processes import ending; ending.leave(lambda: ending.exit_code(lambda: print('x') or 0))"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environment
        )
    told = "longmix: error: standard output cannot be written: No space left on device\n"
    assert (process.returncode, process.stderr) == (1, told)


@pytest.mark.full
def test_names_that_the_encoding_of_the_environment_lacks_are_told():
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "longmix.trainer", "report", "r\u00fcn", "--output", "x"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert process.returncode == 2 and process.stderr.count("\n") == 1
    assert "cannot be read as ascii: set LC_ALL=C.UTF-8 or PYTHONUTF8=1" in process.stderr


def refuse(*arguments, **keywords):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    arguments = ["prepare", "listops", "--output", str(tmp_path / "o")]
    for split in ("train", "validation", "test"):
        arguments += [f"--{split}-samples", "5"]
    with monkeypatch.context() as patched:
        patched.setattr("longmix.data_prep.shard_writer.flush_to_disk", refuse)
        assert main(arguments) == 1
    told = capsys.readouterr().err
    assert told.startswith("longmix: error: ") and told.endswith("No space left on device\n") and told.count("\n") == 1
    assert not (tmp_path / "o").exists()
    assert main(arguments) == 0


def test_an_argument_that_is_no_text_is_told(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["report", "a\udcff", "--output", "x"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "longmix: error: the argument 'a\\udcff' is not valid UTF-8: rename the file or folder (see longmix --help)\n"
    )


def test_the_folder_that_the_command_is_given_in_is_not_replaced(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.chdir(tmp_path)
    for output in (".", ".."):
        assert main(["export", "run", "--output", output]) == 2
        assert f"--output {output} is the current folder, or holds it" in capsys.readouterr().err
