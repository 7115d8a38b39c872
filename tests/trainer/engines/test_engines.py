"""Every engine takes the same steps: ZeRO 0 to 3 and Accelerate, on one and two ranks, in fp32 and bf16."""

import json
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from longmix.modeling import MODEL_TYPES

ENGINES = ["zero0", "zero1", "zero2", "zero3", None]
RESUMED = [("zero0", "bf16"), ("zero1", "fp32"), ("zero2", "bf16"), ("zero3", "bf16"), (None, "bf16")]
SPIKED = [("zero0", "fp32"), ("zero1", "fp32"), ("zero2", "bf16"), ("zero3", "fp32"), (None, "fp32")]
OTHERS = [model_type for model_type in MODEL_TYPES if model_type not in ("s3attention", "transformer")]
QUIET = {"eval.every_steps": 1000, "checkpoint.every_steps": 1000}


def run_many(start, path, jobs, ranks):
    """One report for each job, all run in the same processes."""
    path.write_text(json.dumps(jobs))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = Path(__file__).parents[1] / "many_runs.py"
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    commands = [start(script, path, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in range(ranks)]
    outputs = [command.wait(400) for command in commands]
    assert [code for code, _ in outputs] == [0] * ranks, "\n".join(text for _, text in outputs)
    lines = [line for line in outputs[0][1].splitlines() if line.startswith("REPORT ")]
    return [json.loads(line.removeprefix("REPORT ")) for line in lines]


def curve_cases(ranks):
    """{key: (model type, changes to the run file)}: loss curves."""
    cases = {}
    for engine in ENGINES:
        cases["s3attention", engine] = "s3attention", {"optim.max_steps": 50, "deepspeed": engine}
        cases["transformer", engine] = "transformer", {"optim.max_steps": 12, "deepspeed": engine}
        cases["bf16", engine] = "s3attention", {"optim.max_steps": 12, "deepspeed": engine, "precision": "bf16"}
        if ranks == 2 or engine == "zero1":
            for model_type in OTHERS:
                cases[model_type, engine] = model_type, {"optim.max_steps": 5, "deepspeed": engine}
    if ranks == 1:
        whole = {"optim.max_steps": 50, "deepspeed": "zero1", "batch.micro_batch": 16}
        cases["whole batch"] = "s3attention", whole
    else:
        # Its pooler gets no gradient in masked language modelling.
        for engine in ENGINES:
            cases["fnet", engine] = "fnet", {"optim.max_steps": 5, "deepspeed": engine}
    return cases


def poison_cases(ranks):
    """[(engine, precision, kind)]: runs whose steps 3 and 4 are spoilt on the last rank."""
    if ranks == 1:
        return [(engine, "fp32", "loss") for engine in ENGINES]
    plain = [(engine, "fp32", kind) for engine in ENGINES for kind in ("loss", "gradient")]
    return [*plain, *((engine, "bf16", "gradient") for engine in ENGINES)]


@pytest.fixture(scope="module")
def runs(start_for_module, run_values, tmp_path_factory):
    """{(ranks, *case): (run folder, report)}, each rank count in one start."""
    done, shared = {}, tmp_path_factory.mktemp("engines")
    for ranks in (2, 1):
        root = shared / str(ranks)
        root.mkdir()
        jobs, keys = [], []

        def add(key, values, root=root, ranks=ranks, jobs=jobs, keys=keys, **job):
            values["run"]["dir"] = str(root / str(len(jobs)))
            jobs.append({"values": values, **job})
            keys.append((ranks, *(key if isinstance(key, tuple) else (key,))))

        for key, (model_type, changes) in curve_cases(ranks).items():
            cut = {"batch.micro_batch": 8 if ranks == 1 else 4}
            add(key, run_values("", model_type, **{"optim.warmup_steps": 5, **cut, **QUIET, **changes}))
        for case in poison_cases(ranks):
            engine, precision, kind = case
            changes = {"deepspeed": engine, "precision": precision, "data.eval": None, **QUIET}
            poison = {"steps": [2, 3], "rank": ranks - 1, "kind": kind}
            add(("poison", *case), run_values("", **changes), poison=poison, digest=True)
        if ranks == 2:
            for engine, precision in RESUMED:
                changes = {"deepspeed": engine, "precision": precision, "model.hidden_dropout_prob": 0.1}
                changes |= {"checkpoint.every_steps": 4, "run.check_every": 2}
                for part, last in (("whole", None), ("first", 3), ("rest", None)):
                    name = "whole" if part == "whole" else "parts"
                    values = run_values("", "s3attention", **changes, **{"run.stop_at_step": last})
                    add((part, engine, precision), values)
                    jobs[-1]["values"]["run"]["dir"] = str(root / f"{name}-{engine}-{precision}")
            for engine in ("zero0", "zero2", None):
                changes = {"deepspeed": engine, "data.eval": None, "run.check_every": 2}
                # At stage 2 the next step would put back what another rank holds.
                poison = {"steps": [3 if engine == "zero2" else 2], "rank": 1, "kind": "weight"}
                add(("apart", engine), run_values("", **changes), poison=poison)
            # With batch statistics, which ranks exchange in the middle of the model.
            memory = {"steps": [0], "rank": 1, "kind": "memory"}
            add("too large", run_values("", "s3attention", **{"model.normalization": "batch"}), poison=memory)
            for engine, precision in SPIKED:
                changes = {"deepspeed": engine, "precision": precision, "data.eval": None, "optim.max_steps": 10}
                for part, steps, last in (("whole", [7], None), ("first", [], 6), ("rest", [1], None)):
                    values = run_values("", **changes, **QUIET, **{"run.stop_at_step": last, "optim.skip_spikes": True})
                    poison = {"steps": steps, "rank": 1, "kind": "spike"}
                    add(("spike", part, engine), values, poison=poison, digest=True, fewest=5)
                    name = "whole" if part == "whole" else "parts"
                    jobs[-1]["values"]["run"]["dir"] = str(root / f"spike-{name}-{engine}")
        for engine in ("zero0", "zero1", None):
            # Begun by two ranks, gone on with by one.
            changes = {"deepspeed": engine, "optim.max_steps": 8, "run.stop_at_step": 4 if ranks == 2 else None}
            add(("moved", engine), run_values("", **changes, **QUIET))
            jobs[-1]["values"]["run"]["dir"] = str(shared / f"moved-{engine}")
        for name, last in (("nine", 12), ("ten", 13)) if ranks == 2 else ():
            changes = {"deepspeed": "zero1", "optim.max_steps": 15, "data.eval": None}
            add(name, run_values("", **changes), poison={"steps": list(range(3, last)), "rank": 1, "kind": "loss"})
        reports = run_many(start_for_module, root / "jobs.json", jobs, ranks)
        folders = [Path(job["values"]["run"]["dir"]) for job in jobs]
        done.update(zip(keys, zip(folders, reports, strict=True), strict=True))
    return done


@pytest.fixture
def curve(runs, read_metrics):
    """curve(*key, name="loss") -> that figure at every step."""

    def read(*key, name="loss"):
        folder, report = runs[key]
        assert report["code"] == 0
        return [record[name] for record in read_metrics(folder, "train")]

    return read


@pytest.mark.slow
def test_the_loss_curve_is_the_same_for_every_engine_and_rank_count(curve):
    for kind, steps in (("s3attention", 50), ("transformer", 12)):
        reference = curve(1, kind, "zero1")
        norms = curve(1, kind, "zero1", name="grad_norm")
        assert len(reference) == steps and reference[-1] < reference[0] - 0.2
        for ranks in (1, 2):
            for engine in ENGINES:
                where = f"{kind} {engine} x {ranks}"
                np.testing.assert_allclose(curve(ranks, kind, engine), reference, rtol=0, atol=1e-5, err_msg=where)
                found = curve(ranks, kind, engine, name="grad_norm")
                np.testing.assert_allclose(found, norms, rtol=1e-3, err_msg=where)
    np.testing.assert_allclose(curve(1, "whole batch"), curve(1, "s3attention", "zero1"), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", OTHERS)
def test_every_mixer_trains_alike_in_every_engine(curve, model_type):
    reference = curve(1, model_type, "zero1")
    assert reference[-1] < reference[0]
    for engine in ENGINES:
        np.testing.assert_allclose(curve(2, model_type, engine), reference, rtol=0, atol=1e-5, err_msg=str(engine))


@pytest.mark.slow
def test_parameters_without_a_gradient_hinder_no_engine(curve):
    for engine in ENGINES:
        np.testing.assert_allclose(curve(2, "fnet", engine), curve(2, "fnet", "zero1"), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_bf16_curves_agree_to_five_in_a_thousand(curve):
    reference = curve(1, "bf16", "zero1")
    assert reference[-1] < reference[0] - 0.2
    for ranks in (1, 2):
        for engine in ("zero0", "zero1", "zero2", "zero3"):
            found = curve(ranks, "bf16", engine)
            np.testing.assert_allclose(found, reference, rtol=5e-3, err_msg=f"{engine} x {ranks}")
    # Autocast rounds elsewhere than a model that is cast; it agrees with itself.
    one, two = (curve(ranks, "bf16", None) for ranks in (1, 2))
    np.testing.assert_allclose(two, one, rtol=5e-3)
    np.testing.assert_allclose(one, reference, rtol=2e-2)


@pytest.mark.slow
def test_exported_models_are_equal_in_fp32_with_tied_weights_once(runs):
    import safetensors.torch
    from transformers import AutoModelForMaskedLM

    import longmix.modeling  # noqa: F401

    embedding = "encoder.embeddings.word_embeddings.weight"
    reference = safetensors.torch.load_file(runs[1, "s3attention", None][0] / "model" / "model.safetensors")
    assert "head.decoder.weight" not in reference and embedding in reference
    for ranks in (1, 2):
        for engine in ENGINES:
            folder = runs[ranks, "s3attention", engine][0] / "model"
            found = safetensors.torch.load_file(folder / "model.safetensors")
            assert found.keys() == reference.keys()
            for name in found:
                assert found[name].dtype == reference[name].dtype != torch.bfloat16
                torch.testing.assert_close(found[name], reference[name], rtol=0, atol=1e-3)
            # Trained in bf16, the fp32 masters are what is saved, and what from_pretrained gives back.
            folder = runs[ranks, "bf16", engine][0] / "model"
            weight = safetensors.torch.load_file(folder / "model.safetensors")[embedding]
            assert weight.dtype == torch.float32 and not torch.equal(weight, weight.bfloat16().float())
            assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    model = AutoModelForMaskedLM.from_pretrained(runs[2, "bf16", "zero3"][0] / "model")
    assert model.dtype == torch.float32
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


@pytest.mark.slow
def test_losses_are_means_over_the_global_batch(runs, curve, data):
    """Against plain PyTorch with each batch of 16 ragged samples in one piece."""
    from longmix.trainer.data.collate import collate
    from longmix.trainer.data.dataset import ShardedDataset
    from longmix.trainer.data.order import RunOrder
    from longmix.trainer.models.build import build_model, model_configuration
    from longmix.trainer.objectives.masking import TokenMasker
    from longmix.trainer.objectives.objective import make_objective
    from longmix.trainer.settings import reading

    configuration = reading.load([str(runs[2, "transformer", "zero1"][0])], [])
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
    order = RunOrder([len(dataset)], [1.0], 16, 0)
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
    for ranks in (1, 2):
        for engine in ENGINES:
            found = curve(ranks, "transformer", engine)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=f"{engine} x {ranks}")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_that_are_not_finite_are_dropped_everywhere(runs, read_metrics, ranks):
    for case in poison_cases(ranks):
        folder, report = runs[(ranks, "poison", *case)]
        assert (report["code"], report["skipped"], report["samples"]) == (0, 2, 96), case
        digests = report["digests"]
        assert digests[1] == digests[2] == digests[3] and len(set(digests)) == 4, case
        records = read_metrics(folder, "train")
        assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6], case
        assert [record["samples_seen"] for record in records] == [16, 32, 48, 64, 80, 96], case
        assert [record["skipped_steps"] for record in records] == [0, 0, 1, 2, 2, 2], case
        assert [record["loss"] is None for record in records] == [False, False, True, True, False, False], case
        assert all(np.isfinite(records[index]["grad_norm"]) for index in (0, 1, 4, 5)), case


@pytest.mark.slow
def test_ten_in_a_row_stop_the_run(runs):
    nine, ten = runs[2, "nine"][1], runs[2, "ten"][1]
    assert (nine["code"], nine["skipped"]) == (0, 9)
    assert "10 steps in a row had a loss or gradients that are not finite (last: step 13)" in ten["error"]
    assert "Lower optim.lr" in ten["error"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_spike_on_one_rank_is_dropped_by_all_and_after_a_stop_too(runs, read_metrics, engine):
    folder, report = runs[2, "spike", "whole", engine]
    assert (report["code"], report["skipped"], report["samples"]) == (0, 1, 160)
    digests = report["digests"]
    assert digests[6] == digests[7] and len(set(digests)) == 9
    norms = [record["grad_norm"] for record in read_metrics(folder, "train")]
    assert norms[7] > 100 * max(norms[:7]) and max(norms[8:]) < 2 * max(norms[:7])
    # The window goes on where it was: without it the run would know of one step before the spike.
    first, rest = (runs[2, "spike", part, engine] for part in ("first", "rest"))
    assert first[1]["code"] == 75 and rest[1]["skipped"] == 1
    assert first[1]["digests"] + rest[1]["digests"] == digests
    assert [record["grad_norm"] for record in read_metrics(rest[0], "train")] == norms


@pytest.mark.slow
def test_all_ranks_leave_together_if_a_micro_batch_does_not_fit_on_one(runs):
    text = runs[2, "too large"][1]["error"]
    assert "does not fit into the memory of rank 1; set batch.micro_batch=2 (" in text


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["zero0", "zero2", None])
def test_ranks_that_come_apart_are_told(runs, engine):
    """A weight of rank 1 changes after step 3 or 4; the ranks compare theirs after steps 2, 4 and 6."""
    text = runs[2, "apart", engine][1]["error"]
    assert "come apart by step 4: parameter encoder.embeddings.word_embeddings.weight is not what it should be" in text
    assert "on rank 1. They agreed at step 2" in text


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "precision"), RESUMED)
def test_a_stopped_run_goes_on_bit_for_bit(runs, read_metrics, engine, precision):
    whole, report = runs[2, "whole", engine, precision]
    assert report["code"] == 0 and runs[2, "first", engine, precision][1]["code"] == 75
    parts, report = runs[2, "rest", engine, precision]
    assert report["code"] == 0 and parts != whole
    timed = ("tokens_per_second", "data_wait_fraction")
    records = [
        [{name: value for name, value in record.items() if name not in timed} for record in read_metrics(folder)]
        for folder in (whole, parts)
    ]
    assert records[0] == records[1]
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, parts)]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_another_number_of_ranks_goes_on(runs, read_metrics):
    curves = []
    for engine in ("zero0", "zero1", None):
        assert runs[2, "moved", engine][1]["code"] == 75
        folder, report = runs[1, "moved", engine]
        assert report["code"] == 0
        curves.append([record["loss"] for record in read_metrics(folder, "train")])
        assert [record["step"] for record in read_metrics(folder, "train")] == list(range(1, 9))
    np.testing.assert_allclose(curves[1:], [curves[0]] * 2, rtol=0, atol=1e-5)
