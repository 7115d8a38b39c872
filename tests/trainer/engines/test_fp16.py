"""fp16 in every engine, which torch computes on CPUs, too: what the loss is multiplied by, gradients are divided by."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from longmix.modeling import MODEL_TYPES
from longmix.trainer.engines.make import make_engine
from longmix.trainer.settings import deepspeed_file, reading

ENGINES = ["zero0", "zero1", "zero2", "zero3", None]
STEPS = 12
CHANGES = {"precision": "fp16", "optim.max_steps": STEPS, "eval.every_steps": 1000, "checkpoint.every_steps": 1000}


def in_part(engines, *chosen):
    """The engines of a test; those that are not among the chosen ones are marked full."""
    return [pytest.param(one, marks=[] if one in chosen else [pytest.mark.full]) for one in engines]


@pytest.fixture
def scaled(tmp_path):
    """scaled(engine, power, window) -> the engine with a loss scale that begins at 2^power and grows after window steps
    without an overflow."""

    def write(engine, power, window=2):
        if engine is None:
            return None
        values = deepspeed_file.read(engine)
        values["fp16"] |= {"initial_scale_power": power, "loss_scale_window": window, "hysteresis": 1}
        path = tmp_path / f"{engine}-{power}.json"
        path.write_text(json.dumps(values))
        return str(path)

    return write


@pytest.fixture
def make(forked_ranks, run_values, tmp_path):
    """make(ranks, changes to the run file, ...) -> [(run folder, report)]; a folder for each unless they name one."""
    numbers = itertools.count()

    def run(ranks, *jobs):
        values = [
            run_values(tmp_path / f"run-{next(numbers)}", **{"model_type": "transformer", **CHANGES, **job})
            for job in jobs
        ]
        reports = forked_ranks.run(ranks, [{"values": one, "digest": True} for one in values])
        return [(Path(one["run"]["dir"]), report) for one, report in zip(values, reports, strict=True)]

    return run


@pytest.fixture
def losses(read_metrics):
    """losses(run folder) -> of every step; that of one that is dropped is not a number."""

    def read(folder):
        return [np.nan if one["loss"] is None else one["loss"] for one in read_metrics(folder, "train")]

    return read


@pytest.mark.slow
@pytest.mark.parametrize("stage", in_part(ENGINES[:4], "zero0", "zero3"))
def test_gradients_are_divided_by_the_scale_that_they_have(stage, scaled, world, run_values, tmp_path, monkeypatch):
    """DeepSpeed has two mistakes here: see `forward_backward` and `growing_later` in trainer/engines/deepspeed.py."""
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(type(get_accelerator()), "is_fp16_supported", lambda self: True)
    own = {"deepspeed": scaled(stage, 6), "optim.grad_clip": None, "batch.micro_batch": 16}
    configuration = reading.from_dict(run_values(tmp_path / "run", "transformer", **{**CHANGES, **own}), "test")
    torch.manual_seed(0)
    network = torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in itertools.pairwise((33, 64, 17))))
    batch = {"inputs": torch.randn(16, 33).half(), "targets": torch.randn(16, 17)}

    def forward(model, batch):
        return functional.mse_loss(model(batch["inputs"]).float(), batch["targets"]), torch.zeros(1)

    whole = functional.mse_loss(network(batch["inputs"].float()), batch["targets"])
    parts = torch.autograd.grad(whole, network.parameters())
    expected = sum(one.square().sum().item() for one in parts) ** 0.5
    engine = make_engine(network, configuration, "fp16", "fp16", world)
    given = []

    def note(optimizer, arguments, keywords):
        """DeepSpeed may call the optimizer once for each group of parameters."""
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        given[-1] += sum(one.float().square().sum().item() for one in gradients)

    engine.module.basic_optimizer.register_step_pre_hook(note)
    results = []
    for _ in range(8):
        given.append(0.0)
        engine.forward_backward([batch], forward)
        results.append(engine.step(0.0))
    assert [result.loss_scale for result in results] == [64, 64, 128, 128, 256, 256, 512, 512]
    assert [float(result.gradient_norm) for result in results] == pytest.approx([expected] * 8, rel=2e-3)
    assert np.sqrt(given) == pytest.approx(np.full(8, expected), rel=2e-3)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_engine_takes_the_steps_of_fp32(optimizer, scaled, make, losses):
    jobs = [{"deepspeed": None, "precision": "fp32"}, *({"deepspeed": scaled(one, 12, 5)} for one in ENGINES)]
    (expected, *others) = make(2, *({**job, "optim.name": optimizer} for job in jobs))
    reference = losses(expected[0])
    assert len(reference) == STEPS and reference[-1] < reference[0] - 0.5
    for engine, (folder, report) in zip(ENGINES, others, strict=True):
        assert report.get("code") == 0, (engine, report)
        np.testing.assert_allclose(losses(folder), reference, rtol=0, atol=2e-3, err_msg=str(engine))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_every_model_takes_the_steps_of_fp32(kind, scaled, make, losses):
    (expected, _), (found, report) = make(
        1, *({"model_type": kind, **how} for how in ({"precision": "fp32"}, {"deepspeed": scaled("zero1", 8, 1000)}))
    )
    assert report.get("code") == 0, report
    np.testing.assert_allclose(losses(found), losses(expected), rtol=0, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("engine", in_part(ENGINES, "zero1"))
def test_a_stopped_run_goes_on_bit_for_bit_where_the_scale_grows_and_falls(engine, scaled, make, losses, tmp_path):
    changes = {"deepspeed": scaled(engine, 18), "model.hidden_dropout_prob": 0.1}
    parts = [{"run.dir": str(tmp_path / "parts"), "run.stop_at_step": last} for last in (3, 4, 7, None)]
    (whole, report), *pieces = make(2, *({**changes, **one} for one in [{}, *parts]))
    assert report["code"] == 0 and [piece["code"] for _, piece in pieces] == [75, 75, 75, 0]
    assert [one for _, piece in pieces for one in piece["digests"]] == report["digests"]
    np.testing.assert_equal(losses(pieces[-1][0]), losses(whole))
    dropped = np.isnan(losses(whole))
    assert engine is None or 0 < dropped.sum() < STEPS, losses(whole)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_another_number_of_ranks_goes_on(engine, scaled, make, losses, tmp_path):
    changes = {"deepspeed": scaled(engine, 12, 5)}
    ((whole, _),) = make(1, {**changes, "batch.micro_batch": 8})
    for ranks, micro_batch, last in ((2, 4, 3), (1, 8, 6), (4, 2, 9), (2, 8, None)):
        own = {"run.dir": str(tmp_path / "parts"), "run.stop_at_step": last, "batch.micro_batch": micro_batch}
        ((folder, report),) = make(ranks, {**changes, **own})
        assert report.get("code") == (0 if last is None else 75), report
    np.testing.assert_allclose(losses(folder), losses(whole), rtol=0, atol=2e-3)
