"""Why a run stops or saves, and that what a stop cuts short is made good."""

import os
import signal
from pathlib import Path

import pytest

from longmix.trainer.checkpoints import folders
from longmix.trainer.checkpoints.state import read_state
from longmix.trainer.processes import launch, world
from longmix.trainer.processes.signals import StopRequests
from longmix.trainer.run import best_checkpoint, stop_conditions
from longmix.trainer.run.final_model import FinalModel
from longmix.trainer.run.stop_conditions import Decision, StopConditions
from longmix.trainer.settings.exit_codes import INTERRUPTED
from longmix.trainer.settings.sections import RunSection


class Silent:
    requested = None


class Asked:
    requested = "SIGUSR1"


def decision(folder, section, requests=Silent, is_first=True, step=3, last_step=10):
    conditions = StopConditions(folder, section, last_step, requests, is_first)
    return conditions, Decision.of(conditions.asked(step).tolist())


def test_every_reason_is_told_and_nothing_else_stops(tmp_path):
    section = RunSection(dir=str(tmp_path))
    assert decision(tmp_path, section)[1] == Decision()
    assert decision(tmp_path, section, Asked)[1].reason == "a signal"
    assert decision(tmp_path, RunSection(dir="", stop_at_step=3))[1].reason == "run.stop_at_step"
    assert not decision(tmp_path, RunSection(dir="", stop_at_step=4))[1].stops
    # To stop at the last step is to finish.
    assert not decision(tmp_path, RunSection(dir="", stop_at_step=10), step=10)[1].stops
    (tmp_path / "STOP").touch()
    assert decision(tmp_path, section)[1] == Decision("the file STOP")
    # Other nodes may see a file, or the clock, later: the first rank speaks for all.
    assert decision(tmp_path, RunSection(dir="", max_hours=1e-9), is_first=False)[1] == Decision()


def test_hours_are_counted_from_the_start(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(stop_conditions.time, "monotonic", lambda: now[0])
    conditions, first = decision(tmp_path, RunSection(dir="", max_hours=2.0))
    assert not first.stops
    now[0] += 7199
    assert not Decision.of(conditions.asked(1).tolist()).stops
    now[0] += 1
    assert Decision.of(conditions.asked(1).tolist()).reason == "run.max_hours"


def test_files_are_removed_once_they_are_obeyed(tmp_path):
    for name in ("STOP", "SAVE"):
        (tmp_path / name).touch()
    conditions, found = decision(tmp_path, RunSection(dir=""))
    assert found.stops and found.saves
    conditions.obeyed(Decision(saves=True))
    assert (tmp_path / "STOP").exists() and not (tmp_path / "SAVE").exists()
    conditions.obeyed(found)
    assert not (tmp_path / "STOP").exists()


def test_folders_of_these_names_ask_for_nothing(tmp_path):
    for name in ("STOP", "SAVE"):
        (tmp_path / name).mkdir()
    _, found = decision(tmp_path, RunSection(dir=""))
    assert not found.stops and not found.saves


def test_a_file_that_cannot_be_removed_is_told(tmp_path, monkeypatch, caplog):
    def refuse(path, missing_ok=False):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "STOP").touch()
    conditions, found = decision(tmp_path, RunSection(dir=""))
    monkeypatch.setattr(Path, "unlink", refuse)
    conditions.obeyed(found)
    assert f"{tmp_path / 'STOP'} cannot be removed (Permission denied) and will be obeyed again" in caplog.text


@pytest.fixture
def touch_at(monkeypatch):
    """touch_at(step, path): make a file when a run asks after that step."""

    def arrange(step, path):
        asked = StopConditions.asked

        def touching(self, now=0):
            if now == step:
                path.touch()
            return asked(self, now)

        monkeypatch.setattr(StopConditions, "asked", touching)

    return arrange


def test_a_file_saves_and_the_run_goes_on(train, touch_at, tmp_path):
    (tmp_path / "run").mkdir()
    touch_at(3, tmp_path / "run" / "SAVE")
    changes = {"checkpoint.every_steps": 100, "checkpoint.keep": 9}
    assert train(tmp_path / "run", **changes).code == 0
    assert folders.steps(tmp_path / "run") == [3, 6] and not (tmp_path / "run" / "SAVE").exists()


@pytest.mark.parametrize("name", StopConditions.FILES)
def test_a_file_that_comes_with_the_last_step_is_gone_with_it(train, touch_at, tmp_path, name):
    """Else it would stop the run when that is made longer."""
    (tmp_path / "run").mkdir()
    touch_at(6, tmp_path / "run" / name)
    assert train(tmp_path / "run", **{"data.eval": None}).code == 0
    assert not (tmp_path / "run" / name).exists()


def test_a_file_stops_and_the_next_start_goes_on(train, touch_at, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    touch_at(3, tmp_path / "run" / "STOP")
    outcome = train(tmp_path / "run", **{"checkpoint.every_steps": 100})
    assert (outcome.code, outcome.state.step) == (75, 3)
    assert "stopped at step 3 by the file STOP" in capsys.readouterr().err
    assert read_state(folders.newest(tmp_path / "run")).stopped_by == "the file STOP"
    assert not (tmp_path / "run" / "STOP").exists()


@pytest.mark.parametrize("at", [0, 4, 6])
def test_a_stop_in_an_evaluation_is_obeyed_there_and_made_good(train, read_metrics, untimed, tmp_path, monkeypatch, at):
    changes = {"optim.max_steps": 6, "eval.every_steps": 2, "checkpoint.every_steps": 4}
    changes["checkpoint.best"] = {"metric": "loss", "mode": "min"}
    whole = train(tmp_path / "whole", **changes)
    evaluate = best_checkpoint.evaluate
    calls = []

    def stopped(*arguments):
        calls.append(len(calls))
        if calls[-1] == at // 2:
            (tmp_path / "parts" / "STOP").touch()
        return evaluate(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(best_checkpoint, "evaluate", stopped)
        outcome = train(tmp_path / "parts", **changes)
    assert (outcome.code, outcome.state.step, outcome.state.evaluation_due) == (75, at, True)
    assert at not in [record["step"] for record in read_metrics(tmp_path / "parts", "eval")]
    resumed = train(tmp_path / "parts", **changes)
    assert resumed.code == 0
    assert untimed(read_metrics(tmp_path / "parts")) == untimed(read_metrics(tmp_path / "whole"))
    assert (resumed.state.best_step, resumed.state.best_value) == (whole.state.best_step, whole.state.best_value)


def test_a_stop_while_the_test_set_is_read_leaves_it_for_the_next_start(
    train, read_metrics, write_data, tmp_path, monkeypatch
):
    write_data(tmp_path / "test", 12, 3, split="test")
    changes = {"checkpoint.best": {"metric": "loss", "mode": "min"}, "data.test": str(tmp_path / "test")}
    make = FinalModel._test

    def stopped(self, model):
        (tmp_path / "run" / "STOP").touch()
        return make(self, model)

    with monkeypatch.context() as patched:
        patched.setattr(FinalModel, "_test", stopped)
        assert train(tmp_path / "run", **changes).code == 75
    assert not read_metrics(tmp_path / "run", "test") and not (tmp_path / "run" / "model").exists()
    assert train(tmp_path / "run", **changes).code == 0
    assert len(read_metrics(tmp_path / "run", "test")) == 1


def test_a_run_that_stands_at_its_stop_is_told_how_to_go_on(train, tmp_path):
    """With 75 a job would be started again and again; a mistake ends it."""
    changes = {"run.stop_at_step": 2, "checkpoint.every_steps": 2}
    outcome = train(tmp_path / "run", **changes)
    assert (outcome.code, outcome.state.step) == (75, 2)
    for stop in (2, 1):
        told = rf"^run\.stop_at_step is {stop}, and the run in .* stands at step 2: set it to more, or to null"
        with pytest.raises(world.SharedMistake, match=told):
            train(tmp_path / "run", **{**changes, "run.stop_at_step": stop})
    assert folders.steps(tmp_path / "run") == [2]
    assert train(tmp_path / "run", **{**changes, "run.stop_at_step": None}).code == 0
    # What is done does not stop any more.
    assert train(tmp_path / "run", **changes).code == 0


class LeftAlone:
    """A world whose other rank goes while this one waits at the barrier."""

    def __init__(self, signal_number):
        self.signal_number = signal_number

    def barrier(self):
        if self.signal_number is not None:
            os.kill(os.getpid(), self.signal_number)
        raise RuntimeError("Connection closed by peer [127.0.0.1]:4242")


def test_a_rank_that_waits_to_begin_leaves_with_those_that_a_signal_ends(monkeypatch):
    class Left(Exception):
        pass

    def leave(code):
        raise Left(code)

    monkeypatch.setattr(os, "_exit", leave)
    with StopRequests() as requests, pytest.raises(Left, match=str(INTERRUPTED)):
        world.begin_together(LeftAlone(signal.SIGTERM), requests)
    # Without a signal the other rank was lost.
    with StopRequests() as requests, pytest.raises(RuntimeError, match="Connection closed"):
        world.begin_together(LeftAlone(None), requests)


def test_the_launcher_starts_nothing_for_a_run_that_was_stopped_meanwhile(monkeypatch):
    monkeypatch.setattr(launch.subprocess, "Popen", lambda *_, **__: pytest.fail("a worker was started"))
    with StopRequests() as requests:
        requests.has_begun = True
        os.kill(os.getpid(), signal.SIGTERM)
        assert launch.launch(["train"], 2, requests) == INTERRUPTED
