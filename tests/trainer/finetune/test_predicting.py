"""`longmix predict`: answers that are the model's, in the order of the rows, and the same bytes after a kill."""

import csv
import json

import pyarrow.parquet as pq
import pytest
import torch
import transformers

from longmix.trainer.cli import main
from longmix.trainer.prediction import texts

NAMES = ["bad", "good", "=odd"]


@pytest.fixture(scope="module")
def classifier(bert_folder, tmp_path_factory):
    """A run folder with a classifier of sentences, as fine-tuning leaves it."""
    model = tmp_path_factory.mktemp("run") / "model"
    torch.manual_seed(1)
    labels = {"id2label": dict(enumerate(NAMES)), "label2id": {name: index for index, name in enumerate(NAMES)}}
    transformers.AutoModelForSequenceClassification.from_pretrained(bert_folder, **labels).save_pretrained(model)
    transformers.AutoTokenizer.from_pretrained(bert_folder).save_pretrained(model)
    (model / "inputs.json").write_text(json.dumps({"text_columns": ["title", "body"], "max_length": 16}))
    (model / "objective.json").write_text(json.dumps({"name": "classification"}))
    return model.parent


@pytest.fixture
def data(tmp_path, sentences):
    """new.tsv: an id, a title and a body."""
    rows = [f"{n}\t{title}\t{sentences[n + 50]}" for n, title in enumerate(sentences[:40])]
    path = tmp_path / "new.tsv"
    path.write_text("\n".join(["id\ttitle\tbody", *rows]) + "\n", encoding="utf-8")
    return path


def predict(*arguments):
    return main(["predict", *map(str, arguments)])


def tsv(path):
    return list(csv.DictReader(path.open(encoding="utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE))


def mistake(capsys, *arguments):
    assert predict(*arguments) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_classes_are_named_and_their_probabilities_are_the_models(classifier, data, tmp_path, sentences, capsys):
    output = tmp_path / "answers.tsv"
    assert predict(classifier, "--data", data, "--output", output, "--part-rows", 7, "--batch-size", 4) == 0
    assert f"wrote {output}: 40 rows" in capsys.readouterr().out
    model = transformers.AutoModelForSequenceClassification.from_pretrained(classifier / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(classifier / "model")
    rows = tsv(output)
    assert [row["row"] for row in rows] == [str(number) for number in range(40)]
    for number, row in enumerate(rows):
        pair = sentences[number], sentences[number + 50]
        inputs = tokenizer(*pair, truncation="longest_first", max_length=16, return_tensors="pt")
        with torch.no_grad():
            expected = model(**inputs).logits[0].softmax(-1)
        found = torch.tensor([float(row[f"probability_{name}"]) for name in NAMES])
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
        # A name that a spreadsheet would take for a formula begins with a quote.
        assert row["label"] == ["bad", "good", "'=odd"][int(expected.argmax())]


def test_the_three_formats_hold_the_same(classifier, data, tmp_path):
    for suffix in ("tsv", "jsonl", "parquet"):
        assert predict(classifier, "--data", data, "--output", tmp_path / f"out.{suffix}") == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == lines
    assert [row["probability_good"] for row in tsv(tmp_path / "out.tsv")] == [
        str(line["probability_good"]) for line in lines
    ]


def test_a_killed_command_goes_on_and_writes_equal_bytes(classifier, data, tmp_path, monkeypatch):
    arguments = (classifier, "--data", data, "--part-rows", 7, "--output")
    assert predict(*arguments, tmp_path / "whole.tsv") == 0
    answered = []
    compute = texts.SampleAnswers.__call__

    def killed(self, first, rows):
        if len(answered) == 3:
            raise KeyboardInterrupt
        answered.append(first)
        return compute(self, first, rows)

    monkeypatch.setattr(texts.SampleAnswers, "__call__", killed)
    assert predict(*arguments, tmp_path / "out.tsv") == 75
    parts = tmp_path / ".out.tsv.parts"
    assert sorted(path.name for path in parts.glob("part-*")) == [f"part-{n:08d}.jsonl" for n in range(3)]
    assert not (tmp_path / "out.tsv").exists()
    answered.clear()
    monkeypatch.setattr(texts.SampleAnswers, "__call__", lambda *a: answered.append(a[1]) or compute(*a))
    assert predict(*arguments, tmp_path / "out.tsv") == 0
    assert answered == [21, 28, 35] and not parts.exists()
    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    # Other data, other parts; and the output is longmix's own.
    assert predict(*arguments, tmp_path / "out.tsv") == 0


def test_a_labelled_file_is_scored_with_intervals(classifier, tmp_path, sentences, capsys):
    """The labels are the model's own answers, but for every fifth one; columns and classes as they come."""
    pairs = [(sentences[n], sentences[n + 50]) for n in range(40)]
    lines = [json.dumps({"title": title, "body": body}) for title, body in pairs]
    (tmp_path / "new.jsonl").write_text("\n".join(lines))
    assert predict(classifier, "--data", tmp_path / "new.jsonl", "--output", tmp_path / "out.jsonl") == 0
    found = [json.loads(line)["label"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    labels = [label if n % 5 else NAMES[(NAMES.index(label) + 1) % 3] for n, label in enumerate(found)]
    with (tmp_path / "test.csv").open("w", newline="") as file:
        csv.writer(file).writerows((label, *pair) for label, pair in zip(labels, pairs, strict=True))
    arguments = ("evaluate", str(classifier), "--data", str(tmp_path / "test.csv"))
    assert main([*arguments, "--columns", "kind", "title", "body", "--label-column", "kind"]) == 0
    printed = capsys.readouterr().out
    figures = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line}
    assert figures["accuracy"][0] == "0.8000" and "40 rows" in printed
    low, high = float(figures["accuracy"][1]), float(figures["accuracy"][3])
    assert 0.6 < low < 0.8 < high < 0.95
    assert main([*arguments, "--columns", "label", "title", "other"]) == 2
    assert "no column 'body'; it has: label, title, other" in capsys.readouterr().err
    assert main(["evaluate", str(classifier), "--data", str(tmp_path / "new.jsonl")]) == 2
    assert "no column 'label'" in capsys.readouterr().err
