"""The fuzzer finds what it looks for: every end that none may have is planted, and caught."""

import json
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import plan, results, running
from .all_kinds import KINDS
from .attack import Attack, Workshop, harm, look
from .mutations import remove


@pytest.fixture
def verdict_of(tmp_path, monkeypatch):
    """verdict_of(function, **fields of the attack) -> Verdict of a command that does what the function does, in the
    working folder, and ends with the code that it returns."""

    def run(command, check=lambda shop, ended: None, **fields):
        monkeypatch.setattr(running, "LONGEST_SECONDS", 0.5 if command is wait else 60)

        def entry(program, argv, environment):
            code = command()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

        monkeypatch.setattr(running, "run_entry", entry)
        shop = Workshop(tmp_path / "case", tmp_path / "sound", random.Random(0))
        started = running.Running("planted:0:0", shop, Attack(["verb"], "nothing", check, **fields), is_real=False)
        while (verdict := started.result()) is None:
            time.sleep(0.005)
        return verdict

    return run


def tell(text="longmix: error: a mistake", code=2):
    print(text, file=sys.stderr)
    return code


def write(name, code=0):
    Path(name).write_text("mine\n")
    return code


def fail():
    raise ValueError("planted")


def wait():
    time.sleep(600)


def fill():
    return len(bytes(2 * running.MOST_MEMORY))


@pytest.mark.parametrize(
    ("command", "fields", "expected"),
    [
        (fail, {}, "traceback"),
        (fill, {}, "traceback"),
        (wait, {}, "it never ends"),
        (lambda: os.kill(os.getpid(), 9), {}, "ended by SIGKILL"),
        (lambda: 3, {}, "exit code 3"),
        (lambda: 75, {}, "exit code 75"),
        (lambda: 2, {}, "exit code 2 with 0 lines that say why"),
        (lambda: tell(tell() and "longmix: error: another"), {}, "exit code 2 with 2 lines that say why"),
        (lambda: tell(tell() and "and more"), {}, "the line that says why is not the last"),
        (lambda: tell("longmix: error: no space", 1), {"codes": (1,), "faults": "lost rank"}, "exit code 1 without"),
        (lambda: tell(code=tell(code=1)), {"codes": (1,), "faults": "mistake"}, "exit code 1 with 2 lines"),
        (lambda: tell(code=0), {}, "exit code 0 with an error line"),
        (lambda: tell("longmix: error: \x1b[31m"), {}, "reached the console"),
        (lambda: write("../canaries/precious.txt"), {}, "harm: changed canaries/precious.txt"),
        (lambda: write("../canaries/EXECUTED"), {"writes": ("**",)}, "harm: made canaries/EXECUTED"),
        (lambda: write("mine/config.json"), {"writes": ("*",)}, "harm: changed work/mine/config.json"),
        (lambda: write("new"), {"writes": ("out",)}, "harm: made work/new"),
        (lambda: os.rmdir("mine/empty") or 0, {"writes": ("*",)}, "harm: removed work/mine/empty"),
        (lambda: os.unlink("mine/link") or tell(), {"writes": ("*",)}, "harm: removed work/mine/link"),
        (lambda: 0, {"check": results.says("figures")}, "wrong result: printed"),
        (lambda: 0, {"check": results.trained("out")}, "wrong result: model holds no whole model"),
        (lambda: 0, {"check": results.report("out")}, "wrong result: the report cannot be read"),
        (lambda: 0, {"check": results.data_sets("out")}, "wrong result: train cannot be read"),
        (lambda: 0, {"check": results.results(("cola",))}, "wrong result: the results cannot be read"),
    ],
)
def test_an_end_that_none_may_have_is_found(verdict_of, command, fields, expected):
    assert expected in (verdict_of(command, **fields).failure or "")


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (tell, {}),
        (lambda: tell(tell("longmix: training run", 0) or "longmix: error: a mistake"), {}),
        (lambda: tell("longmix: error: another rank has gone", 1), {"codes": (1,), "faults": "another rank"}),
        (lambda: 75, {"codes": (75,)}),
        (lambda: write("out"), {"writes": ("out",)}),
        (lambda: write("new"), {"writes": ("*",)}),
        (lambda: write("../canaries/new"), {"writes": ("**",)}),
    ],
)
def test_an_end_that_may_be_passes(verdict_of, command, fields):
    assert verdict_of(command, **fields).failure is None


def test_a_file_that_was_written_anew_with_the_same_text_has_changed(tmp_path):
    shop = Workshop(tmp_path / "case", tmp_path, random.Random(0))
    before = look(shop.folder)
    assert harm(before, look(shop.folder), ()) == []
    path = shop.canaries / "precious.txt"
    path.write_text(path.read_text())
    assert harm(before, look(shop.folder), ()) == ["changed canaries/precious.txt"]


@pytest.mark.full
def test_folders_of_any_depth_are_looked_at_and_removed(tmp_path):
    (tmp_path / "case").mkdir()
    try:
        subprocess.run(["mkdir", "-p", "d/" * 1900], cwd=tmp_path / "case", check=True)
        assert len(look(tmp_path / "case")) >= 1800
    finally:
        remove(tmp_path / "case")
    assert not (tmp_path / "case").exists()


def test_weights_that_differ_in_a_bit_are_no_right_result(tmp_path):
    def weights(folder, value):
        folder.mkdir()
        header = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", value))
        (folder / "config.json").write_text('{"model_type": "transformer"}')
        return folder

    one, same, other = (
        weights(tmp_path / name, value) for name, value in (("one", 1.0), ("same", 1.0), ("other", 1.0000001))
    )
    assert results.same_weights(one, same) is None and results.model_folder(one) is None
    assert "not those of the undisturbed command: a" in results.same_weights(one, other)
    assert "a is not finite" in results.model_folder(weights(tmp_path / "nan", float("nan")))


def test_a_plan_has_every_kind_and_every_kind_of_command():
    cases = plan.cases(2000, 7)
    assert len(cases) == len(set(cases)) == 2000 and sum(is_real for _, is_real in cases) == 200
    for kind in KINDS:
        assert {is_real for case, is_real in cases if case.startswith(f"{kind}:7:")} == {True, False}
    assert plan.cases(2000, 7)[:50] == plan.cases(2000, 7)[:50] != plan.cases(2000, 8)[:50]
    assert sum(is_real for _, is_real in plan.cases(100, 1, real=3)) == 3


def test_a_run_of_record_goes_on_behind_its_last_whole_line(tmp_path):
    verdict = running.Verdict("a:1:2", False, "what", "train x", 2, "traceback", "ValueError", 0.1, 0.1)
    record = tmp_path / "record.jsonl"
    record.write_text(json.dumps(verdict.values()) + "\n" + json.dumps(verdict.values())[:20])
    assert plan.read(record) == [verdict] and plan.read(None) == []
    assert "python -m tests.fuzz a:1:2  traceback  [what]  $ train x: ValueError" in plan.table([verdict])
