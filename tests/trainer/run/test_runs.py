"""Runs in one process: what a run folder holds, going on after a stop, the best checkpoint, any model type."""

import json
import logging
import math
import os
import random
import re
import shutil
import signal

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from longmix.data_prep.errors import UserError
from longmix.trainer.checkpoints import folders
from longmix.trainer.cli import main
from longmix.trainer.commands import checkpoint_figures
from longmix.trainer.objectives.labelled_positions import LabelledPositions
from longmix.trainer.prediction import progress
from longmix.trainer.processes.signals import STOP_SIGNALS, StopRequests
from longmix.trainer.samples.dataset import ShardedDataset


@pytest.fixture(scope="module")
def finished(world, run_values, write_data, tmp_path_factory):
    """A finished run of six steps with dropout, and its configuration as a map."""
    from longmix.trainer.run import loop
    from longmix.trainer.settings import reading

    folder = tmp_path_factory.mktemp("finished") / "run"
    changes = {"model.hidden_dropout_prob": 0.1, "log.tensorboard": True, "checkpoint.keep": 2}
    values = run_values(folder, "s3attention", **changes)
    outcome = loop.train(reading.from_dict(values, "test"), world)
    assert outcome.code == 0
    return folder, changes


def test_every_random_generator_follows_from_the_seed(train, tmp_path):
    ends = []
    for name in ("one", "other"):
        random.random(), np.random.random(), torch.rand(1)
        train(tmp_path / name, **{"optim.max_steps": 3})
        ends.append((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))
    assert ends[0] == ends[1]


def test_metrics_have_every_promised_figure(finished, read_metrics):
    folder, _ = finished
    records = read_metrics(folder)
    assert [(record["kind"], record["step"]) for record in records] == [
        ("eval", 0),
        *(("train", step) for step in (1, 2, 3, 4)),
        ("eval", 4),
        ("train", 5),
        ("train", 6),
        ("eval", 6),
        ("model", 6),
    ]
    train = [record for record in records if record["kind"] == "train"]
    assert [record["samples_seen"] for record in train] == [16, 32, 48, 64, 80, 96]
    assert [record["lr"] for record in train] == pytest.approx([2.5e-3, 5e-3, 4e-3, 3e-3, 2e-3, 1e-3])
    for record in train:
        assert {"loss", "grad_norm", "tokens_per_second", "data_wait_fraction", "mfu", "tokens_seen"} < set(record)
        assert record["tokens_per_second"] > 0 and 0 <= record["data_wait_fraction"] <= 1
        assert record["mfu"] is None and record["gpu_memory_gib"] is None and record["skipped_steps"] == 0
    for record in read_metrics(folder, "eval"):
        assert record["perplexity"] == pytest.approx(math.exp(record["loss"]))
        assert 0 <= record["masked_accuracy"] <= 1 and record["items"] > 0
    assert abs(records[0]["loss"] - math.log(96)) < 0.3


def test_a_run_folder_holds_what_is_promised(finished, data):
    folder, _ = finished
    assert {path.name for path in folder.iterdir()} == {
        ".lock",
        "config.yaml",
        "metrics.jsonl",
        "tensorboard",
        "checkpoints",
        "model",
    }
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["latest", "step-00000004", "step-00000006"]
    assert (folder / "checkpoints" / "latest").readlink().name == "step-00000006"
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
    card = (folder / "model" / "README.md").read_text()
    assert "## Data" in card and f"| {data.name} |" in card and "documents" in card
    for text in ("6 steps of 16 samples (96 samples", "lr 0.005", "| loss | "):
        assert text in card
    # Documents see each other in this mixer: the card says so.
    assert "documents that share a row see each other in s3attention" in card


def test_the_final_model_gives_the_logged_figures_again(finished, read_metrics, data, capsys, monkeypatch):
    folder, _ = finished
    logged = read_metrics(folder, "eval")[-1]
    assert main(["evaluate", str(folder / "model"), "--data", str(data / "validation"), "--samples", "12"]) == 0
    figures = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(figures["loss"]) == pytest.approx(logged["loss"], abs=1e-4)
    assert float(figures["masked_accuracy"]) == pytest.approx(logged["masked_accuracy"], abs=1e-4)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    text = checkpoint_figures.figures(str(folder / "model"), str(data / "validation"), None, 7)
    told = re.findall(r"longmix evaluate: (\d+) of (\d+) samples, .* samples/s", capsys.readouterr().err)
    samples = len(ShardedDataset(data / "validation"))
    assert told == [(str(min(done + 7, samples)), str(samples)) for done in range(0, samples, 7)]
    assert text == checkpoint_figures.figures(str(folder / "model"), str(data / "validation"), None, 16)


def test_export_of_a_step(finished, tmp_path, capsys):
    folder, _ = finished
    assert main(["export", str(folder), "--step", "4", "--output", str(tmp_path / "out")]) == 0
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    newest = AutoModelForMaskedLM.from_pretrained(folder / "model")
    weight, final = model.get_input_embeddings().weight, newest.get_input_embeddings().weight
    assert not torch.equal(weight, final) and torch.allclose(weight, final, atol=0.05)
    assert model.get_output_embeddings().weight is weight
    assert main(["export", str(folder), "--step", "5", "--output", str(tmp_path / "other")]) == 2
    assert "no checkpoint of step 5; it has: 4, 6" in capsys.readouterr().err


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(finished, train, read_metrics, untimed, tmp_path, step):
    reference, changes = finished
    outcome = train(tmp_path / "run", "s3attention", **changes, **{"run.stop_at_step": step})
    assert outcome.code == 75 and outcome.state.step == step
    assert outcome.state.step in folders.steps(tmp_path / "run") and not (tmp_path / "run" / "model").exists()
    assert train(tmp_path / "run", "s3attention", **changes).code == 0
    assert untimed(read_metrics(tmp_path / "run")) == untimed(read_metrics(reference))
    ours, theirs = (
        AutoModelForMaskedLM.from_pretrained(folder / "model").state_dict() for folder in (tmp_path / "run", reference)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_means_over_several_steps_survive_a_stop(train, read_metrics, untimed, tmp_path):
    changes = {"log.every_steps": 3, "checkpoint.every_steps": 2}
    train(tmp_path / "whole", **changes)
    assert train(tmp_path / "parts", **changes, **{"run.stop_at_step": 2}).code == 75
    assert train(tmp_path / "parts", **changes, **{"run.stop_at_step": 4}).code == 75
    assert train(tmp_path / "parts", **changes).code == 0
    assert untimed(read_metrics(tmp_path / "parts")) == untimed(read_metrics(tmp_path / "whole"))
    every = {**changes, "log.every_steps": 1}
    train(tmp_path / "every", **every)
    losses = [record["loss"] for record in read_metrics(tmp_path / "every", "train")]
    third = read_metrics(tmp_path / "whole", "train")[0]["loss"]
    assert third == pytest.approx(sum(losses[:3]) / 3, rel=0.05)


def test_a_stop_request_does_not_change_which_checkpoint_is_best(train, read_metrics, untimed, tmp_path):
    changes = {
        "checkpoint.best": {"metric": "loss", "mode": "max"},
        "checkpoint.every_steps": 3,
        "checkpoint.keep": 1,
        "eval.every_steps": 100,
    }
    whole = train(tmp_path / "whole", **changes)
    assert train(tmp_path / "parts", **changes, **{"run.stop_at_step": 2}).code == 75
    parts = train(tmp_path / "parts", **changes)
    assert untimed(read_metrics(tmp_path / "parts")) == untimed(read_metrics(tmp_path / "whole"))
    assert (parts.state.best_step, parts.state.best_value) == (whole.state.best_step, whole.state.best_value)


def test_between_equal_checkpoints_the_loss_decides(train, read_metrics, tmp_path, monkeypatch):
    figures = LabelledPositions.figures
    monkeypatch.setattr(LabelledPositions, "figures", lambda *given: {**figures(*given), "masked_accuracy": 0.5})
    outcome = train(
        tmp_path / "run",
        **{
            "checkpoint.best": {"metric": "masked_accuracy", "mode": "max"},
            "eval.every_steps": 2,
            "checkpoint.every_steps": 2,
        },
    )
    losses = {record["step"]: record["loss"] for record in read_metrics(tmp_path / "run", "eval") if record["step"] > 0}
    assert len(losses) == 3
    assert outcome.state.best_step == min(losses, key=losses.get) != min(losses)


def test_the_best_checkpoint_is_kept_and_makes_the_model_and_the_test_is_read_once(
    train, read_metrics, untimed, tmp_path, data, write_data
):
    write_data(tmp_path / "test", 20, 3, split="test")
    changes = {
        # The loss falls: the worst is the first.
        "checkpoint.best": {"metric": "loss", "mode": "max"},
        "checkpoint.every_steps": 2,
        "checkpoint.keep": 1,
        "eval.every_steps": 3,
        "data.test": str(tmp_path / "test"),
        "optim.lr": 2e-2,
        "optim.max_steps": 10,
    }
    outcome = train(tmp_path / "run", **changes)
    evaluated = {record["step"]: record["loss"] for record in read_metrics(tmp_path / "run", "eval")}
    due = {step: evaluated[step] for step in (2, 4, 6, 8, 10)}
    best = max(due, key=due.get)
    assert best != 10
    assert (outcome.state.best_step, outcome.state.best_value) == (best, due[best])
    assert folders.steps(tmp_path / "run") == [best, 10]
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "model")
    kept = AutoModelForMaskedLM.from_pretrained(folders.path_of(tmp_path / "run", best) / "model")
    assert torch.equal(model.get_input_embeddings().weight, kept.get_input_embeddings().weight)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    (test,) = read_metrics(tmp_path / "run", "test")
    assert f"| loss | {due[best]:.4f} |" in card and f"| test_loss | {test['loss']:.4f} |" in card
    # The same command on the finished run changes and doubles nothing.
    before = untimed(read_metrics(tmp_path / "run"))
    assert train(tmp_path / "run", **changes).code == 0
    assert untimed(read_metrics(tmp_path / "run")) == before
    assert (tmp_path / "run" / "model" / "README.md").read_text() == card


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_anew(train, tmp_path):
    train(tmp_path / "run", **{"run.stop_at_step": 4})
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert len(checkpoints) == 2
    for folder in checkpoints:
        (folder / "state.json").unlink()
    records = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"^none of the checkpoints in .*checkpoints is whole .* to begin anew$"):
        train(tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == records
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert train(tmp_path / "run").code == 0


def test_an_unknown_metric_is_told_before_the_first_step(train, tmp_path):
    with pytest.raises(UserError, match=r"checkpoint\.best\.metric is 'los', but .* gives: loss, perplexity"):
        train(tmp_path / "run", **{"checkpoint.best": {"metric": "los", "mode": "min"}})


def test_a_run_that_failed_before_its_first_checkpoint_starts_anew(
    finished, train, read_metrics, untimed, tmp_path, monkeypatch
):
    reference, changes = finished
    from longmix.trainer.engines.accelerate import AccelerateEngine

    def failing(self, folder):
        raise RuntimeError("power cut")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="power cut"):
        patched.setattr(AccelerateEngine, "collect", failing)
        train(tmp_path / "run", "s3attention", **changes)
    assert len(read_metrics(tmp_path / "run")) == 3 and folders.newest(tmp_path / "run") is None
    assert train(tmp_path / "run", "s3attention", **changes).code == 0
    assert untimed(read_metrics(tmp_path / "run")) == untimed(read_metrics(reference))
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_a_damaged_checkpoint_is_passed_over_and_the_run_is_the_same(
    finished, train, read_metrics, untimed, tmp_path, caplog
):
    reference, changes = finished
    changes = {**changes, "checkpoint.keep": 2}
    train(tmp_path / "run", "s3attention", **changes, **{"run.stop_at_step": 5})
    assert folders.steps(tmp_path / "run")[-1] >= 4
    for step in folders.steps(tmp_path / "run")[1:]:
        path = folders.path_of(tmp_path / "run", step) / "engine.safetensors"
        contents = bytearray(path.read_bytes())
        contents[len(contents) // 2] ^= 255
        path.write_bytes(contents)
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 5, "lo')
    with caplog.at_level(logging.WARNING):
        assert train(tmp_path / "run", "s3attention", **changes).code == 0
    assert "passed over" in caplog.text and "engine.safetensors" in caplog.text
    assert untimed(read_metrics(tmp_path / "run")) == untimed(read_metrics(reference))


def test_another_configuration_in_the_same_folder_is_refused(finished, train):
    folder, changes = finished
    with pytest.raises(
        UserError, match=r"holds a run with another configuration: optim\.lr was 0\.005 and is now 0\.5"
    ):
        train(folder, "s3attention", **{**changes, "optim.lr": 0.5})
    remedy = r"allow_changes=\[model\.segments\]' \(of a model, only what leaves its weights' shapes as they are\)$"
    with pytest.raises(UserError, match=remedy):
        train(folder, "s3attention", **{**changes, "model.segments": 2})


def test_more_steps_can_be_allowed_after_the_end(train, read_metrics, tmp_path):
    train(tmp_path / "run", **{"optim.max_steps": 2, "optim.schedule": "constant"})
    longer = {
        "optim.max_steps": 4,
        "optim.schedule": "constant",
        "run.allow_changes": ["optim.max_steps", "optim.warmup_steps"],
    }
    assert train(tmp_path / "run", **longer).state.step == 4
    assert [record["step"] for record in read_metrics(tmp_path / "run", "train")] == [1, 2, 3, 4]


@pytest.mark.parametrize("model_type", ["bert", "fnet", "transformer"])
def test_types_of_transformers_train_by_the_same_run_file(train, read_metrics, tmp_path, model_type):
    changes = {"optim.max_steps": 30, "eval.every_steps": 30, "checkpoint.every_steps": 30, "optim.lr": 2e-2}
    outcome = train(tmp_path / "run", model_type, **changes)
    first, last = read_metrics(tmp_path / "run", "eval")
    assert outcome.code == 0 and last["loss"] < first["loss"] - 0.2
    config = AutoConfig.from_pretrained(tmp_path / "run" / "model")
    assert (config.model_type, config.vocab_size, config.pad_token_id) == (model_type, 96, 3)


def test_training_goes_on_from_a_checkpoint_of_the_same_shape(finished, train, read_metrics, tmp_path):
    folder, _ = finished
    values = {"model": {"from": str(folder / "model")}, "optim.max_steps": 1, "optim.warmup_steps": 0}
    train(tmp_path / "run", **values)
    started = read_metrics(tmp_path / "run", "eval")[0]["loss"]
    assert started == pytest.approx(read_metrics(folder, "eval")[-1]["loss"], abs=1e-5)
    assert AutoConfig.from_pretrained(tmp_path / "run" / "model").model_type == "s3attention"
    with pytest.raises(UserError, match=r"model\.hidden_sise is no field"):
        train(tmp_path / "other", **{**values, "model": {"from": str(folder / "model"), "hidden_sise": 3}})
    with pytest.raises(UserError, match=r"model\.from: .*nowhere: no such folder"):
        train(tmp_path / "other", **{**values, "model": {"from": str(tmp_path / "nowhere")}})
    assert not (tmp_path / "other").exists()


def test_gradient_checkpointing_changes_memory_not_losses(train, read_metrics, tmp_path):
    for name, flag in (("with", True), ("without", False)):
        train(tmp_path / name, "s3attention", **{"run.gradient_checkpointing": flag})
    losses = [[record["loss"] for record in read_metrics(tmp_path / name, "train")] for name in ("with", "without")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_seeds_change_the_model_the_order_and_the_masks(train, read_metrics, tmp_path):
    for name, seed in (("zero", 0), ("again", 0), ("one", 1)):
        train(tmp_path / name, **{"run.seed": seed, "optim.max_steps": 2})
    zero, again, one = (
        [record["loss"] for record in read_metrics(tmp_path / name, "train")] for name in ("zero", "again", "one")
    )
    assert zero == again and all(abs(first - second) > 1e-4 for first, second in zip(zero, one, strict=True))


def test_two_weighted_sources_train_together(train, read_metrics, tmp_path, data, write_data):
    write_data(tmp_path / "second", 30, 9)
    sources = [{"path": str(data / "train"), "weight": 3}, {"path": str(tmp_path / "second"), "weight": 1}]
    assert train(tmp_path / "run", **{"data.train": sources, "optim.max_steps": 2}).code == 0
    assert "| second | 1 | 30 |" in (tmp_path / "run" / "model" / "README.md").read_text()
    write_data(tmp_path / "other", 30, 9, vocab_size=97)
    with pytest.raises(UserError, match=r"other has vocab_size 97, but .*train has 96"):
        train(tmp_path / "bad", **{"data.train": [*sources, {"path": str(tmp_path / "other")}]})


def test_ten_bad_steps_in_a_row_end_the_run_and_it_goes_on_from_the_last_checkpoint(train, tmp_path, monkeypatch):
    from longmix.trainer.objectives.labelled_positions import LabelledPositions
    from longmix.trainer.run import loop

    whole = LabelledPositions.forward

    def spoiled(self, model, batch, items):
        loss, sums = whole(self, model, batch, items)
        return (loss * math.nan, sums * math.nan) if model.training else (loss, sums)

    changes = {"optim.max_steps": 20, "data.eval": None}
    assert train(tmp_path / "run", **changes, **{"run.stop_at_step": 3}).code == 75
    with monkeypatch.context() as patched, pytest.raises(loop.NotFiniteError, match=r"10 steps in a row"):
        patched.setattr(LabelledPositions, "forward", spoiled)
        train(tmp_path / "run", **{**changes, "checkpoint.every_steps": 100})
    assert train(tmp_path / "run", **changes).state.skipped == 0


def test_model_cards_and_configurations_do_not_name_a_tokenizer_that_is_not_there(finished):
    folder, _ = finished
    assert not list((folder / "model").glob("tokenizer*"))
    config = json.loads((folder / "model" / "config.json").read_text())
    assert config["vocab_size"] == 96 and config["buffer_seed"] == 0


def test_signals_are_noted_and_a_second_interrupt_is_obeyed_at_once():
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        with StopRequests() as requests:
            requests.has_begun = True
            assert requests.requested is None
            os.kill(os.getpid(), number)
            assert requests.requested == number.name
            os.kill(os.getpid(), signal.SIGTERM)
            if number != signal.SIGINT:
                os.kill(os.getpid(), signal.SIGINT)
                assert requests.requested == "SIGINT"
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    assert {number: signal.getsignal(number) for number in STOP_SIGNALS} == before


def test_micro_batches_do_not_change_the_losses(train, read_metrics, tmp_path):
    """Means over micro-batches of ragged samples would: they hold unequal numbers of hidden tokens."""
    curves = []
    for size in (1, 4, 16):
        train(tmp_path / str(size), **{"batch.micro_batch": size, "optim.max_steps": 4})
        curves.append([record["loss"] for record in read_metrics(tmp_path / str(size), "train")])
    assert curves[0] == pytest.approx(curves[2], abs=1e-5) and curves[1] == pytest.approx(curves[2], abs=1e-5)


class Bomb:
    """Unpickled, it makes a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.slow
def test_what_deepspeed_itself_loads_runs_no_code(start, tmp_path):
    torch.save({"module": Bomb(tmp_path / "exploded")}, tmp_path / "states.pt")
    code = (
        "import pickle, sys, torch\nfrom longmix.trainer.engines import deepspeed\n"
        "from longmix.trainer.processes import world\ndeepspeed.import_deepspeed(world.join())\n"
        "from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine\n"
        "try:\n    TorchCheckpointEngine().load(sys.argv[1], map_location='cpu')\n"
        "except pickle.UnpicklingError:\n    print('refused')\n"
    )
    code, output = start("-c", code, tmp_path / "states.pt").wait(60)
    assert code == 0 and "refused" in output and not (tmp_path / "exploded").exists(), output


def test_a_shard_that_turns_out_damaged_ends_the_run_with_the_users_mistake(train, write_data, tmp_path):
    write_data(tmp_path / "set", 150, 1)
    shard = tmp_path / "set" / "shard-00000.parquet"
    contents = shard.read_bytes()
    shard.write_bytes(contents[:4] + bytes(200) + contents[204:])
    with pytest.raises(UserError, match=r"shard-00000\.parquet cannot be read as a shard"):
        train(tmp_path / "run", **{"data.train": str(tmp_path / "set"), "data.eval": None})
