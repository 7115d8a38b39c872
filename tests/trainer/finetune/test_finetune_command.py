"""The command around the training loop, which a quick stand-in replaces; test_finetune_training.py runs the loop."""

import argparse
import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longmix.data_prep.errors import UserError
from longmix.trainer.finetune import command, jobs
from longmix.trainer.finetune.rates import default_learning_rate
from longmix.trainer.finetune.tasks import TASKS


@pytest.fixture
def glue(tmp_path, sentences):
    """CoLA (label: whether "cat" is in the sentence) and RTE without a training file."""
    folder = tmp_path / "glue"
    (folder / "CoLA").mkdir(parents=True)
    (folder / "RTE").mkdir()
    rows = [f"x\t{int('cat' in text.split())}\t\t{text}" for text in sentences[:60]]
    (folder / "CoLA" / "train.tsv").write_text("\n".join(rows[:40]) + "\n", encoding="utf-8")
    (folder / "CoLA" / "dev.tsv").write_text("\n".join(rows[40:]) + "\n", encoding="utf-8")
    (folder / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tthe cat\n1\ta dog\n", encoding="utf-8")
    (folder / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n", encoding="utf-8")
    return folder


@pytest.fixture
def trained(monkeypatch, bert_folder):
    """Replaces training: saves a classifier with the start's weights; the list of run files that it was asked for."""
    from transformers import AutoModelForSequenceClassification

    asked = []

    def train(values, requests):
        asked.append(values)
        folder = Path(values["run"]["dir"])
        manifest = json.loads((Path(values["data"]["train"]) / "manifest.json").read_text())
        model = AutoModelForSequenceClassification.from_pretrained(
            values["model"]["from"], num_labels=manifest["num_labels"] or 1, ignore_mismatched_sizes=True
        )
        model.save_pretrained(folder / "model")
        (folder / "checkpoints").mkdir()
        return 0

    monkeypatch.setattr(jobs, "train", train)
    return asked


def parse(*arguments):
    parser = argparse.ArgumentParser()
    command.add_finetune_parser(parser.add_subparsers())
    return parser.parse_args(["finetune", *map(str, arguments)])


def finetune(model, data, output, *more):
    return command.run(parse("--model", model, "--data", data, "--output", output, "--jobs", 1, *more))


def test_tables_submission_and_skipped_tasks(glue, bert_folder, trained, tmp_path, capsys):
    output = tmp_path / "out"
    assert finetune(bert_folder, glue, output, "--task", "all", "--seeds", 2) == 0
    printed = capsys.readouterr().out
    assert "\ncola " in printed and "average" not in printed  # of one task there is none
    assert "skipped rte: train.tsv is missing" in printed and "skipped mnli" in printed
    assert (output / "submission" / "CoLA.tsv").read_text().splitlines()[0] == "index\tprediction"
    loaded = json.loads((output / "results.json").read_text())
    assert loaded["tasks"][0]["seeds"] == [0, 1]
    assert set(loaded["skipped"]) == set(TASKS) - {"cola"}
    assert [values["run"]["seed"] for values in trained] == [0, 1]
    values = trained[0]
    assert values["data"]["eval"].endswith("selection")
    assert "dev" not in json.dumps(values["data"])
    assert values["deepspeed"] is None
    assert values["optim"]["max_steps"] == 2 * TASKS["cola"].epochs  # 36 examples in batches of 32
    assert values["checkpoint"]["best"] == {"metric": "matthews", "mode": "max"}
    assert not (output / "cola" / "seed-0" / "checkpoints").exists()


def test_finished_runs_are_used_again(glue, bert_folder, trained, tmp_path, capsys):
    output = tmp_path / "out"
    arguments = (bert_folder, glue, output, "--task", "cola", "--seeds")
    assert finetune(*arguments, 1) == 0
    left = output / "cola" / "seed-0" / "checkpoints"
    (left / "step-00000002").mkdir(parents=True)  # by a kill while they were being removed
    assert finetune(*arguments, 2) == 0
    assert [values["run"]["seed"] for values in trained] == [0, 1] and not left.exists()
    (output / "cola" / "seed-1" / "result.json").unlink()
    assert finetune(*arguments, 2) == 0
    assert [values["run"]["seed"] for values in trained] == [0, 1, 1]
    with pytest.raises(UserError, match=r"seed-0 holds a run with other settings \(epochs 5, now 1\)"):
        finetune(*arguments, 1, "--epochs", 1)
    assert len(trained) == 3
    (glue / "CoLA" / "dev.tsv").write_text("x\t1\t\tthe cat\n", encoding="utf-8")
    with pytest.raises(UserError, match="other data, tokenizer or --max-length"):
        finetune(*arguments, 1)


def test_the_table_keeps_the_tasks_of_earlier_commands(glue, bert_folder, trained, tmp_path, capsys):
    output = tmp_path / "out"
    header = "index\tsentence1\tsentence2\tlabel\n"
    rows = "".join(f"{i}\tthe cat\ta dog\t{'entailment' if i % 3 else 'not_entailment'}\n" for i in range(20))
    for name in ("train.tsv", "dev.tsv"):
        (glue / "RTE" / name).write_text(header + rows, encoding="utf-8")
    assert finetune(bert_folder, glue, output, "--task", "rte", "--seeds", 1) == 0
    assert finetune(bert_folder, glue, output, "--task", "cola", "--seeds", 1) == 0
    captured = capsys.readouterr()
    assert "the table keeps rte of earlier commands" in captured.err and "(cola, rte)" in captured.out
    tasks = json.loads((output / "results.json").read_text())["tasks"]
    assert [task["task"] for task in tasks] == ["cola", "rte"]
    other = tmp_path / "other"
    shutil.copytree(bert_folder, other)
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    with pytest.raises(UserError, match="results of another checkpoint"):
        finetune(other, glue, output, "--task", "sst2", "--seeds", 1)


def test_an_output_that_cannot_be_written(glue, bert_folder, trained, tmp_path):
    (tmp_path / "file").write_text("mine")
    for output in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(UserError, match="cannot be used"):
            finetune(bert_folder, glue, output, "--task", "cola", "--seeds", 1)


def test_an_interrupted_command_goes_on(glue, bert_folder, trained, tmp_path, monkeypatch):
    output = tmp_path / "out"
    real = jobs.train
    monkeypatch.setattr(jobs, "train", lambda values, asked: 75 if values["run"]["seed"] == 1 else real(values, asked))
    assert finetune(bert_folder, glue, output, "--task", "cola", "--seeds", 3) == 75
    assert not (output / "results.json").exists()
    monkeypatch.setattr(jobs, "train", real)
    assert finetune(bert_folder, glue, output, "--task", "cola", "--seeds", 3) == 0
    assert [values["run"]["seed"] for values in trained] == [0, 1, 2]


def test_a_signal_after_the_last_step_of_a_run_is_obeyed(glue, bert_folder, trained, tmp_path, monkeypatch):
    real = jobs.train

    def train(values, requests):
        requests.has_begun = True
        requests.requested = "SIGTERM"
        return real(values, requests)

    monkeypatch.setattr(jobs, "train", train)
    assert finetune(bert_folder, glue, tmp_path / "out", "--task", "cola", "--seeds", 2) == 75
    assert len(trained) == 1


def test_what_a_killed_start_leaves_is_no_part_of_it(glue, bert_folder, trained, tmp_path, monkeypatch):
    output = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "train", lambda values, requests: 75)
        assert finetune(bert_folder, glue, output, "--task", "cola", "--seeds", 1) == 75
    (tokenizer,) = (output / "tokenizers").iterdir()
    (tokenizer / ".tokenizer-left").mkdir()
    (tokenizer / ".tokenizer-left" / "tokenizer.json").write_text("half")
    run = output / "cola" / "seed-0"
    (run / "job.json").unlink()
    (run / ".job.json.1.tmp").write_text("half")
    assert finetune(bert_folder, glue, output, "--task", "cola", "--seeds", 1) == 0
    assert not (tokenizer / ".tokenizer-left").exists()


def test_several_learning_rates(glue, bert_folder, trained, tmp_path, capsys):
    output = tmp_path / "out"
    assert finetune(bert_folder, glue, output, "--task", "cola", "--seeds", 2, "--lr", "1e-4", "3e-4") == 0
    assert sorted({values["run"]["dir"] for values in trained}) == [
        str(output / "cola" / f"lr-{rate}" / f"seed-{seed}") for rate in ("0.0001", "0.0003") for seed in (0, 1)
    ]
    printed = " ".join(capsys.readouterr().out.split())
    assert "learning rate 0.0001 chosen by the selection score of 2 seeds, the smallest of equals" in printed


def test_the_chosen_rate_alone_runs_with_the_seeds_that_did_not_search(glue, bert_folder, trained, tmp_path, capsys):
    output = tmp_path / "out"
    more = ("--task", "cola", "--seeds", 3, "--lr", "1e-4", "3e-4", "--search-seeds")
    scores = {"lr-0.0001": 0.2, "lr-0.0003": 0.7}
    real = jobs.train

    def train(values, requests):
        real(values, requests)
        chosen.append(values["run"]["dir"])
        return 0

    chosen = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jobs, "train", train)
        patched.setattr(jobs.metrics, "evaluate", scored(jobs.metrics.evaluate, scores, chosen))
        assert finetune(bert_folder, glue, output, *more, 1) == 0
    ran = [str(Path(values["run"]["dir"]).relative_to(output / "cola")) for values in trained]
    assert ran == ["lr-0.0001/seed-0", "lr-0.0003/seed-0", "lr-0.0003/seed-1", "lr-0.0003/seed-2"]
    (task,) = json.loads((output / "results.json").read_text())["tasks"]
    assert task["settings"]["learning_rate"] == 3e-4 and task["seeds"] == [0, 1, 2]
    assert [(one["learning_rate"], one["scores"]) for one in task["search"]] == [(1e-4, [0.2]), (3e-4, [0.7])]
    assert task["selection"]["figures"]["score"]["mean"] == pytest.approx(0.7)
    page = (output / "results.md").read_text()
    assert "learning rate 0.0003 chosen by the selection score of 1 seed" in page
    assert "0.0001 20.0, 0.0003 70.0" in page and "selection score 70.0 (4 examples, spread 0.0)" in page
    assert finetune(bert_folder, glue, output, *more, 1) == 0
    assert len(trained) == 4
    # All seeds search where it is not said otherwise, and those that did are used again.
    assert finetune(bert_folder, glue, output, *more[:-1]) == 0
    assert len(trained) == 6


def scored(evaluate, scores, folders):
    """`evaluate` with the selection scores of the learning rates' folders; `folders` ends with that of the run."""

    def wrapped(*arguments):
        found = evaluate(*arguments)
        score = next(value for name, value in scores.items() if name in folders[-1])
        return dataclasses.replace(found, values=dict.fromkeys(found.values, score), score=score)

    return wrapped


def test_a_rate_that_diverges_loses(glue, bert_folder, trained, tmp_path, monkeypatch, capsys):
    real, output = jobs.train, tmp_path / "out"

    def train(values, requests):
        if values["optim"]["lr"] >= 0.4:
            raise jobs.loop.NotFiniteError("training diverged")
        return real(values, requests)

    monkeypatch.setattr(jobs, "train", train)
    more = ("--task", "cola", "--seeds", 2, "--lr", "0.5", "1e-4")
    assert finetune(bert_folder, glue, output, *more, "--search-seeds", 1) == 0
    printed = capsys.readouterr()
    assert "seed 0, lr 0.5: it diverged" in printed.err and "0.5 diverged" in " ".join(printed.out.split())
    with pytest.raises(UserError, match="diverged with every learning rate"):
        finetune(bert_folder, glue, tmp_path / "both", "--task", "cola", "--seeds", 1, "--lr", "0.4", "0.5")
    with pytest.raises(jobs.loop.NotFiniteError):
        finetune(bert_folder, glue, tmp_path / "one", "--task", "cola", "--seeds", 1, "--lr", "0.5")


def test_the_default_rate_follows_the_width(glue, bert_folder, trained, tmp_path, capsys):
    assert finetune(bert_folder, glue, tmp_path / "out", "--task", "cola", "--seeds", 1) == 0
    assert trained[0]["optim"]["lr"] == pytest.approx(5e-5 * 768 / 16)
    printed = capsys.readouterr()
    assert "learning rate 0.0024 by default, for a model of width 16" in printed.err
    assert "learning rate 0.0024 by default, for a model of width 16" in " ".join(printed.out.split())
    assert [default_learning_rate(width, is_relative=False) for width in (768, None)] == [5e-5, 5e-5]


def test_the_default_rate_is_the_number_that_is_shown(glue, bert_folder, trained, tmp_path):
    assert [default_learning_rate(width, is_relative=True) for width in (64, 128, 640)] == [3e-4, 1.5e-4, 3e-5]
    assert [default_learning_rate(width, is_relative=False) for width in (64, 128, 640)] == [6e-4, 3e-4, 6e-5]
    arguments = (bert_folder, glue, tmp_path / "out", "--task", "cola", "--seeds")
    assert finetune(*arguments, 1) == 0
    assert finetune(*arguments, 1, "--lr", "0.0024") == 0 and len(trained) == 1
    # An earlier version has begun this one, and did not round.
    path = tmp_path / "out" / "cola" / "seed-0" / "job.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"learning_rate": 0.0024000000000000002}))
    assert finetune(*arguments, 2) == 0
    assert trained[-1]["optim"]["lr"] == 0.0024000000000000002 and len(trained) == 2


def test_that_texts_are_cut_is_told(glue, bert_folder, trained, tmp_path, capsys):
    arguments = (bert_folder, glue, tmp_path / "out", "--task", "cola", "--seeds", 1)
    assert finetune(*arguments, "--max-length", 8) == 0
    printed = capsys.readouterr()
    told = re.search(r"cola: (\d+) of 40 training examples fill all 8 tokens, and may be cut", printed.err)
    assert 0 < int(told[1]) <= 40 and "--max-length 32" in printed.err
    assert "fill all 8 tokens" in " ".join(printed.out.split())
    # Also by a command that finds them encoded.
    assert finetune(*arguments, "--max-length", 8) == 0
    assert told[0] in capsys.readouterr().err
    assert finetune(bert_folder, glue, tmp_path / "whole", "--task", "cola", "--seeds", 1) == 0
    assert "fill all" not in capsys.readouterr().err


def test_a_micro_batch_changes_no_setting(glue, bert_folder, trained, tmp_path):
    """As where one that has begun needs too much memory."""
    arguments = (bert_folder, glue, tmp_path / "out", "--task", "cola", "--seeds", 1)
    assert finetune(*arguments) == 0
    assert finetune(*arguments, "--micro-batch", 8) == 0 and len(trained) == 1
    assert finetune(*arguments[:2], tmp_path / "other", *arguments[3:], "--micro-batch", 8) == 0
    assert [values["batch"]["micro_batch"] for values in trained] == [32, 8]
    assert {values["batch"]["samples"] for values in trained} == {32}


def test_options_reach_the_run_and_its_settings(glue, bert_folder, trained, tmp_path):
    arguments = (bert_folder, glue, tmp_path / "out", "--task", "cola", "--seeds", 1, "--epochs", 50)
    assert finetune(*arguments) == 0
    assert (
        finetune(
            *arguments[:2],
            tmp_path / "other",
            *arguments[3:],
            "--dropout",
            0.2,
            "--weight-decay",
            0,
            "--warmup-share",
            0.5,
        )
        == 0
    )
    plain, changed = trained
    assert set(plain["model"]) == {"from"} and plain["optim"]["weight_decay"] == 0.01
    assert (plain["optim"]["warmup_steps"], changed["optim"]["warmup_steps"]) == (6, 50)
    assert changed["model"] == {
        "from": str(bert_folder),
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.2),
    }
    assert changed["optim"]["weight_decay"] == 0 and changed["batch"]["group_by_length"] is True
    with pytest.raises(
        UserError, match=r"dropout None, now 0\.2; weight decay 0\.01, now 0; warmup share 0\.06, now 0\.5"
    ):
        finetune(*arguments, "--dropout", 0.2, "--weight-decay", 0, "--warmup-share", 0.5)


def test_rates_relative_to_the_weights(glue, bert_folder, own_checkpoint, trained, tmp_path, monkeypatch, capsys):
    factors = {"encoder.embeddings.word_embeddings.weight": 3.0}
    asked = []
    monkeypatch.setattr(jobs, "relative_factors", lambda checkpoint: asked.append(checkpoint) or factors)
    for number, (model, more, expected) in enumerate(
        (
            (own_checkpoint, (), factors),
            (own_checkpoint, ("--no-relative-lr",), {}),
            (bert_folder, (), {}),
            (bert_folder, ("--relative-lr",), factors),
        )
    ):
        output = tmp_path / str(number)
        assert finetune(model, glue, output, "--task", "cola", "--seeds", 1, *more) == 0
        assert trained[-1]["optim"]["lr_factors"] == expected
        assert trained[-1]["optim"]["lr"] == pytest.approx(5e-5 * 768 / 16 / (2 if expected else 1))
        told = "rates relative to the size of the weights" in capsys.readouterr().out
        assert told == bool(expected)
    assert asked == [str(own_checkpoint), str(bert_folder)]
    with pytest.raises(UserError, match="relative lr True, now False"):
        finetune(own_checkpoint, glue, tmp_path / "0", "--task", "cola", "--seeds", 1, "--no-relative-lr")
    # A version that did not know them has begun this one.
    path = tmp_path / "1" / "cola" / "seed-0" / "job.json"
    settings = json.loads(path.read_text())
    del settings["relative_lr"]
    path.write_text(json.dumps(settings))
    assert finetune(own_checkpoint, glue, tmp_path / "1", "--task", "cola", "--seeds", 2) == 0
    assert len(trained) == 5 and trained[-1]["optim"]["lr_factors"] == {}
    assert trained[-1]["batch"]["group_by_length"] is True


def test_a_folder_of_an_earlier_version_goes_on_as_it_was_begun(glue, bert_folder, trained, tmp_path, capsys):
    output = tmp_path / "out"
    arguments = (bert_folder, glue, output, "--task", "cola", "--seeds")
    assert finetune(*arguments, 1, "--lr", "5e-5") == 0
    path = output / "cola" / "seed-0" / "job.json"
    settings = json.loads(path.read_text())
    for name in ("dropout", "weight_decay", "warmup_share", "group_by_length", "relative_lr"):
        del settings[name]
    path.write_text(json.dumps(settings))
    assert finetune(*arguments, 2) == 0
    assert len(trained) == 2
    assert trained[1]["optim"]["lr"] == 5e-5 and trained[1]["batch"]["group_by_length"] is False
    assert "learning rate 5e-05 by default, an earlier version's" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"seed-0 holds a run with other settings \(weight decay 0\.01, now 0\.1\)"):
        finetune(*arguments, 2, "--weight-decay", "0.1")


@pytest.fixture
def reviews(tmp_path, sentences):
    """A task of the user's own, in the same words as GLUE's."""
    folder = tmp_path / "reviews"
    folder.mkdir()
    for name, part in (("train.tsv", sentences[:40]), ("dev.tsv", sentences[40:60])):
        rows = [f"{text}\t{'long' if len(text) > 25 else 'short'}" for text in part]
        (folder / name).write_text("\n".join(["body\tkind", *rows]) + "\n", encoding="utf-8")
    return folder


def test_an_intermediate_task_of_ones_own(glue, reviews, bert_folder, trained, tmp_path, capsys, monkeypatch):
    output, real = tmp_path / "out", jobs.train
    more = ("--task", "cola", "--seeds", 2, "--intermediate", "custom", "--intermediate-data", reviews)
    more += ("--text-columns", "body", "--label-column", "kind", "--lr", "1e-4", "3e-4", "--search-seeds", 1)
    with monkeypatch.context() as patched:
        # Interrupted when the intermediate task is trained.
        patched.setattr(
            jobs, "train", lambda values, requests: 75 if "cola" in values["run"]["dir"] else real(values, requests)
        )
        assert finetune(bert_folder, glue, output, *more) == 75
    assert finetune(bert_folder, glue, output, *more) == 0
    ran = [str(Path(values["run"]["dir"]).relative_to(output)) for values in trained]
    assert ran[:2] == ["intermediate/lr-0.0001/seed-0", "intermediate/lr-0.0003/seed-0"]
    assert sorted(ran[2:]) == ["cola/lr-0.0001/seed-0", "cola/lr-0.0001/seed-1", "cola/lr-0.0003/seed-0"]
    assert {values["model"]["from"] for values in trained[:2]} == {str(bert_folder)}
    assert {values["model"]["from"] for values in trained[2:]} == {
        str(output / "intermediate" / "lr-0.0001" / "seed-0" / "model")
    }
    printed = " ".join(capsys.readouterr().out.split())
    assert "first fine-tuned on 36 examples of intermediate (seed 0, learning rate 0.0001, selection score" in printed
    (task,) = json.loads((output / "results.json").read_text())["tasks"]
    assert task["task"] == "cola"
    # What the target's runs come from is among their settings.
    with pytest.raises(UserError, match="another starting checkpoint"):
        finetune(bert_folder, glue, output, *more[:4], "--lr", "1e-4", "3e-4")


def write_mnli(glue):
    labels = ("entailment", "neutral", "contradiction")
    (glue / "MNLI").mkdir()
    for name in ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"):
        rows = "".join(f"{i}\tthe cat\ta dog\t{labels[i % 3]}\n" for i in range(30))
        (glue / "MNLI" / name).write_text(f"index\tsentence1\tsentence2\tgold_label\n{rows}", encoding="utf-8")


def test_a_model_of_mnli_answers_the_diagnostic_set(glue, bert_folder, trained, tmp_path, capsys):
    write_mnli(glue)
    earlier, output = tmp_path / "earlier", tmp_path / "out"
    assert finetune(bert_folder, glue, earlier, "--task", "mnli", "--seeds", 1) == 0
    assert "diagnostic" not in capsys.readouterr().out
    (glue / "diagnostic").mkdir()
    rows = "".join(f"{i}\tthe cat\ta dog\n" for i in range(5))
    (glue / "diagnostic" / "diagnostic.tsv").write_text(f"index\tsentence1\tsentence2\n{rows}", encoding="utf-8")
    assert finetune(bert_folder, glue, output, "--task", "all", "--seeds", 1) == 0
    lines = (output / "submission" / "AX.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and len(lines) == 6
    assert {line.split("\t")[1] for line in lines[1:]} <= {"entailment", "neutral", "contradiction"}
    told = capsys.readouterr().out.splitlines()[-1]
    assert told == (
        "GLUE's server takes 11 files; submission/ lacks SST-2.tsv, MRPC.tsv, STS-B.tsv, QQP.tsv, MNLI-m.tsv, "
        "MNLI-mm.tsv, QNLI.tsv, RTE.tsv, WNLI.tsv"
    )
    # What was begun without it goes on without it.
    assert finetune(bert_folder, glue, earlier, "--task", "mnli", "--seeds", 2) == 0 and len(trained) == 4
    told = " ".join(capsys.readouterr().out.split())
    assert "mnli: begun without diagnostic/diagnostic.tsv: AX.tsv needs another --output" in told
    assert not (earlier / "submission" / "AX.tsv").exists() and "GLUE's server" not in told


def test_mnli_as_an_intermediate_task_is_shared_with_mnli_itself(glue, bert_folder, trained, tmp_path, capsys):
    header = "index\tsentence1\tsentence2\t"
    write_mnli(glue)
    for name in ("train.tsv", "dev.tsv"):
        rows = "".join(f"{i}\tthe cat\ta dog\t{'entailment' if i % 3 else 'not_entailment'}\n" for i in range(20))
        (glue / "RTE" / name).write_text(f"{header}label\n{rows}", encoding="utf-8")
    output = tmp_path / "out"
    more = ("--task", "cola", "--task", "rte", "--seeds", 2, "--intermediate", "mnli")
    assert finetune(bert_folder, glue, output, *more) == 0
    model = str(output / "mnli" / "seed-0" / "model")
    start = {Path(values["run"]["dir"]).parent.name: values["model"]["from"] for values in trained}
    assert start == {"mnli": str(bert_folder), "cola": str(bert_folder), "rte": model}
    assert len(trained) == 5
    assert finetune(bert_folder, glue, output, *more, "--task", "mnli") == 0
    assert str(Path(trained[-1]["run"]["dir"])) == str(output / "mnli" / "seed-1") and len(trained) == 6
    tasks = json.loads((output / "results.json").read_text())["tasks"]
    assert [task["task"] for task in tasks] == ["cola", "mnli", "rte"]


def test_small_tasks_start_from_mnli(glue, bert_folder, trained, tmp_path):
    header = "index\tsentence1\tsentence2\tlabel\n"
    rows = "".join(f"{i}\tthe cat\ta dog\t{'entailment' if i % 3 else 'not_entailment'}\n" for i in range(20))
    for name in ("train.tsv", "dev.tsv"):
        (glue / "RTE" / name).write_text(header + rows, encoding="utf-8")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    mnli = tmp_path / "mnli"
    AutoModelForSequenceClassification.from_pretrained(bert_folder, num_labels=3).save_pretrained(mnli)
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(mnli)
    more = ("--task", "cola", "--task", "rte", "--seeds", 1, "--from-mnli", mnli)
    assert finetune(bert_folder, glue, tmp_path / "out", *more) == 0
    assert [values["model"]["from"] for values in trained] == [str(bert_folder), str(mnli)]


def test_custom_task(reviews, bert_folder, trained, tmp_path, capsys):
    more = ("--task", "custom", "--text-columns", "body", "--label-column", "kind", "--seeds", 1)
    assert finetune(bert_folder, reviews, tmp_path / "out", *more) == 0
    printed = capsys.readouterr().out
    assert "custom" in printed and "GLUE average" not in printed
    (task,) = json.loads((tmp_path / "out" / "results.json").read_text())["tasks"]
    assert list(task["splits"][0]["figures"]) == ["accuracy", "matthews", "macro_f1", "score"]
    assert task["selection"]["figures"].keys() == task["splits"][0]["figures"].keys()
    assert task["score"] == task["splits"][0]["figures"]["accuracy"]["mean"]
    # Runs of versions that had fewer figures are in one table with those of today.
    for seed in (0, 1):
        assert finetune(bert_folder, reviews, tmp_path / "out", *more[:-1], 2) == 0 and len(trained) == 2
        result = tmp_path / "out" / "custom" / f"seed-{seed}" / "result.json"
        values = json.loads(result.read_text())
        values["selection"].pop("matthews" if seed else "macro_f1")
        result.write_text(json.dumps(values))
    assert finetune(bert_folder, reviews, tmp_path / "out", *more[:-1], 2) == 0
    with pytest.raises(UserError, match=r"metrics \['accuracy'\], now \['macro_f1'\]"):
        finetune(bert_folder, reviews, tmp_path / "out", *more, "--metric", "macro_f1")


def test_a_labelled_test_split_has_a_row_and_chooses_nothing(reviews, bert_folder, trained, tmp_path, capsys):
    output = tmp_path / "out"
    arguments = (bert_folder, reviews, output, "--task", "custom", "--label-column", "kind", "--seeds", 1)
    texts = ("the cat", "the old dog sees the small red house")

    def result(*labels):
        columns = [("body", *texts), *([("kind", *labels)] if labels else [])]
        lines = map("\t".join, zip(*columns, strict=True))
        (reviews / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        assert finetune(*arguments) == 0
        return json.loads((output / "results.json").read_text())["tasks"][0], capsys.readouterr().out

    task, _ = result()
    assert [split["split"] for split in task["splits"]] == ["dev"]
    settings = (output / "custom" / "seed-0" / "job.json").read_bytes()
    # The labels that the model does not answer.
    answers = json.loads((output / "custom" / "seed-0" / "predictions" / "test.json").read_text())
    task, printed = result(*(("short", "long")[answer] for answer in answers))
    assert len(trained) == 1 and settings == (output / "custom" / "seed-0" / "job.json").read_bytes()
    dev, test = task["splits"]
    assert (dev["split"], test["split"], test["samples"]) == ("dev", "test", 2)
    assert test["figures"]["accuracy"]["mean"] == 0 < task["score"] == dev["figures"]["accuracy"]["mean"]
    assert "custom dev " in printed and "custom (test) " in printed
    assert "custom: test: the labelled test split, which chose nothing and is no part of the score" in printed
    _, printed = result("?", "long")
    printed = " ".join(printed.split())
    assert "custom (test)" not in printed and "predicted, not scored: " in printed and "line 2: kind is '?'" in printed


def test_the_metric_of_ones_own_classes_chooses(reviews, bert_folder, trained, tmp_path):
    more = ("--task", "custom", "--text-columns", "body", "--label-column", "kind", "--seeds", 1)
    assert finetune(bert_folder, reviews, tmp_path / "out", *more, "--metric", "macro_f1") == 0
    assert trained[0]["checkpoint"]["best"] == {"metric": "macro_f1", "mode": "max"}
    (task,) = json.loads((tmp_path / "out" / "results.json").read_text())["tasks"]
    assert task["score"] == task["splits"][0]["figures"]["macro_f1"]["mean"]
    selection = json.loads((tmp_path / "out" / "custom" / "seed-0" / "result.json").read_text())["selection"]
    assert selection["score"] == selection["macro_f1"] and "accuracy" in selection


def test_classes_keep_the_order_that_an_earlier_version_gave_them(bert_folder, trained, tmp_path, monkeypatch):
    folder, output = tmp_path / "mine", tmp_path / "out"
    folder.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("text\tlabel\n" + "".join(f"the cat\t{n % 11}\n" for n in range(33)))
    arguments = (bert_folder, folder, output, "--task", "custom", "--seeds")
    with monkeypatch.context() as patched:
        patched.setattr("longmix.trainer.finetune.custom.class_order", str)
        assert finetune(*arguments, 1) == 0
    assert finetune(*arguments, 2) == 0 and len(trained) == 2
    manifest = json.loads((output / "custom" / "data" / "train" / "manifest.json").read_text())
    assert manifest["label_names"][:3] == ["0", "1", "10"]
    assert finetune(bert_folder, folder, tmp_path / "new", *arguments[3:], 1) == 0
    manifest = json.loads((tmp_path / "new" / "custom" / "data" / "train" / "manifest.json").read_text())
    assert manifest["label_names"] == [str(number) for number in range(11)]


def test_other_weights_are_another_start(glue, bert_folder, trained, tmp_path):
    from transformers import AutoModel

    copy = tmp_path / "copy"
    shutil.copytree(bert_folder, copy)
    more = ("--task", "cola", "--seeds", 1)
    assert finetune(bert_folder, glue, tmp_path / "out", *more) == 0
    assert finetune(copy, glue, tmp_path / "out", *more) == 0  # the same checkpoint, elsewhere
    assert len(trained) == 1
    model = AutoModel.from_pretrained(copy)
    model.embeddings.word_embeddings.weight.data += 1.0
    model.save_pretrained(copy)
    with pytest.raises(UserError, match="results of another checkpoint"):
        finetune(copy, glue, tmp_path / "out", *more)
    (tmp_path / "out" / "results.json").unlink()  # as where the first command was interrupted
    with pytest.raises(UserError, match="another starting checkpoint"):
        finetune(copy, glue, tmp_path / "out", *more)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--task", "cola", "--seeds", "1000000000000"), "--seeds is 1000000000000, but must be at most 10,000"),
        (("--task", "cola", "--seeds", "0", "--lr", "-1"), "--seeds is 0, but must be at least 1; --lr is -1"),
        (("--task", "cola", "--micro-batch", "5"), "--micro-batch is 5, but must divide --batch-size 32"),
        (("--task", "cola", "--task", "custom"), "run it by itself"),
        (("--task", "cola", "--label-column", "x"), "belong to --task custom"),
        (("--task", "cola", "--metric", "matthews"), "--metric and --regression belong to --task custom"),
        (("--task", "custom", "--metric", "matthews", "--regression"), "--metric is for classes, and --regression"),
        (("--task", "cola", "--from-mnli", "x"), "none of which is asked for"),
        (("--task", "cola", "--intermediate", "mnli"), "--intermediate mnli is for rte, mrpc, stsb, none of which"),
        (("--task", "cola", "--intermediate", "cola"), "--intermediate cola is for other tasks, none of which"),
        (("--task", "rte", "--intermediate", "mnli", "--from-mnli", "x"), "in two ways: leave one out"),
        (("--task", "cola", "--intermediate", "custom"), "needs --intermediate-data"),
        (("--task", "cola", "--intermediate-data", "x"), "--intermediate-data belongs to --intermediate"),
        (("--task", "cola", "--intermediate", "qqp"), "--intermediate qqp: no folder QQP"),
        (("--task", "cola", "--search-seeds", "1"), "--search-seeds is for several learning rates"),
        (("--task", "cola", "--dropout", "1"), "--dropout is 1, but must lie in [0, 1)"),
        (("--task", "cola", "--weight-decay", "nan"), "--weight-decay is nan, but must be a number of at least 0"),
        (("--task", "cola", "--warmup-share", "1.5"), "--warmup-share is 1.5, but must lie in [0, 1]"),
        (("--task", "custom"), "train.tsv is missing; --data names a folder with train and dev files"),
        (("--task", "rte", "--task", "qqp"), "none of the tasks can run: rte: train.tsv is missing"),
    ],
)
def test_mistakes(more, message, glue, bert_folder, tmp_path):
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        finetune(bert_folder, glue, tmp_path / "out", *more)
    assert message in str(caught.value)


def test_a_folder_of_something_else_is_left_alone(glue, bert_folder, trained, tmp_path):
    other = tmp_path / "out" / "cola" / "seed-0"
    other.mkdir(parents=True)
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not a fine-tuning run"):
        finetune(bert_folder, glue, tmp_path / "out", "--task", "cola", "--seeds", 1)
    assert (other / "thesis.txt").read_text() == "mine"


def test_auto_is_fp32_on_a_cpu_and_left_to_a_gpu(monkeypatch):
    """Seeds that were computed before processors had bf16 are in one table with those that follow."""
    encoded = SimpleNamespace(task=TASKS["sst2"], train_samples=10, folder=Path("data"))
    for has_gpu, given, expected in ((False, "auto", "fp32"), (True, "auto", "auto"), (False, "bf16", "bf16")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        job = jobs.Job(
            encoded=encoded,
            seed=0,
            learning_rate=1e-3,
            epochs=1,
            batch_size=4,
            micro_batch=None,
            precision=given,
            dropout=None,
            dropout_fields=(),
            weight_decay=0.01,
            warmup_share=0.1,
            group_by_length=True,
            relative_lr=False,
            checkpoint="model",
            start="start",
            folder=Path("run"),
            competes=False,
        )
        assert jobs.run_values(job)["precision"] == expected
