"""Runs that hang: who is missing is told, every stack is written down, and the job ends."""

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch

from longmix.trainer.processes.watchdog import Watchdog
from longmix.trainer.processes.world import World
from longmix.trainer.run import loop

RANK = Path(__file__).with_name("watched_rank.py")
SECONDS = 1.0


@pytest.fixture
def ranks(start, tmp_path):
    """ranks("waits", "busy", ...) -> (run folder, commands) of pretended ranks, all of which make progress."""

    def begin(*behaviours):
        run = tmp_path / "run"
        run.mkdir()
        commands = [
            start(RANK, run, rank, len(behaviours), SECONDS / 60, behaviour)
            for rank, behaviour in enumerate(behaviours)
        ]
        if "start" not in behaviours:
            for rank, command in enumerate(commands):
                command.wait_until(lambda rank=rank: steps_of(run, rank) > 2)
        return run, commands

    return begin


def steps_of(run, rank):
    with contextlib.suppress(OSError, ValueError):
        return json.loads((run / "heartbeats" / f"rank-{rank:05d}.json").read_text())["step"]
    return 0


def told(outputs):
    """The lines of all ranks that are not stacks, the reason first."""
    return [line for output in outputs for line in output.splitlines() if "run.hang_minutes" in line]


def end(commands):
    codes, outputs = zip(*(command.wait(60) for command in commands), strict=True)
    assert set(codes) == {1}, outputs
    return outputs


def test_a_rank_that_does_not_answer_is_named_by_another_and_every_other_stack_is_kept(ranks):
    run, commands = ranks("busy", "waits", "waits")
    os.kill(commands[0].process.pid, signal.SIGSTOP)
    (run / "go").touch()
    outputs = end(commands[1:])
    (reason,) = told(outputs)
    assert outputs[0].startswith(reason), "the lowest rank that answers tells it, before its stacks"
    assert reason.startswith(
        "longmix: rank 0 on host-a is missing: stopped, gone, or cut off from the run folder; no progress for 0.0167 "
    )
    assert re.search(r"rank 0 on host-a, process \d+: step \d+, training; does not answer", outputs[0])
    assert re.search(r"rank 2 on host-a, process \d+: step 41, .*distributed_c10d.py:3 all_reduce", outputs[0])
    assert sorted(path.name for path in (run / "stacks").iterdir()) == ["rank-00001.txt", "rank-00002.txt"]
    for rank, output in zip((1, 2), outputs, strict=True):
        stacks = (run / "stacks" / f"rank-{rank:05d}.txt").read_text()
        assert stacks in output and "thread MainThread:" in stacks and "thread longmix-watchdog:" in stacks
        assert re.search(r"watched_rank.py:\d+ main\n  .*distributed_c10d.py:3 all_reduce\n", stacks)


@pytest.mark.full
def test_a_rank_that_does_not_come_to_the_exchange_is_named(ranks):
    run, commands = ranks("waits", "busy", "waits")
    (run / "go").touch()
    outputs = end(commands)
    (reason,) = told(outputs)
    assert outputs[0].startswith(reason)
    assert "rank 1 on host-b does not come to where the others wait for it" in reason
    assert outputs[0].splitlines()[1].startswith("longmix:   rank 1 on host-b")
    assert re.search(r"rank 1 .* in .*watched_rank.py:\d+ read_a_shard", outputs[0])
    assert len(list((run / "stacks").iterdir())) == 3


@pytest.mark.full
def test_a_rank_that_waits_for_what_was_begun_before_is_not_taken_for_the_one_that_is_missing(ranks):
    run, commands = ranks("waits-later", "busy")
    (run / "go").touch()
    (reason,) = told(end(commands))
    assert "longmix: rank 1 on host-b does not come to where the others wait for it" in reason


@pytest.mark.full
def test_where_all_wait_for_one_another_the_network_is_named(ranks):
    run, commands = ranks("waits", "waits")
    (run / "go").touch()
    outputs = end(commands)
    (reason,) = told(outputs)
    assert "rank 0 on host-a, rank 1 on host-b wait for one another: the network between them may be cut" in reason


def test_a_rank_alone_that_hangs_ends_with_its_stack(ranks):
    run, commands = ranks("busy")
    (run / "go").touch()
    (output,) = end(commands)
    assert (
        output.startswith("longmix: rank 0 on host-a: no progress, and none waits for another; ")
        and "read_a_shard" in output
    )


def test_a_start_that_hangs_ends_without_touching_the_run_folder(ranks):
    run, commands = ranks("start")
    (output,) = end(commands)
    assert output.startswith("longmix: rank 0 on host-a of 1 does not get through its start; ")
    assert "read_a_shard" in output and list(run.iterdir()) == []


def test_an_alarm_takes_every_rank_along(ranks):
    run, commands = ranks("on", "busy")
    (run / "go").touch()
    outputs = end(commands)
    assert len(told(outputs)) == 1 and len(list((run / "stacks").iterdir())) == 2


@pytest.mark.full
def test_a_slow_start_and_a_pause_of_the_whole_job_are_no_hang(ranks):
    run, commands = ranks("crawl", "crawl")
    for command in commands:
        os.kill(command.process.pid, signal.SIGSTOP)
    time.sleep(2 * SECONDS)
    for command in commands:
        os.kill(command.process.pid, signal.SIGCONT)
    before = [steps_of(run, rank) for rank in (0, 1)]
    for rank, command in enumerate(commands):
        command.wait_until(lambda rank=rank: steps_of(run, rank) > before[rank] + 3)


def test_a_run_that_ends_leaves_no_heartbeats(ranks):
    run, commands = ranks("ends", "ends")
    (run / "go").touch()
    for command in commands:
        code, output = command.wait(60)
        assert code == 0 and output == "ended\n"
    assert not (run / "heartbeats").exists() and not (run / "stacks").exists()


def test_what_is_no_heartbeat_stays_among_them(tmp_path):
    folder = tmp_path / "heartbeats"
    folder.mkdir()
    for name in ("alarm", "rank-00003.json", "notes", "rank-1.json"):
        (folder / name).write_text("mine")
    with Watchdog(World(0, 1, torch.device("cpu"), None), tmp_path, 30) as watchdog:
        watchdog.share()
        assert {path.name for path in folder.iterdir()} >= {"alarm", "notes", "rank-1.json"}
    assert {path.name for path in folder.iterdir()} == {"notes", "rank-1.json"}


def test_every_exchange_counts():
    world = World(0, 1, torch.device("cpu"), None)
    exchanges = [
        lambda: world.sum(torch.zeros(1)),
        lambda: world.from_first(1),
        lambda: world.gather(1),
        world.barrier,
    ]
    for number, exchange in enumerate(exchanges, start=1):
        exchange()
        assert world.progress.exchanges == number


def test_a_run_is_watched_and_tells_how_far_it_is(train, monkeypatch, tmp_path):
    seen = []

    class Observed(Watchdog):
        def share(self):
            super().share()
            seen.append((tmp_path / "run" / "heartbeats" / "alarm").read_text().strip())

        def __exit__(self, *error):
            seen.append((self._progress.steps_begun, self._progress.step, self._progress.phase))
            super().__exit__(*error)

    monkeypatch.setattr(loop, "Watchdog", Observed)
    train(tmp_path / "run")
    assert seen == ["calm", (6, 6, "checkpoint")]
    assert not (tmp_path / "run" / "heartbeats").exists()
