"""Where a step waits: for its device, and for the other ranks."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longmix.trainer.checkpoints.state import read_state
from longmix.trainer.run import loop

# On a GPU each of these would wait for all that has been asked of it.
WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal")


class Waits(TorchDispatchMode):
    """Notes the file whose line makes a call that would wait for a GPU."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name.removeprefix("aten::") in WAITING:
            self.found.append(_caller())
        return function(*args, **(kwargs or {}))


def _caller() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "torch" not in path.parts and path != Path(__file__):
            return f"{path.parent.name}/{path.name}, {frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


@pytest.fixture
def waits(monkeypatch):
    """(waits of all steps, steps at which sums were read from the device) of the runs that follow."""
    mode, read, step, sums = Waits(), [], loop._Run._step, loop._Run._of_all_ranks

    def stepping(self, *arguments):
        with mode:
            step(self, *arguments)

    def reading(self, *arguments):
        read.append(self.state.step)
        return sums(self, *arguments)

    monkeypatch.setattr(loop._Run, "_step", stepping)
    monkeypatch.setattr(loop._Run, "_of_all_ranks", reading)
    return mode.found, read


CHANGES = {"optim.max_steps": 7, "log.every_steps": 3, "eval.every_steps": 100, "checkpoint.every_steps": 5}
# What waits in each step: the bound on the norm, which also drops what is not finite. DeepSpeed's own is not ours, and
# looks at every group of parameters and at all together.
ENGINES = {
    None: ["optimization/optimizer.py, step"],
    "zero0": ["optimization/optimizer.py, step"],
    "zero1": 3 * ["runtime/utils.py, is_invalid_grad_norm"],
    "zero2": 3 * ["runtime/utils.py, is_invalid_grad_norm"],
    "zero3": ["runtime/utils.py, is_invalid_grad_norm"],
}


@pytest.mark.parametrize("name", [None, *(pytest.param(f"zero{n}", marks=pytest.mark.full) for n in range(4))])
def test_a_step_waits_for_its_device_at_the_norm_alone(train, waits, tmp_path, name):
    train(tmp_path / "run", **CHANGES, deepspeed=name)
    found, _ = waits
    assert found == 7 * ENGINES[name]


def test_sums_are_read_where_they_are_told_or_kept(train, waits, read_metrics, tmp_path):
    train(tmp_path / "run", **CHANGES)
    assert waits[1] == [3, 5, 6, 7]
    told = list(read_metrics(tmp_path / "run", "train"))
    train(tmp_path / "all", **{**CHANGES, "log.every_steps": 1})
    each = {record["step"]: record["loss"] for record in read_metrics(tmp_path / "all", "train")}
    assert [record["step"] for record in told] == [3, 6, 7]
    assert min(each[1], each[2], each[3]) <= told[0]["loss"] <= max(each[1], each[2], each[3])
    assert told[2]["loss"] == each[7]


@pytest.mark.full
def test_a_guard_against_spikes_reads_each_loss(train, waits, tmp_path):
    train(tmp_path / "run", **CHANGES, **{"optim.skip_spikes": True})
    assert waits[1] == [0, 1, 2, 3, 3, 4, 5, 5, 6, 6, 7]


@pytest.mark.full
def test_sums_that_a_guard_has_read_count_once(forked_ranks, run_values, tmp_path):
    """Else the steps of two ranks would count for more than those of one, in a mean over both."""
    kept = []
    for ranks in (1, 2):
        changes = {**CHANGES, "log.every_steps": 7, "run.stop_at_step": 4, "optim.skip_spikes": True}
        forked_ranks.run(ranks, [{"values": run_values(tmp_path / str(ranks), **changes)}])
        kept.append(read_state(tmp_path / str(ranks) / "checkpoints" / "step-00000004").interval)
    assert kept[1] == pytest.approx(kept[0], rel=1e-5)


def test_each_step_is_told_what_its_own_batch_holds(train, monkeypatch, tmp_path):
    told, step = [], loop._Run._step

    def noting(self, batch, following, items, tokens):
        told.append((batch.items == items, batch.tokens == tokens, tokens))
        step(self, batch, following, items, tokens)

    monkeypatch.setattr(loop._Run, "_step", noting)
    train(tmp_path / "run", **CHANGES)
    assert len(told) == 7 and all(own[:2] == (True, True) for own in told)
    assert len({tokens for *_, tokens in told}) > 1  # else any other step's would do


def test_a_signal_is_obeyed_a_step_later_at_the_latest(train, monkeypatch, tmp_path):
    step = loop._Run._step

    def signalled(self, *arguments):
        if self.state.step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        step(self, *arguments)

    monkeypatch.setattr(loop._Run, "_step", signalled)
    outcome = train(tmp_path / "run", **CHANGES)
    assert outcome.code == 75 and outcome.state.step in (3, 4)


def test_a_run_stops_at_the_very_step_that_it_is_told(train, tmp_path):
    outcome = train(tmp_path / "run", **CHANGES, **{"run.stop_at_step": 4})
    assert (outcome.code, outcome.state.step) == (75, 4)


def test_a_later_sum_counts_where_it_is_begun_and_where_it_is_waited_for(world):
    """The watchdog takes a rank that has no batch for one that is behind those which are in the step, and one that
    hangs in the step for one that is behind those which wait for it."""
    before = world.progress.exchanges
    later = world.sum_later(torch.ones(2))
    assert world.progress.exchanges == before + 1
    assert later.wait().tolist() == [1, 1]
    assert world.progress.exchanges == before + 2
