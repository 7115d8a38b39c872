"""Steps that stand out are dropped: what a spike is, and that a dropped step changes nothing."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from longmix.trainer.checkpoints.state import RunState
from longmix.trainer.engines.accelerate import AccelerateEngine
from longmix.trainer.engines.deepspeed import DeepSpeedEngine
from longmix.trainer.objectives.labelled_positions import LabelledPositions
from longmix.trainer.optimization.optimizer import StepGuard
from longmix.trainer.run import spikes
from longmix.trainer.run.spikes import SpikeGuard

ENGINES = [
    ("zero0", "fp32"),
    ("zero0", "bf16"),
    ("zero1", "fp32"),
    ("zero2", "bf16"),
    ("zero3", "bf16"),
    (None, "fp32"),
]


class Steps:
    """A run without an engine: `make` makes a step with this loss and gradient norm, and says whether it was taken."""

    def __init__(self, state=None):
        self.state, self.guard = state or RunState(), StepGuard()
        self.spikes = SpikeGuard(self.state, self.guard, skips=True)
        self.told = []

    def make(self, loss, norm=1.0):
        self.state.step += 1
        self.spikes.expect(loss)
        if not self.guard.drops(norm):
            self.spikes.note_taken()
            return True
        self.state.skipped += 1
        self.told.append(self.spikes.note_dropped())
        return False

    def ordinary(self, count, seed=0):
        """Losses of 2 +- 0.1, norms of 1 +- 0.05."""
        values = np.random.default_rng(seed).standard_normal((count, 2))
        assert all(self.make(2 + 0.1 * loss, 1 + 0.05 * norm) for loss, norm in values.tolist())


def test_a_spike_is_six_standard_deviations_above_the_mean():
    values = np.random.default_rng(1).gamma(2.0, size=100).tolist()
    assert spikes.highest(values) == pytest.approx(np.mean(values) + 6 * np.std(values, ddof=1))
    steps = Steps()
    steps.ordinary(spikes.WINDOW_STEPS)
    losses, norms = zip(*steps.state.recent, strict=True)
    for position, kept in ((0, losses), (1, norms)):
        beyond = [2.0, 1.0]
        beyond[position] = float(np.mean(kept) + 6.01 * np.std(kept, ddof=1))
        before = [list(pair) for pair in steps.state.recent]
        assert not steps.make(*beyond) and steps.state.recent == before
    assert "step 129: spike, step dropped (1 so far): loss 2.5" in steps.told[0]
    assert "step 130: spike, step dropped (2 so far): gradient norm 1.3" in steps.told[1]
    assert "6 standard deviations above the mean of the last 128 steps" in steps.told[1]
    assert steps.make(float(np.mean(losses) + 5.9 * np.std(losses, ddof=1)))


def test_what_falls_or_hardly_changes_is_no_spike():
    steps = Steps()
    steps.ordinary(40)
    assert steps.make(0.5) and steps.make(2.0, 0.001)
    still = Steps()
    assert all(still.make(3.0) for _ in range(50))
    assert still.make(3.0 * 1.005) and not still.make(3.0 * 1.1)


def test_nothing_is_a_spike_before_enough_steps_are_known():
    steps = Steps()
    steps.ordinary(spikes.FEWEST_STEPS - 1)
    assert steps.make(1000.0)
    later = Steps()
    later.ordinary(spikes.FEWEST_STEPS)
    assert not later.make(1000.0)


def test_the_window_moves_on_and_forgets():
    steps = Steps()
    steps.ordinary(spikes.FEWEST_STEPS)
    assert not steps.make(4.0)
    for loss in np.linspace(2.0, 8.0, 400).tolist():
        assert steps.make(loss)
    assert len(steps.state.recent) == spikes.WINDOW_STEPS and min(steps.state.recent)[0] > 6
    assert steps.make(4.0)


def test_a_batch_without_items_has_no_loss_and_counts_for_nothing():
    steps = Steps()
    steps.ordinary(40)
    assert steps.make(math.nan) and len(steps.state.recent) == 40
    assert not steps.make(math.nan, 100.0)


def test_ten_in_a_row_are_another_level():
    steps = Steps()
    steps.ordinary(40)
    assert not any(steps.make(5.0) for _ in range(9))
    assert steps.make(2.0)
    assert not any(steps.make(5.0) for _ in range(10))
    assert steps.told[-1].endswith("10 in a row are no outliers: the next 32 steps are taken as they come")
    assert sum("outliers" in text for text in steps.told) == 1
    assert all(steps.make(5.0 + 0.01 * number) for number in range(40))
    assert steps.state.skipped == 19


def test_a_run_that_goes_on_judges_alike():
    whole, part = Steps(), Steps()
    for steps in (whole, part):
        steps.ordinary(35, seed=7)
        assert not any(steps.make(1.0 / 3 + 5.0) for _ in range(6))
    part = Steps(RunState(**json.loads(json.dumps(dataclasses.asdict(part.state)))))
    made = [[steps.make(5.0) for _ in range(8)] for steps in (whole, part)]
    assert made[0] == made[1] == [False] * 4 + [True] * 4
    assert whole.state == part.state


def snapshot(engine):
    """Weights, their fp32 masters, and what the optimizer knows of each, in order."""
    if isinstance(engine, AccelerateEngine):
        base, bare = engine._optimizer, engine.module
    else:
        base, bare = engine.module.basic_optimizer, engine.module.module
    found = [parameter.detach().clone() for parameter in bare.parameters()]
    found += [value.clone() for value in engine.gather().values()]
    states = [state for state in base.state.values() if state]
    assert len(states) >= 1 and all({"step", "exp_avg", "exp_avg_sq"} <= state.keys() for state in states)
    return found + [value.clone() for state in states for value in state.values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize(("engine", "precision"), ENGINES)
def test_a_dropped_step_changes_nothing(train, read_metrics, tmp_path, monkeypatch, capsys, engine, precision):
    """Step 6 has a loss, step 7 gradients that stand out; the run that is told so takes neither."""
    monkeypatch.setattr(spikes, "FEWEST_STEPS", 4)
    cls = AccelerateEngine if engine is None else DeepSpeedEngine
    forward, step = LabelledPositions.forward, cls.step
    taken, kept = [], []

    def spoilt(self, model, batch, items):
        loss, sums = forward(self, model, batch, items)
        if len(taken) - 1 == 5:  # beside the dry run
            sums = sums * torch.tensor([10.0, 1.0, 1.0])
        return loss * (50.0 if len(taken) - 1 == 6 else 1.0), sums

    def noted(self, learning_rate):
        before = snapshot(self) if len(taken) - 1 in (5, 6, 7) else None
        result = step(self, learning_rate)
        taken.append(result)
        if before is not None:
            kept.append(all(torch.equal(*pair) for pair in zip(before, snapshot(self), strict=True)))
        return result

    monkeypatch.setattr(LabelledPositions, "forward", spoilt)
    monkeypatch.setattr(cls, "step", noted)
    changes = {"deepspeed": engine, "precision": precision, "optim.max_steps": 8, "data.eval": None}
    outcome = train(tmp_path / "run", **changes, **{"optim.skip_spikes": True, "checkpoint.every_steps": 7})
    assert [result.applied for result in taken[1:]] == [True] * 5 + [False, False, True]
    assert kept == [True, True, False]
    records = read_metrics(tmp_path / "run", "train")
    assert [record["skipped_steps"] for record in records] == [0, 0, 0, 0, 0, 1, 2, 2]
    assert [record["samples_seen"] for record in records] == list(range(16, 129, 16))
    norms = [record["grad_norm"] for record in records]
    assert norms[6] > 10 * max(norms[:6]) and norms[7] < 2 * max(norms[:6])
    assert outcome.state.row_of_skips == 0 and len(outcome.state.recent) == 6
    told = [line for line in capsys.readouterr().err.splitlines() if "spike" in line]
    assert len(told) == 2 and "step 6: " in told[0] and ": loss " in told[0] and ": gradient norm " in told[1]
    # Neither is a reason not to write a checkpoint.
    assert (tmp_path / "run" / "checkpoints" / "step-00000007").is_dir()


def test_nothing_is_judged_unless_asked_for(train, tmp_path, monkeypatch):
    monkeypatch.setattr(spikes, "FEWEST_STEPS", 2)
    monkeypatch.setattr(spikes, "SIGMAS", -1000.0)
    outcome = train(tmp_path / "run", **{"data.eval": None})
    assert outcome.state.skipped == 0 and outcome.state.recent == []
