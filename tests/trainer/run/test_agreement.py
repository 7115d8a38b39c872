"""The ranks compare what must be equal among them, and say what differs first, and where."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from longmix.trainer.checkpoints.state import RunState
from longmix.trainer.run import agreement
from longmix.trainer.run.agreement import Agreement, DisagreementError, first_difference, seed_generators
from longmix.trainer.run.stream import BatchStream
from longmix.trainer.samples.order import RunOrder

STEP, SAMPLES, RANKS = 6, 8, 4


def one_rank(rank, gather=None, device="cpu", **settings):
    """What a rank of a run at step 6 has: model, state, order, draw and the settings of its `Agreement`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2).bfloat16())
    model.register_buffer("landmarks", torch.arange(3.0))
    model[1].running_mean.fill_(rank)  # each averages over its own samples
    order = RunOrder([50], [1.0], 4, 16384, 3)
    draw = order.share_of_rank((STEP - 1) * SAMPLES, SAMPLES, rank, RANKS)
    seed_generators(11, rank)
    random.random(), np.random.rand(), torch.rand(rank + 1)
    world = SimpleNamespace(rank=rank, size=RANKS, device=torch.device(device), gather=gather)
    settings = {"stage": 0, "check_every": 3, **settings}
    state = RunState(step=STEP, samples=STEP * SAMPLES, tokens=99, seed=11)
    return SimpleNamespace(model=model, order=order, draw=draw, state=state, world=world, **settings)


def agreement_of(one):
    run = SimpleNamespace(check_every=one.check_every)
    configuration = SimpleNamespace(run=run, batch=SimpleNamespace(samples=SAMPLES))
    return Agreement(SimpleNamespace(stage=one.stage), one.model, one.order, configuration, one.world, one.state)


def facts_of(rank, breakage=None, **settings):
    one = one_rank(rank, **settings)
    if breakage is not None:
        breakage(one)
    return agreement_of(one).facts(one.draw)


def test_ranks_that_agree_have_the_same_facts():
    for stage in (0, 2, 3):
        first, *rest = (facts_of(rank, stage=stage) for rank in range(RANKS))
        assert all(facts == first for facts in rest) and all(first[0].values())
        assert any(name.startswith("parameter") for name in first[1]) == (stage < 3)
        assert "buffer landmarks" in first[1] and "buffer 1.running_mean" not in first[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_every_element_and_its_place_count(dtype, monkeypatch):
    monkeypatch.setattr(agreement, "_PIECE", 8)
    values = torch.arange(30).reshape(5, 6).to(dtype).T
    changed = [values.clone() for _ in range(32)]
    for place in range(30):
        changed[place][place // 5, place % 5] = 0 if values[place // 5, place % 5] else 1
    if dtype != torch.bool:
        changed[30][:, [1, 3]] = values[:, [3, 1]]  # the same numbers elsewhere
    sums = agreement._checksums([values, values.clone(), *changed, torch.zeros(0, dtype=dtype)])
    assert sums[0] == sums[1] == sums[33] and sums[-1] == 0
    assert len(set(sums[:-1])) == (31 if dtype == torch.bool else 32)


BREAKAGES = {
    "the share of the samples": lambda one: setattr(one, "draw", one.order.share_of_rank(0, SAMPLES, 1, RANKS)),
    "torch's random generator": lambda one: torch.manual_seed(0),
    "the step": lambda one: setattr(one.state, "step", STEP + 3),
    "the number of samples": lambda one: setattr(one.state, "samples", 1),
    "the number of tokens": lambda one: setattr(one.state, "tokens", 98),
    "the number of dropped steps": lambda one: setattr(one.state, "skipped", 1),
    "the order of the samples": lambda one: setattr(one.order, "seed", 4),
    "NumPy's random generator": lambda one: np.random.rand(),
    "Python's random generator": lambda one: random.random(),
    "parameter 0.weight": lambda one: one.model[0].weight.data[1, 1].mul_(1 + 2e-7),
    "parameter 2.bias": lambda one: one.model[2].bias.data[0].add_(1),
    "buffer landmarks": lambda one: one.model.landmarks[2].neg_(),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_what_differs_is_named_with_its_rank(name):
    for wrong in ([2], [0], [1, 3]):
        breakage = BREAKAGES[name]
        everywhere = [facts_of(rank, breakage if rank in wrong else None) for rank in range(RANKS)]
        if name in ("the number of samples", "the order of the samples"):  # at another place another share is right
            for own, _ in everywhere:
                own["the share of the samples"] = True
        assert first_difference(everywhere) == (name, wrong)


def test_what_all_have_wrong_is_found_too():
    everywhere = [facts_of(rank, BREAKAGES["torch's random generator"]) for rank in range(RANKS)]
    assert first_difference(everywhere) == ("torch's random generator", [0, 1, 2, 3])


def test_a_seed_that_nobody_knows_is_not_compared():
    own, _ = facts_of(1, lambda one: setattr(one.state, "seed", None))
    assert list(own) == ["the share of the samples"]


@pytest.mark.parametrize("noted_from", [1, 2, 3])
def test_a_run_with_another_seed_keeps_its_generators(train, rewrite_manifest, tmp_path, noted_from):
    """Earlier versions noted nothing, and what nobody knows is not compared."""
    run = tmp_path / "run"

    def forget(step):
        if step < noted_from:
            checkpoint = run / "checkpoints" / f"step-{step:08d}"
            state = json.loads((checkpoint / "state.json").read_text())
            del state["seed"]
            (checkpoint / "state.json").write_text(json.dumps(state))
            rewrite_manifest(checkpoint)

    settings = {"run.check_every": 1, "checkpoint.keep": 9}
    assert train(run, **settings, **{"run.stop_at_step": 1}).code == 75
    forget(1)
    settings["run.seed"] = 5
    allowed = {"run.allow_changes": ["run.seed"]}
    assert train(run, **settings, **allowed, **{"run.stop_at_step": 2}).code == 75
    forget(2)
    assert train(run, **settings, **{"run.stop_at_step": 3}).code == 75
    assert train(run, **settings).code == 0
    states = [json.loads(path.read_text()) for path in sorted(run.glob("checkpoints/step-*/state.json"))]
    assert {state["seed"] for state in states[noted_from - 1 :]} == {0 if noted_from == 1 else None}


def test_the_seed_is_that_of_the_checkpoint_that_a_run_goes_on_from(train, tmp_path):
    """A damaged one is passed over, and what it says of the seed with it."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    settings = {"run.check_every": 1, "model.hidden_dropout_prob": 0.1}
    assert train(whole, **settings).code == 0
    assert train(run, **settings, **{"run.stop_at_step": 3}).code == 75
    path = run / "checkpoints" / "step-00000003" / "state.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    assert train(run, **settings).code == 0
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, run)]
    assert weights[0] == weights[1]


def test_it_is_checked_every_so_many_steps_and_told_in_one_line():
    handed = []

    def gather(value):
        """As if the other rank's bias differed from step 9 on."""
        handed.append(value)
        if isinstance(value, str):
            return [value, value if one.state.step < 9 else "another"]
        return [value, (value[0], {**value[1], "parameter 2.bias": "another"})]

    one = one_rank(0, gather)
    checked = agreement_of(one)
    for step in (6, 7, 8, 9):
        one.state.step, one.state.samples = step, step * SAMPLES
        one.draw = one.order.share_of_rank((step - 1) * SAMPLES, SAMPLES, 0, RANKS)
        if step < 9:
            checked.check_if_due(one.draw)
            assert len(handed) == 1
    with pytest.raises(DisagreementError) as told:
        checked.check_if_due(one.draw)
    text = str(told.value)
    assert "come apart by step 9: parameter 2.bias is not what it should be on rank 1. They agreed at step 6" in text
    assert "\n" not in text


def test_a_run_is_checked_and_resumed_runs_too(train, tmp_path, monkeypatch):
    found, whole = [], agreement.Agreement.facts

    def facts(self, draw):
        found.append((self._state.step, whole(self, draw)))
        return found[-1][1]

    monkeypatch.setattr(agreement.Agreement, "facts", facts)
    changes = {"run.check_every": 2, "data.eval": None, "model.hidden_dropout_prob": 0.1, "run.seed": 5}
    assert train(tmp_path / "run", **changes, **{"run.stop_at_step": 3}).code == 75
    torch.manual_seed(1)
    assert train(tmp_path / "run", **changes).code == 0
    assert [step for step, _ in found] == [2, 4, 6]
    assert all(own == {"the share of the samples": True, "torch's random generator": True} for _, (own, _) in found)
    parameters = [{name: value for name, value in common.items() if name.startswith("par")} for _, (_, common) in found]
    assert parameters[0].keys() == parameters[1].keys() and all(
        parameters[0][name] != parameters[1][name] for name in parameters[0]
    )


def test_a_stream_that_is_a_step_behind_is_found(train, tmp_path, monkeypatch):
    prepare = BatchStream.prepare
    monkeypatch.setattr(BatchStream, "prepare", lambda self, step: prepare(self, max(0, step - 1)))
    with pytest.raises(DisagreementError, match=r"by step 4: the share of the samples is not .* on rank 0"):
        train(tmp_path / "run", **{"run.check_every": 4, "data.eval": None})
