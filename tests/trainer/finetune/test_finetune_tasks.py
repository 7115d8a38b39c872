"""Tasks that start from others, MNLI with its diagnostic set, and tasks of a user's own."""

import json
from pathlib import Path

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.finetune import jobs


@pytest.fixture
def reviews(tmp_path, sentences):
    """A task of the user's own, in the same words as GLUE's."""
    folder = tmp_path / "reviews"
    folder.mkdir()
    for name, part in (("train.tsv", sentences[:40]), ("dev.tsv", sentences[40:60])):
        rows = [f"{text}\t{'long' if len(text) > 25 else 'short'}" for text in part]
        (folder / name).write_text("\n".join(["body\tkind", *rows]) + "\n", encoding="utf-8")
    return folder


def test_an_intermediate_task_of_ones_own(finetune, glue, reviews, bert_folder, trained, tmp_path, capsys, monkeypatch):
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


def test_a_model_of_mnli_answers_the_diagnostic_set(finetune, glue, bert_folder, trained, tmp_path, capsys):
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


def test_mnli_as_an_intermediate_task_is_shared_with_mnli_itself(
    finetune, glue, bert_folder, trained, tmp_path, capsys
):
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


def test_small_tasks_start_from_mnli(finetune, glue, bert_folder, trained, tmp_path):
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


def test_what_is_odd_about_a_task_is_told(finetune, bert_folder, trained, tmp_path, capsys):
    """Its classes, examples without text, and texts of another language; also by a command that finds them encoded."""
    folder = tmp_path / "data"
    folder.mkdir()
    texts = ["猫坐在垫子上", "", "the cat", "a dog"] * 10
    kinds = ["odd", *(["good", "bad"] * 20)[1:]]
    rows = [f"{text}\t{kind}" for text, kind in zip(texts, kinds, strict=True)]
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    for _ in range(2):
        assert finetune(bert_folder, folder, tmp_path / "out", "--task", "custom", "--seeds", 1) == 0
        printed = capsys.readouterr()
        for line in (
            "custom: 3 classes: bad 20, good 19, odd 1",
            "custom: 10 of 40 training examples have no text",
            "custom: 60% of the tokens of the training examples are unknown to the tokenizer, and all alike",
        ):
            assert line in printed.err
        assert "10 of 40 training examples have no text" in " ".join(printed.out.split())
    assert len(trained) == 1


def test_custom_task(finetune, reviews, bert_folder, trained, tmp_path, capsys):
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


def test_a_labelled_test_split_has_a_row_and_chooses_nothing(finetune, reviews, bert_folder, trained, tmp_path, capsys):
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


def test_the_metric_of_ones_own_classes_chooses(finetune, reviews, bert_folder, trained, tmp_path):
    more = ("--task", "custom", "--text-columns", "body", "--label-column", "kind", "--seeds", 1)
    assert finetune(bert_folder, reviews, tmp_path / "out", *more, "--metric", "macro_f1") == 0
    assert trained[0]["checkpoint"]["best"] == {"metric": "macro_f1", "mode": "max"}
    (task,) = json.loads((tmp_path / "out" / "results.json").read_text())["tasks"]
    assert task["score"] == task["splits"][0]["figures"]["macro_f1"]["mean"]
    selection = json.loads((tmp_path / "out" / "custom" / "seed-0" / "result.json").read_text())["selection"]
    assert selection["score"] == selection["macro_f1"] and "accuracy" in selection


def test_classes_keep_the_order_that_an_earlier_version_gave_them(
    finetune, bert_folder, trained, tmp_path, monkeypatch
):
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
