"""Rates, which compete or follow from the model, and other options of the command, as they reach a run."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.finetune import jobs
from longmix.trainer.finetune.rates import default_learning_rate


def test_several_learning_rates(finetune, glue, bert_folder, trained, tmp_path, capsys):
    output = tmp_path / "out"
    assert finetune(bert_folder, glue, output, "--task", "cola", "--seeds", 2, "--lr", "1e-4", "3e-4") == 0
    assert sorted({values["run"]["dir"] for values in trained}) == [
        str(output / "cola" / f"lr-{rate}" / f"seed-{seed}") for rate in ("0.0001", "0.0003") for seed in (0, 1)
    ]
    printed = " ".join(capsys.readouterr().out.split())
    assert "learning rate 0.0001 chosen by the selection score of 2 seeds, the smallest of equals" in printed


def test_the_chosen_rate_alone_runs_with_the_seeds_that_did_not_search(
    finetune, glue, bert_folder, trained, tmp_path, capsys
):
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


def test_a_rate_that_diverges_loses(finetune, glue, bert_folder, trained, tmp_path, monkeypatch, capsys):
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


def test_the_default_rate_follows_the_width(finetune, glue, bert_folder, trained, tmp_path, capsys):
    assert finetune(bert_folder, glue, tmp_path / "out", "--task", "cola", "--seeds", 1) == 0
    assert trained[0]["optim"]["lr"] == pytest.approx(5e-5 * 768 / 16)
    printed = capsys.readouterr()
    assert "learning rate 0.0024 by default, for a model of width 16" in printed.err
    assert "learning rate 0.0024 by default, for a model of width 16" in " ".join(printed.out.split())
    assert [default_learning_rate(width, is_relative=False) for width in (768, None)] == [5e-5, 5e-5]


def test_the_default_rate_is_the_number_that_is_shown(finetune, glue, bert_folder, trained, tmp_path):
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


def test_that_texts_are_cut_is_told(finetune, glue, bert_folder, trained, tmp_path, capsys):
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


def test_a_micro_batch_changes_no_setting(finetune, glue, bert_folder, trained, tmp_path):
    """As where one that has begun needs too much memory."""
    arguments = (bert_folder, glue, tmp_path / "out", "--task", "cola", "--seeds", 1)
    assert finetune(*arguments) == 0
    assert finetune(*arguments, "--micro-batch", 8) == 0 and len(trained) == 1
    assert finetune(*arguments[:2], tmp_path / "other", *arguments[3:], "--micro-batch", 8) == 0
    assert [values["batch"]["micro_batch"] for values in trained] == [32, 8]
    assert {values["batch"]["samples"] for values in trained} == {32}


def test_options_reach_the_run_and_its_settings(finetune, glue, bert_folder, trained, tmp_path):
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


def test_rates_relative_to_the_weights(
    finetune, glue, bert_folder, own_checkpoint, trained, tmp_path, monkeypatch, capsys
):
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


def test_a_folder_of_an_earlier_version_goes_on_as_it_was_begun(finetune, glue, bert_folder, trained, tmp_path, capsys):
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
