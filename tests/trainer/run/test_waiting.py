"""Where a step waits: for its device, and for the other ranks."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longmix.trainer.checkpoints import folders
from longmix.trainer.checkpoints.state import read_state
from longmix.trainer.engines.accelerate import AccelerateEngine
from longmix.trainer.engines.base import Later
from longmix.trainer.objectives.labelled_positions import LabelledPositions
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
# What waits in each step: the bound on the norm, which also drops what is not finite; without DeepSpeed on CPUs alone,
# where it costs nothing. DeepSpeed's own is not ours, and looks at every group of parameters and at all together.
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


@pytest.fixture
def on_device(monkeypatch):
    """on_device(): from here on steps are taken or dropped without the host, as they are on a GPU."""
    make = AccelerateEngine.__init__

    def made(self, *arguments):
        make(self, *arguments)
        self._optimizer.decides_on_device = True

    return lambda: monkeypatch.setattr(AccelerateEngine, "__init__", made)


@pytest.fixture
def spoilt(monkeypatch):
    """spoilt(*steps): from here on these have a loss that is not finite."""
    begun, step, forward = [], loop._Run._step, LabelledPositions.forward

    def spoil(*steps):
        def stepping(self, *arguments):
            begun.append(self.state.step + 1)
            step(self, *arguments)

        def spoiled(self, model, batch, items):
            loss, sums = forward(self, model, batch, items)
            is_spoilt = model.training and begun and begun[-1] in steps
            return (loss * torch.nan, sums * torch.nan) if is_spoilt else (loss, sums)

        monkeypatch.setattr(loop._Run, "_step", stepping)
        monkeypatch.setattr(LabelledPositions, "forward", spoiled)

    return spoil


def test_on_a_gpu_a_step_without_deepspeed_waits_for_nothing(train, waits, on_device, tmp_path):
    on_device()
    train(tmp_path / "run", **CHANGES)
    assert waits[0] == ENGINES[None]  # of the first step, which makes the moments


def test_what_comes_later_is_on_its_way_at_once_and_waits_for_itself_alone(monkeypatch):
    noted = []

    class Event:
        def record(self):
            noted.append("marked behind it")

        def synchronize(self):
            noted.append("waited up to the mark")
            arrived.fill_(True)

    class OnCard:
        device = torch.device("cuda", 0)

        def to(self, device, non_blocking):
            noted.append("sent")
            assert device == "cpu" and non_blocking
            return arrived

    monkeypatch.setattr(torch.cuda, "Event", Event)
    arrived = torch.tensor(False)
    later = Later(OnCard())
    assert noted == ["sent", "marked behind it"]
    assert later and noted[2:] == ["waited up to the mark"]


def test_steps_that_the_device_has_dropped_are_told_and_counted_all_the_same(
    train, on_device, spoilt, read_metrics, tmp_path, capsys
):
    """Also where it is the one before a record, or before a checkpoint, which waits for a better one."""
    spoilt(1, 3, 5, 6)
    ends, lines = [], []
    for name in ("host", "device"):
        if name == "device":
            on_device()
        outcome = train(tmp_path / name, **CHANGES, **{"optim.grad_clip": 0.5})
        lines.append([line for line in capsys.readouterr().err.splitlines() if "dropped" in line])
        ends.append((outcome.state, [path.name for path in sorted((tmp_path / name / "checkpoints").glob("step-*"))]))
    assert ends[0] == ends[1] and ends[0][0].skipped == 4 and ends[0][1] == ["step-00000007"]
    assert lines[0] == lines[1] and len(lines[0]) == 4
    keys = ("step", "loss", "grad_norm", "skipped_steps", "tokens_seen")
    host, device = (
        [[record[key] for key in keys] for record in read_metrics(tmp_path / name, "train")]
        for name in ("host", "device")
    )
    assert host == device and len(host) == 3
    files = [folders.newest(tmp_path / name) / "model" / "model.safetensors" for name in ("host", "device")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_ten_steps_in_a_row_that_the_device_drops_end_the_run(train, on_device, spoilt, tmp_path):
    on_device()
    spoilt(*range(3, 20))
    with pytest.raises(loop.NotFiniteError, match=r"10 steps in a row .* \(last: step 12\)"):
        train(tmp_path / "run", **{**CHANGES, "optim.max_steps": 20, "log.every_steps": 100})


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
