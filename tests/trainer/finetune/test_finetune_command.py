"""The command around the training loop, which a quick stand-in replaces; test_finetune_training.py runs the loop."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longmix.data_prep.errors import UserError
from longmix.trainer.finetune import jobs
from longmix.trainer.finetune.tasks import TASKS


def test_tables_submission_and_skipped_tasks(finetune, glue, bert_folder, trained, tmp_path, capsys):
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


def test_finished_runs_are_used_again(finetune, glue, bert_folder, trained, tmp_path, capsys):
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


def test_the_table_keeps_the_tasks_of_earlier_commands(finetune, glue, bert_folder, trained, tmp_path, capsys):
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


def test_an_output_that_cannot_be_written(finetune, glue, bert_folder, trained, tmp_path):
    (tmp_path / "file").write_text("mine")
    for output in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(UserError, match="cannot be used"):
            finetune(bert_folder, glue, output, "--task", "cola", "--seeds", 1)


def test_an_interrupted_command_goes_on(finetune, glue, bert_folder, trained, tmp_path, monkeypatch):
    output = tmp_path / "out"
    real = jobs.train
    monkeypatch.setattr(jobs, "train", lambda values, asked: 75 if values["run"]["seed"] == 1 else real(values, asked))
    assert finetune(bert_folder, glue, output, "--task", "cola", "--seeds", 3) == 75
    assert not (output / "results.json").exists()
    monkeypatch.setattr(jobs, "train", real)
    assert finetune(bert_folder, glue, output, "--task", "cola", "--seeds", 3) == 0
    assert [values["run"]["seed"] for values in trained] == [0, 1, 2]


def test_a_signal_after_the_last_step_of_a_run_is_obeyed(finetune, glue, bert_folder, trained, tmp_path, monkeypatch):
    real = jobs.train

    def train(values, requests):
        requests.has_begun = True
        requests.requested = "SIGTERM"
        return real(values, requests)

    monkeypatch.setattr(jobs, "train", train)
    assert finetune(bert_folder, glue, tmp_path / "out", "--task", "cola", "--seeds", 2) == 75
    assert len(trained) == 1


def test_what_a_killed_start_leaves_is_no_part_of_it(finetune, glue, bert_folder, trained, tmp_path, monkeypatch):
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


def test_other_weights_are_another_start(finetune, glue, bert_folder, trained, tmp_path):
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
        (
            ("--task", "cola", "--lr", "1e-3", "2e-3", "--seeds", "2", "--search-seeds", "3"),
            "--search-seeds is 3, but must be at most --seeds 2",
        ),
        (("--task", "cola", "--dropout", "1"), "--dropout is 1, but must lie in [0, 1)"),
        (("--task", "cola", "--weight-decay", "nan"), "--weight-decay is nan, but must be a number of at least 0"),
        (("--task", "cola", "--warmup-share", "1.5"), "--warmup-share is 1.5, but must lie in [0, 1]"),
        (("--task", "custom"), "train.tsv is missing; --data names a folder with train and dev files"),
        (("--task", "rte", "--task", "qqp"), "none of the tasks can run: rte: train.tsv is missing"),
    ],
)
def test_mistakes(finetune, more, message, glue, bert_folder, tmp_path):
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        finetune(bert_folder, glue, tmp_path / "out", *more)
    assert message in str(caught.value)


def test_a_folder_of_something_else_is_left_alone(finetune, glue, bert_folder, trained, tmp_path):
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
