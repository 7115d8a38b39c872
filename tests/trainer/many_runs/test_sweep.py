"""`longmix sweep`: which runs there are, what is run again, signals, failures. Runs are a stub's, but for one."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest, fingerprint
from longmix.trainer import cli
from longmix.trainer.many_runs import pool, read, sweep
from longmix.trainer.run.folder import RunLock

# Stands for `longmix train`: behaves as the file `act` beside the run folder's parent says, by its seed.
STUB = """
import hashlib, json, os, pathlib, signal, sys, time
values = dict(text.split("=", 1) for text in sys.argv[1:] if "=" in text)
folder, seed = pathlib.Path(json.loads(values["run.dir"])), values["run.seed"]
folder.mkdir(parents=True, exist_ok=True)
with open(folder.parent.parent / "told", "a") as told:
    told.write(f"{folder.parent.name} {seed} gpu={os.environ['CUDA_VISIBLE_DEVICES']}\\n")
acts = json.loads((folder.parent.parent / "acts.json").read_text())
act = acts.get(f"{folder.parent.name} {seed}", "finish")
if act == "refused":
    print("longmix: error: another process trains in it now")
    sys.exit(2)
if act == "wait":
    signal.signal(signal.SIGTERM, lambda *_: (print("stopped at step 3"), sys.stdout.flush(), os._exit(75)))
    print("ready", flush=True)
    time.sleep(60)
if act != "finish":
    print("longmix: error: it went wrong", flush=True)
    os.kill(os.getpid(), signal.SIGKILL) if act == "die" else sys.exit(act)
last = int(values.get("optim.max_steps", 6))
config = {"run": {"dir": str(folder), "seed": int(seed)}, "model": {}, "data": {}, "optim": {"max_steps": last}}
config["provenance"] = {}
(folder / "config.yaml").write_text(json.dumps(config))
(folder / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": last}))
(folder / "model").mkdir(exist_ok=True)
(folder / "model" / "config.json").write_text("{}")
file = {"file": "config.json", "bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
(folder / "model" / ".longmix.json").write_text(json.dumps({"kind": "model", "files": [file]}))
"""


@pytest.fixture
def configs(run_values, tmp_path):
    """Two run files, of the run folders `a` and `b`."""
    paths = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(run_values(tmp_path / name)))
        paths.append(str(path))
    return paths


@pytest.fixture
def stubbed(tmp_path, monkeypatch):
    """stubbed(**acts): let runs be those of STUB; tell() gives the lines of those that were started since."""
    stub, told = tmp_path / "stub.py", tmp_path / "told"
    stub.write_text(STUB)
    monkeypatch.setattr(
        sweep.Job,
        "arguments",
        property(lambda job: [*job.changes, f"run.dir={json.dumps(str(job.folder))}", f"run.seed={job.seed}"]),
    )
    # The finished runs of the stub have no configuration that could be compared.
    monkeypatch.setattr(sweep, "refuse_changes", lambda folder, run: None)

    class Stub(subprocess.Popen):
        def __init__(self, command, **more):
            super().__init__([sys.executable, str(stub), *command[3:]], **more)

    monkeypatch.setattr(pool.subprocess, "Popen", Stub)
    monkeypatch.setattr(pool, "POLL_SECONDS", 0.01)

    def act(acts):
        (tmp_path / "acts.json").write_text(json.dumps(acts))

    def tell():
        lines = told.read_text().splitlines() if told.exists() else []
        told.unlink(missing_ok=True)
        return lines

    act({})
    act.tell = tell
    return act


def run(*arguments):
    return cli.main(["sweep", *map(str, arguments)])


def mistake_of(capsys, *arguments):
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_every_file_runs_with_every_seed_and_finished_runs_stay(configs, stubbed, capsys, tmp_path):
    assert run(*configs, "--seeds", 2) == 0
    # All of the first seed come first: a sweep that is cut short has something of each.
    assert stubbed.tell() == [f"{name} {seed} gpu=" for seed in (0, 1) for name in ("a", "b")]
    assert "all 4 runs are finished" in capsys.readouterr().err
    assert json.loads((tmp_path / "a" / "sweep.json").read_text()) == {"seeds": 2}
    assert run(*configs, "--seeds", 3) == 0
    assert stubbed.tell() == ["a 2 gpu=", "b 2 gpu="]
    assert "longmix sweep: 4 of 6 runs are finished\n" in capsys.readouterr().err


def test_a_run_that_another_sweep_has_finished_meanwhile_is_passed_over(
    configs, stubbed, capsys, tmp_path, monkeypatch
):
    """Begun again it would read the test split once more."""

    def devices_after_another_sweep():
        monkeypatch.setattr(pool, "devices", list)
        assert run(configs[0], "--seeds", 1) == 0 and stubbed.tell() == ["a 0 gpu="]
        capsys.readouterr()
        return []

    # Asked after this sweep has looked for what is finished, and before it starts anything.
    monkeypatch.setattr(pool, "devices", devices_after_another_sweep)
    assert run(*configs, "--seeds", 1) == 0
    assert stubbed.tell() == ["b 0 gpu="]
    told = capsys.readouterr().err
    assert f"{tmp_path / 'a' / 'seed-0'} has been finished elsewhere\n" in told
    assert f"{tmp_path / 'b' / 'seed-0'} begins (2 of 2); " in told and "all 2 runs are finished" in told


def test_a_failed_run_stops_no_other_and_is_the_only_one_to_run_again(configs, stubbed, capsys, tmp_path):
    stubbed({"a 0": 1, "b 1": "die"})
    assert run(*configs, "--seeds", 2) == 1
    assert len(stubbed.tell()) == 4
    told = capsys.readouterr().err
    assert f"{tmp_path / 'a' / 'seed-0'} has failed: it went wrong\n" in told
    assert f"{tmp_path / 'b' / 'seed-1'} has failed: killed by SIGKILL\n" in told and "2 of 4 runs have failed" in told
    assert json.loads((tmp_path / "a" / "seed-0" / "failure.json").read_text())["reason"] == "it went wrong"
    stubbed({"b 1": 2})
    assert run(*configs, "--seeds", 2) == 2
    assert stubbed.tell() == ["a 0 gpu=", "b 1 gpu="]
    assert not (tmp_path / "a" / "seed-0" / "failure.json").exists()
    assert (tmp_path / "b" / "seed-1.log").read_text().count("it went wrong") == 2


def test_a_run_that_another_process_has_in_work_is_left_to_it(configs, stubbed, capsys, tmp_path):
    """Be it found before its start, or by the run itself, which was begun at the same moment; neither is a failure."""
    with RunLock(tmp_path / "a" / "seed-0"), RunLock(tmp_path / "b" / "seed-0"):
        assert run(*configs, "--seeds", 2) == 75
        assert stubbed.tell() == ["a 1 gpu=", "b 1 gpu="]
        told = capsys.readouterr().err
        assert f"{tmp_path / 'a' / 'seed-0'} is in work elsewhere" in told and "failed" not in told
        assert "2 of 4 runs are in work elsewhere; the same command goes on" in told
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep, "is_in_work", lambda folder, answers=[False, *4 * [True]]: answers.pop(0))
            stubbed({"a 0": "refused"})
            assert run(*configs, "--seeds", 1) == 75
        assert stubbed.tell() == ["a 0 gpu="] and not list(tmp_path.rglob("failure.json"))
        # What fails beside them is told, too.
        stubbed({"a 2": 1})
        assert run(configs[0], "--seeds", 3) == 75
        assert "1 of 3 runs are in work elsewhere, 1 have failed" in capsys.readouterr().err
    stubbed({})
    assert run(*configs, "--seeds", 2) == 0


def test_a_run_whose_other_process_has_ended_without_finishing_it_is_interrupted(
    configs, stubbed, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(sweep, "is_in_work", lambda folder, answers=[True, False, False]: answers.pop(0))
    assert run(*configs, "--seeds", 1) == 75
    assert stubbed.tell() == ["b 0 gpu="]
    told = capsys.readouterr().err
    assert f"{tmp_path / 'a' / 'seed-0'} is not finished: the process that had it in work has ended\n" in told
    assert "interrupted with 1 of 2 runs finished" in told and "runs are in work elsewhere" not in told


def test_a_run_that_is_to_go_further_is_not_finished(configs, stubbed):
    assert run(*configs, "--seeds", 1) == 0 and len(stubbed.tell()) == 2
    further = ("optim.max_steps=8", "run.allow_changes=[optim.max_steps]")
    assert run(*configs, "--seeds", 1, *further) == 0
    assert stubbed.tell() == ["a 0 gpu=", "b 0 gpu="]
    assert run(*configs, "--seeds", 1, *further) == 0 and not stubbed.tell()


def test_the_command_of_the_report_can_be_pasted_and_a_share_is_not_all(run_values, stubbed, capsys, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(run_values(tmp_path / "it's $HOME; a")))
    assert run(path, "--seeds", 2, "--share", "0/2") == 0
    assert "all 1 runs of share 0/2 are finished\n" in capsys.readouterr().err
    assert run(path, "--seeds", 2) == 0
    command = capsys.readouterr().err.splitlines()[-1].split("are finished: ")[1]
    assert shlex.split(command) == ["longmix", "report", str(tmp_path / "it's $HOME; a"), "--output", "DIR"]


def test_a_signal_is_passed_on_and_the_same_command_goes_on(configs, stubbed, capsys, tmp_path):
    stubbed({"a 0": "wait", "b 0": "wait"})
    logs = [tmp_path / name / "seed-0.log" for name in ("a", "b")]

    def stop():
        while not all(log.exists() and "ready" in log.read_text() for log in logs):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    assert run(*configs, "--seeds", 2, "--parallel", 2) == 75
    thread.join()
    assert sorted(stubbed.tell()) == ["a 0 gpu=", "b 0 gpu="]
    told = capsys.readouterr().err
    assert "seed-0: stopped at step 3" in told and "0 of 4 runs finished; the same command goes on" in told
    assert not list(tmp_path.rglob("failure.json"))
    stubbed({})
    assert run(*configs, "--seeds", 2) == 0
    assert len(stubbed.tell()) == 4


def test_a_run_that_stops_itself_stops_no_other(configs, stubbed):
    """run.max_hours, say: the code says that the command is to be given again."""
    stubbed({"a 0": 75})
    assert run(*configs, "--seeds", 2) == 75
    assert len(stubbed.tell()) == 4


def test_each_process_has_one_gpu(configs, stubbed, capsys, monkeypatch):
    monkeypatch.setattr(pool, "devices", lambda: ["3", "5"])
    monkeypatch.setenv("RANK", "1")
    assert run(*configs, "--seeds", 2) == 0
    assert {line.split()[-1] for line in stubbed.tell()} == {"gpu=3", "gpu=5"}
    # Those that run beside one another have numbers of their own.
    assert re.findall(r"begins \((\d) of 4\)", capsys.readouterr().err) == ["1", "2", "3", "4"]


def test_shares_are_disjoint_and_complete(configs, stubbed, capsys):
    assert [run(*configs, "--seeds", 3, "--share", f"{share}/4") for share in range(4)] == [0, 0, 0, 0]
    assert sorted(stubbed.tell()) == sorted(f"{name} {seed} gpu=" for seed in range(3) for name in ("a", "b"))
    assert run(configs[0], "--seeds", 1, "--share", "1/2") == 0 and not stubbed.tell()
    capsys.readouterr()
    for share in ("4/4", "x", "1", "-1/2", "1/0"):
        assert "--share is" in mistake_of(capsys, *configs, f"--share={share}")


def test_mistakes_are_told_before_anything_is_run(configs, stubbed, capsys, tmp_path, monkeypatch):
    for change in ("run.dir=x", "run.seed=3"):
        assert f"'{change}': run.dir stands in each run file" in mistake_of(capsys, *configs, change)
    assert "have the same run.dir" in mistake_of(capsys, configs[0], configs[0])
    assert "optim.leaning_rate is not a key" in mistake_of(capsys, *configs, "optim.leaning_rate=1")
    assert "--seeds is 0" in mistake_of(capsys, *configs, "--seeds", 0)
    assert "--seeds is 1000000000000, but must be at most 10,000" in mistake_of(capsys, *configs, "--seeds", 10**12)
    with monkeypatch.context() as patched:
        patched.setattr(sweep, "MOST_SEEDS", 1)
        assert "--seeds is 2, but must be at most 1:" in mistake_of(capsys, *configs, "--seeds", 2)
    assert "--parallel is 0" in mistake_of(capsys, *configs, "--parallel", 0)
    assert "name at least one run file" in mistake_of(capsys, "optim.lr=1")
    # What only the data can tell is told once, and not by each of four runs.
    line = mistake_of(capsys, *configs, "--seeds", 2, f"data.train={tmp_path / 'none'}")
    assert str(tmp_path / "none") in line and configs[0] in line
    (tmp_path / "b").write_text("")
    assert "is a file: name a folder" in mistake_of(capsys, *configs)
    assert not stubbed.tell() and not (tmp_path / "a").exists()


def test_a_folder_of_another_configuration_is_refused(configs, train, tmp_path):
    train(tmp_path / "a" / "seed-0", **{"optim.max_steps": 2})
    with pytest.raises(UserError, match=r"optim\.max_steps was 2 and is now 6"):
        sweep.plan(configs, [], 1)
    with pytest.raises(UserError, match=r"no\.yaml does not exist"):
        sweep.plan([*configs, str(tmp_path / "no.yaml")], [], 1)


def test_a_finished_run_of_other_data_is_refused(configs, stubbed, write_data, tmp_path, capsys):
    """The data at a path are prepared anew; of those that are gone, or are as they were, nothing is said."""
    write_data(tmp_path / "data", 5, seed=1)
    told = fingerprint(Manifest.load(tmp_path / "data"))
    arguments = [configs[0], "--seeds", "1", f"data.train={tmp_path / 'data'}", "data.eval=null"]
    assert run(*arguments) == 0
    note = tmp_path / "a" / "seed-0" / "config.yaml"
    values = json.loads(note.read_text())
    assert run(*arguments) == 0  # nothing is noted, as in earlier versions
    values["provenance"] = {"data": {"fingerprints": {"data.train": [told], "data.eval": []}}}
    note.write_text(json.dumps(values))
    assert run(*arguments) == 0
    shutil.rmtree(tmp_path / "data")
    assert run(*arguments) == 0
    write_data(tmp_path / "data", 5, seed=2)
    capsys.readouterr()
    line = mistake_of(capsys, *arguments)
    assert f"{tmp_path / 'a' / 'seed-0'} is finished, but {tmp_path / 'data'} holds other data" in line
    assert run(*arguments, "run.allow_changes=[data.train]") == 0
    assert len(stubbed.tell()) == 1


@pytest.mark.slow
@pytest.mark.full
def test_a_real_run(longmix, run_values, tmp_path):
    """Also that a folder's name is no YAML, and that the seed is the run's."""
    folder = tmp_path / "a: [b"
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(run_values(folder, **{"optim.max_steps": 2})))
    code, output = longmix("sweep", path, "--seeds", "1", "eval.samples=8").wait()
    assert code == 0, output + (Path(folder) / "seed-0.log").read_text()
    assert read.read_run(folder / "seed-0").problem is None
    assert "all 1 runs are finished" in output
