"""Every engine takes the same steps: ZeRO 0 to 3 and Accelerate, on one and two ranks, in fp32 and bf16."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from longmix.modeling import MODEL_TYPES

ENGINES = ["zero0", "zero1", "zero2", "zero3", None]
RESUMED = [("zero0", "bf16"), ("zero1", "fp32"), ("zero2", "bf16"), ("zero3", "bf16"), (None, "bf16")]
SPIKED = {"zero0": "fp32", "zero1": "fp32", "zero2": "bf16", "zero3": "fp32", None: "fp32"}
OTHERS = [model_type for model_type in MODEL_TYPES if model_type not in ("s3attention", "transformer")]
QUIET = {"eval.every_steps": 1000, "checkpoint.every_steps": 1000}
STEPS = {"s3attention": 50, "transformer": 12}
# [(ranks, engine, precision, kind)]: runs whose steps 3 and 4 are spoilt on the last rank.
POISONED = [
    *((1, engine, "fp32", "loss") for engine in ENGINES),
    *((2, engine, "fp32", kind) for engine in ENGINES for kind in ("loss", "gradient")),
    *((2, engine, precision, "gradient") for engine in ENGINES for precision in ("bf16", "fp16")),
]


def in_part(cases, chosen):
    """The cases of a test; those that are not among the chosen ones are marked full."""
    parameters = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = [] if case in chosen else [pytest.mark.full]
        parameters.append(pytest.param(*values, id="-".join(map(str, values)), marks=marks))
    return parameters


@pytest.fixture(scope="module")
def make(forked_ranks, run_values, tmp_path_factory):
    """make(ranks, (model type, changes to the run file, the rest of a job), ...) -> [(run folder, report)], made one
    after the other by the same ranks."""

    def run(ranks, *jobs):
        values = [
            run_values(tmp_path_factory.mktemp("engines") / "run", model_type, **changes)
            for model_type, changes, *_ in jobs
        ]
        more = [job[2] if len(job) > 2 else {} for job in jobs]
        reports = forked_ranks.run(ranks, [{"values": one, **other} for one, other in zip(values, more, strict=True)])
        return [(Path(one["run"]["dir"]), report) for one, report in zip(values, reports, strict=True)]

    return run


@pytest.fixture(scope="module")
def trained(make):
    """trained(ranks, model type, engine, **changes) -> (run folder, report), made once."""
    made = {}

    def train(ranks, model_type, engine, **changes):
        key = ranks, model_type, engine, *changes.items()
        if key not in made:
            steps = {"optim.max_steps": STEPS.get(model_type, 5), "optim.warmup_steps": 5, "deepspeed": engine}
            cut = {"batch.micro_batch": 8 if ranks == 1 else 4}
            (made[key],) = make(ranks, (model_type, {**steps, **cut, **QUIET, **changes}))
        return made[key]

    return train


BF16 = {"precision": "bf16", "optim.max_steps": 12}


@pytest.fixture
def curve(trained, read_metrics):
    """curve(ranks, model type, engine, name="loss", **changes) -> that figure at every step."""

    def read(*run, name="loss", **changes):
        folder, report = trained(*run, **changes)
        assert report["code"] == 0
        return [record[name] for record in read_metrics(folder, "train")]

    return read


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
def test_the_loss_curve_is_the_same_for_every_engine_and_rank_count(curve, kind):
    reference = curve(1, kind, "zero1")
    norms = curve(1, kind, "zero1", name="grad_norm")
    assert len(reference) == STEPS[kind] and reference[-1] < reference[0] - 0.2
    for ranks in (1, 2):
        for engine in ENGINES:
            where = f"{engine} x {ranks}"
            np.testing.assert_allclose(curve(ranks, kind, engine), reference, rtol=0, atol=1e-5, err_msg=where)
            found = curve(ranks, kind, engine, name="grad_norm")
            np.testing.assert_allclose(found, norms, rtol=1e-3, err_msg=where)


@pytest.mark.slow
@pytest.mark.full
def test_the_loss_curve_is_the_same_for_every_micro_batch(curve):
    whole = curve(1, "s3attention", "zero1", **{"batch.micro_batch": 16})
    np.testing.assert_allclose(whole, curve(1, "s3attention", "zero1"), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "engine"),
    in_part(list(itertools.product(OTHERS, ENGINES)), list(zip(OTHERS, ENGINES, strict=False))),
)
def test_every_mixer_trains_alike_in_every_engine(curve, model_type, engine):
    reference = curve(1, model_type, "zero1")
    assert reference[-1] < reference[0]
    np.testing.assert_allclose(curve(2, model_type, engine), reference, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("engine", in_part(ENGINES, ["zero3"]))
def test_parameters_without_a_gradient_hinder_no_engine(curve, engine):
    """The pooler of fnet gets none in masked language modelling."""
    np.testing.assert_allclose(curve(2, "fnet", engine), curve(2, "fnet", "zero1"), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.full
def test_bf16_curves_agree_to_five_in_a_thousand(curve):
    reference = curve(1, "s3attention", "zero1", **BF16)
    assert reference[-1] < reference[0] - 0.2
    for ranks in (1, 2):
        for engine in ("zero0", "zero1", "zero2", "zero3"):
            found = curve(ranks, "s3attention", engine, **BF16)
            np.testing.assert_allclose(found, reference, rtol=5e-3, err_msg=f"{engine} x {ranks}")
    # Autocast rounds elsewhere than a model that is cast; it agrees with itself.
    one, two = (curve(ranks, "s3attention", None, **BF16) for ranks in (1, 2))
    np.testing.assert_allclose(two, one, rtol=5e-3)
    np.testing.assert_allclose(one, reference, rtol=2e-2)


# [(ranks, model type, engine)]: stages 0 and 2 keep their fp32 weights in different places.
EXPORTED = [
    (ranks, kind, engine)
    for kind, engines in (("transformer", ("zero0", "zero2")), ("s3attention", ENGINES))
    for engine in engines
    for ranks in (1, 2)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "kind", "engine"), in_part(EXPORTED, [(1, "transformer", "zero0"), (2, "transformer", "zero2")])
)
def test_exported_models_are_equal_in_fp32_with_tied_weights_once(trained, ranks, kind, engine):
    import safetensors.torch
    from transformers import AutoModelForMaskedLM

    import longmix.modeling  # noqa: F401

    embedding = "encoder.embeddings.word_embeddings.weight"
    reference = safetensors.torch.load_file(trained(1, kind, None)[0] / "model" / "model.safetensors")
    assert "head.decoder.weight" not in reference and embedding in reference
    found = safetensors.torch.load_file(trained(ranks, kind, engine)[0] / "model" / "model.safetensors")
    assert found.keys() == reference.keys()
    for name in found:
        assert found[name].dtype == reference[name].dtype != torch.bfloat16
        torch.testing.assert_close(found[name], reference[name], rtol=0, atol=1e-3)
    # Trained in bf16, the fp32 masters are what is saved, and what from_pretrained gives back.
    folder = trained(ranks, "s3attention", engine, **BF16)[0] / "model"
    weight = safetensors.torch.load_file(folder / "model.safetensors")[embedding]
    assert weight.dtype == torch.float32 and not torch.equal(weight, weight.bfloat16().float())
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


@pytest.fixture(scope="module")
def losses_of_plain_steps(trained, data):
    """The losses of plain PyTorch with each batch of 16 ragged samples in one piece."""
    from longmix.trainer.models.build import build_model, model_configuration
    from longmix.trainer.objectives.masking import TokenMasker
    from longmix.trainer.objectives.objective import make_objective
    from longmix.trainer.samples.collate import collate
    from longmix.trainer.samples.dataset import ShardedDataset
    from longmix.trainer.samples.order import RunOrder
    from longmix.trainer.settings import reading

    configuration = reading.load([str(trained(2, "transformer", "zero1")[0])], [])
    dataset = ShardedDataset(str(data / "train"))
    objective = make_objective(configuration.objective, 0, dataset.manifest, None)
    config = model_configuration(configuration, dataset.manifest, objective.auto_class)
    model = build_model(configuration, config, objective.auto_class).train()
    optim = configuration.optim
    spared = [p for n, p in model.named_parameters() if "bias" in n or "norm" in n.lower()]
    decayed = [p for n, p in model.named_parameters() if not ("bias" in n or "norm" in n.lower())]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": spared, "weight_decay": 0.0}],
        betas=tuple(optim.betas),
        eps=optim.eps,
    )
    order = RunOrder([len(dataset)], [1.0], 16, 4096, 0)
    masker = TokenMasker(0, 0.15, 2, 96, [0, 1, 2, 3, 4])
    expected, ragged = [], []
    for step in range(12):
        draw = order.draw(16 * step, 16)
        samples = [
            masker.mask(sample, masker.training_key(0, int(epoch), int(number)))
            for sample, epoch, number in zip(dataset.read(draw.sample), draw.epoch, draw.sample, strict=True)
        ]
        batch = collate(samples, 3)
        labels = batch.pop("labels")
        logits = model(**batch).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        losses = functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none").detach()
        per_sample = losses.sum(1) / (labels != -100).sum(1).clamp(min=1)
        ragged.append(abs(per_sample.mean().item() - loss.item()))
        rate = optim.lr * (step + 1) / 5 if step < 5 else optim.lr * (13 - step - 1) / (13 - 5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        expected.append(loss.item())
    # The data tell the means apart.
    assert np.mean(ragged) > 1e-2
    return expected


RANKS_AND_ENGINES = list(itertools.product((1, 2), ENGINES))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "engine"),
    in_part(RANKS_AND_ENGINES, [(1, "zero0"), (1, None), *((2, engine) for engine in ENGINES)]),
)
def test_losses_are_means_over_the_global_batch(curve, losses_of_plain_steps, ranks, engine):
    np.testing.assert_allclose(curve(ranks, "transformer", engine), losses_of_plain_steps, rtol=0, atol=1e-5)


NOT_FINITE = [
    (1, "zero0", "fp32", "loss"),
    (2, "zero1", "fp32", "gradient"),
    (2, "zero2", "bf16", "gradient"),
    (2, "zero3", "fp32", "loss"),
    (2, None, "fp32", "gradient"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "engine", "precision", "kind"), in_part(POISONED, NOT_FINITE))
def test_steps_that_are_not_finite_are_dropped_everywhere(make, read_metrics, ranks, engine, precision, kind):
    changes = {"deepspeed": engine, "precision": precision, "data.eval": None, **QUIET}
    poison = {"steps": [2, 3], "rank": ranks - 1, "kind": kind}
    ((folder, report),) = make(ranks, ("transformer", changes, {"poison": poison, "digest": True}))
    assert (report["code"], report["skipped"], report["samples"]) == (0, 2, 96)
    digests = report["digests"]
    assert digests[1] == digests[2] == digests[3] and len(set(digests)) == 4
    records = read_metrics(folder, "train")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["samples_seen"] for record in records] == [16, 32, 48, 64, 80, 96]
    assert [record["skipped_steps"] for record in records] == [0, 0, 1, 2, 2, 2]
    assert [record["loss"] is None for record in records] == [False, False, True, True, False, False]
    assert all(np.isfinite(records[index]["grad_norm"]) for index in (0, 1, 4, 5))


@pytest.mark.slow
@pytest.mark.full
def test_ten_in_a_row_stop_the_run(make):
    changes = {"deepspeed": "zero1", "optim.max_steps": 15, "data.eval": None}
    poisons = [{"steps": list(range(3, last)), "rank": 1, "kind": "loss"} for last in (12, 13)]
    (_, nine), (_, ten) = make(2, *(("transformer", changes, {"poison": poison}) for poison in poisons))
    assert (nine["code"], nine["skipped"]) == (0, 9)
    assert "10 steps in a row had a loss or gradients that are not finite (last: step 13)" in ten["error"]
    assert "Lower optim.lr" in ten["error"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", in_part(ENGINES, ["zero1"]))
def test_a_spike_on_one_rank_is_dropped_by_all_and_after_a_stop_too(make, read_metrics, tmp_path, engine):
    changes = {"deepspeed": engine, "precision": SPIKED[engine], "data.eval": None, "optim.max_steps": 10, **QUIET}
    jobs = []
    for name, steps, last in (("whole", [7], None), ("parts", [], 6), ("parts", [1], None)):
        own = {"run.dir": str(tmp_path / name), "run.stop_at_step": last, "optim.skip_spikes": True}
        poison = {"steps": steps, "rank": 1, "kind": "spike"}
        jobs.append(("transformer", {**changes, **own}, {"poison": poison, "digest": True, "fewest": 5}))
    (folder, report), first, rest = make(2, *jobs)
    assert (report["code"], report["skipped"], report["samples"]) == (0, 1, 160)
    digests = report["digests"]
    assert digests[6] == digests[7] and len(set(digests)) == 9
    norms = [record["grad_norm"] for record in read_metrics(folder, "train")]
    assert norms[7] > 100 * max(norms[:7]) and max(norms[8:]) < 2 * max(norms[:7])
    # The window goes on where it was: without it the run would know of one step before the spike.
    assert first[1]["code"] == 75 and rest[1]["skipped"] == 1
    assert first[1]["digests"] + rest[1]["digests"] == digests
    assert [record["grad_norm"] for record in read_metrics(rest[0], "train")] == norms


@pytest.mark.slow
def test_all_ranks_leave_together_if_a_micro_batch_does_not_fit_on_one(make):
    # With batch statistics, which ranks exchange in the middle of the model.
    memory = {"steps": [0], "rank": 1, "kind": "memory"}
    ((_, report),) = make(2, ("s3attention", {"model.normalization": "batch"}, {"poison": memory}))
    assert "does not fit into the memory of rank 1; set batch.micro_batch=2 (" in report["error"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", in_part(["zero0", "zero2", None], ["zero2"]))
def test_ranks_that_come_apart_are_told(make, engine):
    """A weight of rank 1 changes after step 3 or 4; the ranks compare theirs after steps 2, 4 and 6."""
    # At stage 2 the next step would put back what another rank holds.
    poison = {"steps": [3 if engine == "zero2" else 2], "rank": 1, "kind": "weight"}
    changes = {"deepspeed": engine, "data.eval": None, "run.check_every": 2}
    ((_, report),) = make(2, ("transformer", changes, {"poison": poison}))
    text = report["error"]
    assert "come apart by step 4: parameter encoder.embeddings.word_embeddings.weight is not what it should be" in text
    assert "on rank 1. They agreed at step 2" in text


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "precision"), in_part(RESUMED, [("zero3", "bf16")]))
def test_a_stopped_run_goes_on_bit_for_bit(make, read_metrics, tmp_path, engine, precision):
    changes = {"deepspeed": engine, "precision": precision, "model.hidden_dropout_prob": 0.1}
    changes |= {"checkpoint.every_steps": 4, "run.check_every": 2}
    (whole, report), first, (parts, rest) = make(
        2,
        ("s3attention", changes),
        ("s3attention", {**changes, "run.dir": str(tmp_path / "parts"), "run.stop_at_step": 3}),
        ("s3attention", {**changes, "run.dir": str(tmp_path / "parts")}),
    )
    assert (report["code"], first[1]["code"], rest["code"]) == (0, 75, 0) and parts != whole
    timed = ("tokens_per_second", "data_wait_fraction")
    records = [
        [{name: value for name, value in record.items() if name not in timed} for record in read_metrics(folder)]
        for folder in (whole, parts)
    ]
    assert records[0] == records[1]
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, parts)]
    assert weights[0] == weights[1]


@pytest.mark.slow
@pytest.mark.full
def test_another_number_of_ranks_goes_on(make, read_metrics, tmp_path):
    jobs = [
        ("transformer", {"deepspeed": engine, "optim.max_steps": 8, "run.dir": str(tmp_path / str(engine)), **QUIET})
        for engine in ("zero0", "zero1", None)
    ]
    # Begun by two ranks, gone on with by one.
    begun = make(2, *((model_type, {**changes, "run.stop_at_step": 4}) for model_type, changes in jobs))
    assert [report["code"] for _, report in begun] == [75] * 3
    curves = []
    for folder, report in make(1, *jobs):
        assert report["code"] == 0
        curves.append([record["loss"] for record in read_metrics(folder, "train")])
        assert [record["step"] for record in read_metrics(folder, "train")] == list(range(1, 9))
    np.testing.assert_allclose(curves[1:], [curves[0]] * 2, rtol=0, atol=1e-5)


def test_an_overflow_of_fp16_at_the_lowest_scale_is_a_dropped_step(monkeypatch):
    from deepspeed.runtime.fp16 import loss_scaler

    from longmix.trainer.engines.deepspeed import drop_at_lowest_scale

    monkeypatch.setattr(loss_scaler.dist, "get_rank", lambda: 1)  # no others are here
    scaler = loss_scaler.DynamicLossScaler(2.0, 1000, min_scale=1.0, delayed_shift=1, consecutive_hysteresis=False)
    drop_at_lowest_scale(SimpleNamespace(loss_scaler=scaler))
    for _ in range(20):
        scaler.update_scale(overflow=True)
    assert scaler.cur_scale == scaler.min_scale
    drop_at_lowest_scale(SimpleNamespace())  # of other precisions
