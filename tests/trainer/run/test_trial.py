"""The trial of a run's micro-batch: how far it goes in its time, by a clock that only the passes move."""

import pytest
import torch

from longmix.trainer.models.field_check import field_mistakes
from longmix.trainer.run import trial
from longmix.trainer.run.setup import prepare
from longmix.trainer.settings import reading


class Clock:
    """Moves by `cost(samples, length)` with each forward pass, and by 1 with each step of the optimizer."""

    def __init__(self, monkeypatch, prepared, cost):
        self.now, self.shapes = 0.0, []
        forward, make_optimizer = prepared.objective.forward, trial.make_guarded_optimizer

        def timed_forward(model, batch, items):
            self.shapes.append(tuple(batch["input_ids"].shape))
            self.now += cost(*self.shapes[-1])
            return forward(model, batch, items)

        def optimizer(*arguments):
            made = make_optimizer(*arguments)
            step = made.step

            def timed_step():
                self.now += 1.0
                step()

            made.step = timed_step
            return made

        monkeypatch.setattr(trial, "_FIRST_LENGTH", 2)
        monkeypatch.setattr(trial, "make_guarded_optimizer", optimizer)
        monkeypatch.setattr(prepared.objective, "forward", timed_forward)

    def __call__(self):
        return self.now


@pytest.fixture
def prepared(run_values, tmp_path):
    def make(model_type="transformer", **changes):
        configuration = reading.from_dict(run_values(tmp_path / "run", model_type, **changes), "test", field_mistakes)
        return prepare(configuration, 1, torch.device("cpu"))

    return make


def tried(monkeypatch, prepared, cost):
    """(what was found, its clock) of a trial of 20 seconds."""
    clock = Clock(monkeypatch, prepared, cost)
    return trial.try_out(prepared, torch.device("cpu"), 20.0, clock), clock


def test_it_goes_up_to_the_micro_batch_where_there_is_time(prepared, monkeypatch):
    found, clock = tried(monkeypatch, prepared(), lambda samples, length: 0.0)
    usual = found.usual_length
    # The first one alone compiles, and the quickest of four of the last counts.
    assert clock.shapes == [(1, 1), (1, 2), (1, 8), (1, usual), *[(4, usual)] * 4]
    assert found.is_whole and found.optimizer == 1.0 and found.activations > 0
    # Samples of 4 to 24 tokens, in micro-batches of 4 that are padded to their longest.
    assert 14 < usual <= 24


def test_it_ends_where_the_next_one_could_take_too_long(prepared, monkeypatch):
    found, clock = tried(monkeypatch, prepared(), lambda samples, length: samples * length**2 / 20)
    # A sample of 8 takes 3.2 seconds, one of two and a half times that length perhaps six times as many.
    assert (found.samples, found.length) == (1, 8) and not found.is_whole
    assert found.forward == pytest.approx(3.2 * 4 * found.usual_length / 8)
    assert clock.now < 20


def test_it_ends_where_the_next_one_could_take_too_much_memory(prepared, monkeypatch):
    with monkeypatch.context() as patched:
        whole, _ = tried(patched, prepared(), lambda samples, length: 0.0)
    monkeypatch.setattr(trial, "_room", lambda device: trial._states(made) + 0.7 * whole.activations)
    made = prepared()
    found, _ = tried(monkeypatch, made, lambda samples, length: 0.0)
    assert whole.is_whole and (found.samples, found.length) == (1, whole.usual_length)


def test_compiling_takes_none_of_its_time(prepared, monkeypatch):
    costs = iter([1000.0])
    found, _ = tried(monkeypatch, prepared(), lambda samples, length: next(costs, 0.0))
    assert found.is_whole


@pytest.mark.full
def test_activations_are_what_the_backward_pass_keeps(prepared, monkeypatch):
    def bytes_of(**changes):
        return trial.try_out(prepared(**changes), torch.device("cpu")).activations

    whole = bytes_of(**{"model.num_hidden_layers": 2})
    assert bytes_of(**{"model.num_hidden_layers": 4}) > 1.5 * whole
    assert bytes_of(**{"model.num_hidden_layers": 2, "run.gradient_checkpointing": True}) < 0.7 * whole
    assert bytes_of(**{"model.num_hidden_layers": 2, "batch.micro_batch": 8}) > 1.5 * whole


def test_activations_of_a_part_speak_for_the_whole_and_copies_of_weights_do_not_grow_with_it(prepared, monkeypatch):
    # In 16 bits the weights' copies are most of what a few tokens keep.
    wide = {"precision": "bf16", "model.hidden_size": 64, "model.intermediate_size": 256, "batch.micro_batch": 16}
    with monkeypatch.context() as patched:
        whole, _ = tried(patched, prepared(**wide), lambda samples, length: 0.0)
    part, _ = tried(monkeypatch, prepared(**wide), lambda samples, length: 6.0)
    assert whole.is_whole and (part.samples, part.length) == (1, 2)
    assert part.activations == pytest.approx(whole.activations, rel=0.2)


def test_the_optimizer_is_timed_on_a_part_of_the_parameters_where_all_take_too_long(prepared, monkeypatch):
    slow = {"optim.name": "muon", "model.num_hidden_layers": 8}
    found, _ = tried(monkeypatch, prepared(**slow), lambda samples, length: 1000.0)
    # One of several matrices of each shape was moved, in a second, and speaks for all.
    assert 2.0 < found.optimizer < 8.0


def test_generators_and_the_machine_stay_as_they_are(prepared):
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    trial.try_out(prepared(**{"run.threads": 1}), torch.device("cpu"))
    assert torch.equal(before, torch.random.get_rng_state()) and torch.get_num_threads() == threads


def test_a_model_that_does_not_run_is_no_fault_of_the_check(prepared, monkeypatch):
    def fail(*_):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(trial, "build_model", fail)
    with pytest.raises(trial.NotTried, match="does not run here: shapes do not fit"):
        trial.try_out(prepared(), torch.device("cpu"))
    monkeypatch.setitem(trial.MOST_PARAMETERS, "cpu", 100)
    with pytest.raises(trial.NotTried, match="a trial here takes at most 100"):
        trial.try_out(prepared(), torch.device("cpu"))
