"""Fine-tuning through the real training loop, on a task that a bag of words solves."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.finetune import command


@pytest.fixture
def glue(tmp_path, sentences):
    """SST-2 whose label is whether "cat" is in the sentence, and RTE with the same sentences in pairs."""
    folder = tmp_path / "glue"
    (folder / "SST-2").mkdir(parents=True)
    rows = [f"{text}\t{int('cat' in text.split())}" for text in sentences]
    for name, part in (("train.tsv", rows[:160]), ("dev.tsv", rows[160:])):
        (folder / "SST-2" / name).write_text("\n".join(["sentence\tlabel", *part]) + "\n", encoding="utf-8")
    (folder / "SST-2" / "test.tsv").write_text("index\tsentence\n0\tthe cat sees\n1\ta dog\n", encoding="utf-8")
    (folder / "RTE").mkdir()
    pairs = [
        f"{i}\t{text}\tthe cat\t{'entailment' if 'cat' in text.split() else 'not_entailment'}"
        for i, text in enumerate(sentences[:60])
    ]
    for name, part in (("train.tsv", pairs[:40]), ("dev.tsv", pairs[40:])):
        content = "\n".join(["index\tsentence1\tsentence2\tlabel", *part]) + "\n"
        (folder / "RTE" / name).write_text(content, encoding="utf-8")
    return folder


def arguments(model, data, output, *more):
    return ["finetune", "--model", model, "--data", data, "--output", output, "--batch-size", 16, *more]


def finetune(*values):
    parser = argparse.ArgumentParser()
    command.add_finetune_parser(parser.add_subparsers())
    parsed = parser.parse_args(list(map(str, arguments(*values))))
    return parsed.run(parsed)


def test_a_run_learns_and_its_selection_is_not_the_dev_set(glue, own_checkpoint, tmp_path, capsys):
    output = tmp_path / "out"
    more = ("--task", "sst2", "--seeds", 1, "--epochs", 12, "--lr", "5e-3", "--jobs", 1)
    assert finetune(own_checkpoint, glue, output, *more) == 0
    figure = json.loads((output / "results.json").read_text())["tasks"][0]["splits"][0]["figures"]["accuracy"]
    assert figure["mean"] > 0.9
    assert figure["verdict"] == "above"
    run = output / "sst2" / "seed-0"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluated = [record for record in records if record["kind"] == "eval"]
    selection = json.loads((output / "sst2" / "data" / "selection" / "manifest.json").read_text())
    assert {record["items"] for record in evaluated} == {selection["samples"]}
    # model/ is the best of the checkpoints by the selection split.
    best = max(record["accuracy"] for record in evaluated if record["step"] > 0)
    assert json.loads((run / "result.json").read_text())["selection"]["accuracy"] == pytest.approx(best)
    assert (output / "submission" / "SST-2.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"
    assert not (run / "checkpoints").exists()


@pytest.mark.full
def test_seeds_differ_and_repeat(glue, bert_folder, tmp_path):
    losses = {}
    for name in ("first", "second"):
        more = ("--task", "rte", "--seeds", 2, "--epochs", 1, "--jobs", 1)
        assert finetune(bert_folder, glue, tmp_path / name, *more) == 0
        for seed in (0, 1):
            lines = (tmp_path / name / "rte" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
            records = [json.loads(line) for line in lines]
            losses[name, seed] = [record["loss"] for record in records if record["kind"] != "model"]
    assert losses["first", 0] == losses["second", 0] and losses["first", 1] == losses["second", 1]
    assert losses["first", 0] != losses["first", 1]


def test_an_interrupted_run_goes_on_with_the_same_losses(glue, own_checkpoint, tmp_path, monkeypatch):
    from longmix.trainer.run import loop

    # Nine batches in an epoch: the cut comes within two of similar lengths.
    settings = ("--task", "sst2", "--seeds", 1, "--epochs", 1, "--jobs", 1)
    assert finetune(own_checkpoint, glue, tmp_path / "whole", *settings) == 0
    complete = loop._Run._complete_step

    def stopped(self, decision):
        return complete(self, loop.Decision("a test") if self.state.step == 5 else decision)

    with monkeypatch.context() as patched:
        patched.setattr(loop._Run, "_complete_step", stopped)
        assert finetune(own_checkpoint, glue, tmp_path / "cut", *settings) == 75
    assert not (tmp_path / "cut" / "results.json").exists()
    assert finetune(own_checkpoint, glue, tmp_path / "cut", *settings) == 0
    evaluations = []
    for name in ("whole", "cut"):
        lines = (tmp_path / name / "sst2" / "seed-0" / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        evaluations.append({record["step"]: record["loss"] for record in records if record["kind"] == "eval"})
    assert all(evaluations[1][number] == loss for number, loss in evaluations[0].items())


def test_start_from_mnli_renews_the_head(glue, own_checkpoint, tmp_path):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForSequenceClassification

    from longmix.data_prep.tokenizer import load_tokenizer, save_tokenizer

    mnli = tmp_path / "mnli"
    torch.manual_seed(1)
    AutoModelForSequenceClassification.from_pretrained(own_checkpoint, num_labels=3).save_pretrained(mnli)
    save_tokenizer(load_tokenizer(own_checkpoint), mnli)
    more = ("--task", "rte", "--seeds", 1, "--epochs", 1, "--lr", "1e-6", "--jobs", 1, "--from-mnli", mnli)
    assert finetune(own_checkpoint, glue, tmp_path / "out", *more) == 0
    before = load_file(mnli / "model.safetensors")
    after = load_file(tmp_path / "out" / "rte" / "seed-0" / "model" / "model.safetensors")
    name = "encoder.embeddings.word_embeddings.weight"
    assert torch.allclose(before[name], after[name], atol=1e-4)
    assert after["head.classifier.weight"].shape[0] == 2
    config = json.loads((tmp_path / "out" / "rte" / "seed-0" / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "entailment", "1": "not_entailment"}


@pytest.mark.full
def test_a_task_starts_from_the_model_of_the_intermediate_one(glue, own_checkpoint, tmp_path):
    import torch
    from safetensors.torch import load_file

    output = tmp_path / "out"
    more = ("--task", "rte", "--seeds", 1, "--epochs", 1, "--jobs", 1, "--intermediate", "sst2", "--lr")
    assert finetune(own_checkpoint, glue, output, *more, "1e-5", "5e-3") == 0
    rates = [f"lr-{rate}" for rate in ("1e-05", "0.005")]
    scores = [
        json.loads((output / "sst2" / rate / "seed-0" / "result.json").read_text())["selection"]["score"]
        for rate in rates
    ]
    chosen = rates[scores[1] > scores[0]]
    before = load_file(output / "sst2" / chosen / "seed-0" / "model" / "model.safetensors")
    after = load_file(output / "rte" / "lr-1e-05" / "seed-0" / "model" / "model.safetensors")
    start = load_file(own_checkpoint / "model.safetensors")
    name = "encoder.embeddings.word_embeddings.weight"
    assert torch.allclose(before[name], after[name], atol=1e-4)
    assert not torch.allclose(before[name], start[name], atol=1e-4)


def test_a_checkpoint_without_the_weights_is_refused(glue, bert_folder, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(bert_folder, broken)
    weights = load_file(broken / "model.safetensors")
    save_file({f"other.{name}": value for name, value in weights.items()}, broken / "model.safetensors")
    with pytest.raises(UserError, match="lacks most of the weights"):
        finetune(broken, glue, tmp_path / "out", "--task", "rte", "--seeds", 1, "--jobs", 1)


@pytest.mark.slow
@pytest.mark.full
def test_side_by_side_equals_one_after_another(glue, bert_folder, tmp_path):
    more = ("--task", "rte", "--seeds", 2, "--epochs", 1, "--jobs")
    assert finetune(bert_folder, glue, tmp_path / "one", *more, 1) == 0
    assert finetune(bert_folder, glue, tmp_path / "two", *more, 2) == 0
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two")]
    assert results[0] == results[1]
    assert (tmp_path / "two" / "rte" / "seed-1.log").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.full
def test_a_failing_run_is_named(glue, bert_folder, tmp_path):
    runs = tmp_path / "out" / "rte"
    settings = (bert_folder, glue, tmp_path / "out", "--task", "rte", "--epochs", 1)
    assert finetune(*settings, "--seeds", 1, "--jobs", 1) == 0
    # A folder with another run's configuration: the worker refuses to go on with it.
    (runs / "seed-1").mkdir()
    job = (runs / "seed-0" / "job.json").read_text().replace('"seed": 0', '"seed": 1')
    (runs / "seed-1" / "job.json").write_text(job)
    (runs / "seed-1" / "config.yaml").write_text((runs / "seed-0" / "config.yaml").read_text())
    with pytest.raises(UserError, match=r"rte, seed 1, lr 0\.0024: .*run\.seed was 0 and is now 1.*seed-1\.log"):
        finetune(*settings, "--seeds", 3, "--jobs", 2)


@pytest.mark.slow
@pytest.mark.full
def test_a_signal_saves_every_run(glue, bert_folder, tmp_path):
    output = tmp_path / "out"
    values = arguments(bert_folder, glue, output, "--task", "sst2", "--seeds", 2, "--epochs", 400, "--jobs", 2)
    command_line = [sys.executable, "-m", "longmix.trainer", *map(str, values)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command_line, env=environment, stderr=subprocess.PIPE, text=True)
    runs = [output / "sst2" / f"seed-{seed}" for seed in (0, 1)]
    deadline = time.monotonic() + 120
    while not all((run / "metrics.jsonl").exists() for run in runs) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75, errors
    assert "the same command goes on from here" in errors
    for run in runs:
        assert list((run / "checkpoints").glob("step-*")) and not (run / "result.json").exists()
