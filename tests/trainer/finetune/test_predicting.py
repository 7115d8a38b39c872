"""`longmix predict`: answers that are the model's, in the order of the rows, and the same bytes after a kill."""

import argparse
import csv
import json
import re

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
import torch
import transformers

from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64, write_dataset
from longmix.modeling import AutoModelForSequencePairClassification
from longmix.modeling.transformer import TransformerConfig
from longmix.trainer.cli import main
from longmix.trainer.finetune import records
from longmix.trainer.finetune.tasks import TASKS
from longmix.trainer.prediction import progress, scores, session, texts
from longmix.trainer.settings.exit_codes import INTERRUPTED

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
    output = tmp_path / "made" / "answers.tsv"
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


def test_that_texts_are_cut_is_told(classifier, data, tmp_path, capsys, monkeypatch):
    options = (classifier, "--data", data, "--part-rows", 20)
    assert predict(*options, "--output", tmp_path / "cut.tsv", "--max-length", 8) == 0
    told = re.search(
        r"(\d+) of 40 rows fill all 8 tokens, and may be cut: the model takes --max-length 32", capsys.readouterr().err
    )
    assert 0 < int(told[1]) <= 40
    assert predict(*options, "--output", tmp_path / "whole.tsv", "--max-length", 32) == 0
    assert "fill all" not in capsys.readouterr().err
    # Of all rows, whoever has answered them.
    parts_folder = tmp_path / ".again.tsv.parts"
    monkeypatch.setattr(session.output, "join", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    assert predict(*options, "--output", tmp_path / "again.tsv", "--max-length", 8) == INTERRUPTED
    assert len(list(parts_folder.glob("part-*"))) == 2
    monkeypatch.undo()
    capsys.readouterr()
    assert predict(*options, "--output", tmp_path / "again.tsv", "--max-length", 8) == 0
    assert told[0] in capsys.readouterr().err
    # Figures of cut texts, too.
    labelled = tmp_path / "labelled.tsv"
    rows = [f"{name}\ta few words of a text\tand of another one\n" for name in NAMES]
    labelled.write_text("".join(["label\ttitle\tbody\n", *rows]))
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    assert main(["evaluate", str(classifier), "--data", str(labelled), "--max-length", "8"]) == 0
    written = capsys.readouterr()
    assert "note: 3 of 3 rows fill all 8 tokens, and may be cut" in written.out
    assert "longmix evaluate: 3 of 3 rows, " in written.err


@pytest.mark.full
def test_all_formats_hold_the_same(classifier, data, tmp_path):
    for suffix in ("tsv", "csv", "jsonl", "parquet"):
        assert predict(classifier, "--data", data, "--output", tmp_path / f"out.{suffix}") == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == lines
    rows = tsv(tmp_path / "out.tsv")
    assert [row["probability_good"] for row in rows] == [str(line["probability_good"]) for line in lines]
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        assert list(csv.DictReader(file)) == rows


def test_columns_of_the_input_stand_beside_its_answers(classifier, tmp_path):
    given = tmp_path / "given.csv"
    given.write_text(
        'label,id,title,body\ngood,1,"a, b","two\nlines"\n,=2,c,d\u3000d\nbad,3,"e ""f""",\n', encoding="utf-8"
    )
    keep = ("--keep", "id", "--keep", "body", "label", "--part-rows", "2")
    for name in ("plain.jsonl", "out.csv", "out.jsonl", "out.parquet"):
        options = () if name.startswith("plain") else keep
        assert predict(classifier, "--data", given, "--output", tmp_path / name, *options) == 0
    files = (tmp_path / name for name in ("plain.jsonl", "out.jsonl"))
    plain, lines = ([json.loads(line) for line in file.read_text("utf-8").splitlines()] for file in files)
    kept = [("1", "two\nlines", "good"), ("=2", "d\u3000d", ""), ("3", "", "bad")]
    expected = [
        {"row": answer["row"], "id": one, "body": body, "given_label": label, **answer}
        for answer, (one, body, label) in zip(plain, kept, strict=True)
    ]
    assert lines == expected and [list(line) for line in lines] == [list(line) for line in expected]
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == expected
    again = records.open_table(str(tmp_path / "out.csv"))
    assert again.columns[:5] == ["row", "id", "body", "given_label", "label"]
    assert [row.texts for row in again.rows(["id", "body"])] == [["1", "two\\nlines"], ["'=2", "d\u3000d"], ["3", ""]]


def test_a_killed_command_goes_on_and_writes_equal_bytes(classifier, data, tmp_path, monkeypatch):
    arguments = (classifier, "--data", data, "--part-rows", 7, "--output")
    assert predict(*arguments, tmp_path / "whole.tsv") == 0
    answered = []
    compute = texts.SampleAnswers.__call__

    def killed(self, first, rows, note):
        if len(answered) == 3:
            raise KeyboardInterrupt
        answered.append(first)
        return compute(self, first, rows, note)

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
    # What kills have left of the record, of a part and of the output stands in nobody's way, and does not stay.
    parts.mkdir()
    for name in ("parts.json", "part-00000099.jsonl", "joined"):
        (parts / f".{name}.4711.tmp").touch()
    assert predict(*arguments, tmp_path / "out.tsv") == 0 and not parts.exists()


def test_how_far_it_is_is_told_within_a_part(classifier, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tsv(data)))
    table = pyarrow.Table.from_pylist(tsv(data))
    pq.write_table(table, tmp_path / "new.parquet")
    for name in ("new.tsv", "new.jsonl", "new.parquet"):
        assert predict(classifier, "--data", tmp_path / name, "--output", tmp_path / "out.tsv", "--batch-size", 16) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if "rows/s" in line]
        found = [
            re.fullmatch(r"longmix predict: (\d+) of 40 rows, \S+ rows/s, left \d:\d\d:\d\d", one) for one in lines
        ]
        assert [one[1] for one in found] == ["16", "32", "40"]


def test_answers_of_another_state_of_the_hub_are_others(monkeypatch, tmp_path):
    """The parts of a killed command are thrown away when the rows that are read, the model or what is kept are new."""
    options = ("columns", "text_columns", "keep", "embeddings", "max_length", "batch_size", "part_rows")
    arguments = argparse.Namespace(data="hub:some/data", **dict.fromkeys(options))

    def identity(title="a", unread=1, commit="first"):
        split = datasets.Dataset.from_dict({"title": [title], "body": ["b"], "vector": [[unread]]})
        monkeypatch.setattr(records, "hub_splits", lambda source: {"train": split})
        config = transformers.BertConfig()
        config._commit_hash = commit
        return session._identity(arguments, "some/model", config, ["title", "body"])

    assert identity() == identity(unread=2)
    made = {identity(), identity(title="c"), identity(commit="second")}
    arguments.keep = ["title"]
    assert len({*made, identity()}) == 4
    # Of a file it also counts what it is read as.
    for name in ("a.txt", "a.csv"):
        (tmp_path / name).write_text("text\nriver\n")
        arguments.data = str(tmp_path / name)
        made.add(identity())
    assert len(made) == 5


def test_pairs_of_a_prepared_data_set_are_answered_each_by_itself(tmp_path):
    """The pairs have unlike lengths: neither padding nor the other pairs of a batch count."""
    torch.manual_seed(3)
    names = {0: "unlike", 1: "alike"}
    small = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = TransformerConfig(
        **small, intermediate_size=16, max_position_embeddings=16, pad_token_id=0, id2label=names
    )
    model = AutoModelForSequencePairClassification.from_config(config).eval()
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "objective.json").write_text(json.dumps({"name": "pair_classification"}))
    generator = np.random.default_rng(0)
    drawn = [[generator.integers(2, 9, generator.integers(3, 13)) for _ in range(2)] for _ in range(11)]
    samples = [{"input_ids": one, "input_ids_b": other, "labels": 0} for one, other in drawn]
    columns = {"input_ids": LIST_INT32, "input_ids_b": LIST_INT32, "labels": SCALAR_INT64}
    about = {"vocab_size": 9, "pad_token_id": 0, "mask_token_id": 1, "special_token_ids": [0, 1], "num_labels": 2}
    write_dataset(tmp_path / "pairs", samples, columns, split="test", split_rule="test", sequence_length=16, **about)
    more = ("--output", tmp_path / "out.jsonl", "--batch-size", 4, "--part-rows", 6)
    assert predict(tmp_path / "model", "--data", tmp_path / "pairs", *more) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["row"] for row in rows] == list(range(11))
    for (one, other), row in zip(drawn, rows, strict=True):
        with torch.no_grad():
            inputs = {"input_ids": torch.tensor(one[None]), "input_ids_b": torch.tensor(other[None])}
            expected = model(**inputs).logits[0].softmax(-1)
        assert row["probability_alike"] == pytest.approx(expected[1].item(), abs=1e-5)
        assert row["label"] == names[int(expected.argmax())]


def test_a_labelled_file_is_scored_with_intervals(classifier, tmp_path, sentences, capsys, monkeypatch):
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
    assert figures["accuracy"][0] == "0.8000" and "40 rows" in printed and "macro_f1" in figures
    for name in NAMES:
        has, given = labels.count(name), found.count(name)
        right = sum(one == name == other for one, other in zip(labels, found, strict=True))
        shares = [f"{right / given:.4f}" if given else "–", f"{right / has:.4f}" if has else "–"]
        assert figures[name] == [
            str(has),
            str(given),
            *shares,
            f"{2 * right / (has + given):.4f}" if has + given else "–",
        ]
    # At the length of fine-tuning, unless another one is given.
    cut = ("--columns", "kind", "title", "body", "--label-column", "kind", "--max-length", "8")
    lengths, load = [], scores.load_encoder
    monkeypatch.setattr(scores, "load_encoder", lambda *given: lengths.append(given[1]) or load(*given))
    assert main([*arguments, *cut[:-2]]) == 0 and main([*arguments, *cut]) == 0 and lengths == [16, 8]
    assert main(["evaluate", str(classifier), "--fill", "a [MASK]", "--max-length", "4"]) == 2
    assert "--max-length is for --data with a labelled file" in capsys.readouterr().err
    low, high = float(figures["accuracy"][1]), float(figures["accuracy"][3])
    assert 0.6 < low < 0.8 < high < 0.95
    assert main([*arguments, "--columns", "label", "title", "other"]) == 2
    assert "no column 'body'; it has: label, title, other" in capsys.readouterr().err
    assert main(["evaluate", str(classifier), "--data", str(tmp_path / "new.jsonl")]) == 2
    assert "no column 'label'" in capsys.readouterr().err


def test_a_model_of_glue_reads_both_layouts(bert_folder, tmp_path, sentences, capsys):
    """As `encode_task` says it in inputs.json, the columns are those of MNLI's TSV files."""
    torch.manual_seed(1)
    names, model = TASKS["mnli"].label_names, tmp_path / "model"
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    transformers.AutoModelForSequenceClassification.from_pretrained(bert_folder, **labels).save_pretrained(model)
    transformers.AutoTokenizer.from_pretrained(bert_folder).save_pretrained(model)
    (model / "objective.json").write_text(json.dumps({"name": "classification"}))
    inputs = {"text_columns": ["sentence1", "sentence2"], "label_column": "gold_label", "max_length": 16}
    (model / "inputs.json").write_text(json.dumps(inputs))
    pairs = [(sentences[n], sentences[n + 50], n % 3) for n in range(20)]
    rows = [f"{one}\t{other}\t{names[label]}\n" for one, other, label in pairs]
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tgold_label\n" + "".join(rows))
    columns = dict(zip(("premise", "hypothesis", "label"), map(list, zip(*pairs, strict=True)), strict=True))
    pq.write_table(pyarrow.table(columns), tmp_path / "dev.parquet")
    found = []
    for name in ("dev.tsv", "dev.parquet"):
        assert main(["evaluate", str(model), "--data", str(tmp_path / name)]) == 0
        out = tmp_path / f"{name}.jsonl"
        assert predict(model, "--data", tmp_path / name, "--output", out) == 0
        found.append((capsys.readouterr().out.replace(name, ""), out.read_bytes()))
    note = "note: labels 0, 1, 2 are read as entailment, neutral, contradiction\n"
    assert note in found[1][0] and found[0] == (found[1][0].replace(note, ""), found[1][1])
    assert "20 rows" in found[0][0]
    # A column of neither layout is missed under the name that the model knows, and Parquet has no line to name them.
    pq.write_table(pyarrow.table({"premise": ["a"], "text": ["b"]}), tmp_path / "other.parquet")
    told = mistake(capsys, model, "--data", tmp_path / "other.parquet", "--output", tmp_path / "out.tsv")
    assert told.endswith("no column 'sentence1'; it has: premise, text")


@pytest.fixture
def saved(bert_folder, tmp_path):
    """saved(auto class, **fields) -> a model folder with such a head."""

    def make(auto_class, **fields):
        torch.manual_seed(2)
        auto_class.from_pretrained(bert_folder, **fields).save_pretrained(tmp_path / "model")
        transformers.AutoTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return make


def answers_to(model, texts_, tmp_path, *more):
    (tmp_path / "new.txt").write_text("\n".join(texts_) + "\n")
    assert predict(model, "--data", tmp_path / "new.txt", "--output", tmp_path / "out.jsonl", *more) == 0
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]


def outputs_of(auto_class, model, text):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    with torch.no_grad():
        return auto_class.from_pretrained(model).eval()(**tokenizer(text, return_tensors="pt"))


TEXTS = ["the cat", "a small red bird likes the old tree", "a dog"]


def test_an_embedding_is_the_mean_over_the_tokens_of_its_text_alone(saved, tmp_path):
    model = saved(transformers.AutoModelForMaskedLM)
    for text, found in zip(TEXTS, answers_to(model, TEXTS, tmp_path, "--embeddings"), strict=True):
        expected = outputs_of(transformers.AutoModel, model, text).last_hidden_state[0].mean(dim=0)
        torch.testing.assert_close(torch.tensor(found["embedding"]), expected, atol=1e-5, rtol=0)


def test_masks_are_filled(saved, tmp_path, capsys):
    model = saved(transformers.AutoModelForMaskedLM)
    first, second = answers_to(model, ["the [MASK] runs", "[MASK] cat [MASK]"], tmp_path)
    best = outputs_of(transformers.AutoModelForMaskedLM, model, "the [MASK] runs").logits[0, 2].softmax(-1).max(-1)
    piece = transformers.AutoTokenizer.from_pretrained(model).convert_ids_to_tokens(int(best.indices))
    assert (first["pieces"], first["probabilities"]) == ([piece], [pytest.approx(best.values.item(), rel=1e-5)])
    assert "[MASK]" not in first["filled"] and len(second["pieces"]) == 2 and "cat" in second["filled"]
    capsys.readouterr()
    (unknown,) = answers_to(model, ["the 東京 [MASK]"], tmp_path)
    assert capsys.readouterr().out.endswith(": 1 row\n")
    assert "[UNK]" in unknown["filled"]


def test_a_text_that_is_cut_may_hold_no_mask(saved, tmp_path, capsys):
    model = saved(transformers.AutoModelForMaskedLM)
    long = "the cat runs " * 200
    (answer,) = answers_to(model, [long], tmp_path)
    assert answer["pieces"] == [] and "cat" in answer["filled"]
    (tmp_path / "masked.txt").write_text(f"{long} [MASK]\n")
    assert predict(model, "--data", tmp_path / "masked.txt", "--output", tmp_path / "masked.jsonl") == 2
    assert "row 0 has a mask and " in capsys.readouterr().err


def test_masks_are_filled_in_one_text(saved, tmp_path, capsys):
    (tmp_path / "t.tsv").write_text("one\ttwo\na [MASK]\tb [MASK]\n")
    told = mistake(
        capsys, saved(transformers.AutoModelForMaskedLM), "--data", tmp_path / "t.tsv", "--output",
        tmp_path / "out.tsv", "--text-columns", "one", "two",
    )  # fmt: skip
    assert "--text-columns names one, two, but masks are filled in one text: name its column" in told


def test_vectors_are_numbers_in_tsv_too(saved, tmp_path):
    (tmp_path / "t.txt").write_text("\n".join(TEXTS))
    model = saved(transformers.AutoModelForMaskedLM)
    out = tmp_path / "vectors.tsv"
    assert predict(model, "--data", tmp_path / "t.txt", "--output", out, "--embeddings") == 0
    vectors = [list(map(float, line.split("\t")[1].split())) for line in out.read_text().splitlines()[1:]]
    assert len(vectors) == len(TEXTS) and any(vector[0] < 0 for vector in vectors)


def test_values_and_labels_of_tokens(saved, tmp_path):
    model = saved(transformers.AutoModelForSequenceClassification, num_labels=1, problem_type="regression")
    expected = [
        outputs_of(transformers.AutoModelForSequenceClassification, model, text).logits.item() for text in TEXTS
    ]
    assert [row["value"] for row in answers_to(model, TEXTS, tmp_path)] == pytest.approx(expected, rel=1e-4)
    model = saved(transformers.AutoModelForTokenClassification, id2label={0: "O", 1: "ANIMAL"})
    for text, row in zip(TEXTS, answers_to(model, TEXTS, tmp_path), strict=True):
        best = outputs_of(transformers.AutoModelForTokenClassification, model, text).logits[0].argmax(-1).tolist()
        assert row["tokens"] == text.split() and row["labels"] == [["O", "ANIMAL"][one] for one in best[1:-1]]


def test_mistakes_are_told_in_a_line(classifier, saved, data, tmp_path, capsys):
    out = tmp_path / "out.tsv"
    told = mistake(capsys, classifier, "--data", data, "--output", "o.txt")
    assert "must be one of .tsv, .csv, .jsonl, .parquet" in told
    assert "no column 'words'" in mistake(
        capsys, classifier, "--data", data, "--output", out, "--text-columns", "words"
    )
    assert "no column 'words'" in mistake(capsys, classifier, "--data", data, "--output", out, "--keep", "words")
    told = mistake(capsys, classifier, "--data", data, "--output", out, "--keep", "id", "id")
    assert "--keep: two columns of the output would be called 'id'" in told
    told = mistake(capsys, classifier, "--data", data, "--output", out, "--text-columns", "body")
    assert (
        told.endswith("was fine-tuned with pairs of texts (title, body)") and "--text-columns names body, but" in told
    )
    model = saved(transformers.AutoModelForSequenceClassification)
    told = mistake(capsys, model, "--data", data, "--output", out)
    assert "name the text of" in told and "it has: id, title, body" in told
    out.write_text("mine")
    assert "is not longmix's" in mistake(capsys, classifier, "--data", data, "--output", out)
    assert out.read_text() == "mine"
    (tmp_path / ".other.tsv.parts").mkdir()
    (tmp_path / ".other.tsv.parts" / "part-00000000.jsonl").write_text("mine")
    told = mistake(capsys, classifier, "--data", data, "--output", tmp_path / "other.tsv")
    assert "holds what longmix did not write there" in told
    assert (tmp_path / ".other.tsv.parts" / "part-00000000.jsonl").read_text() == "mine"


def test_a_task_of_files_without_a_header_is_trained_predicted_and_scored(bert_folder, tmp_path, sentences, capsys):
    """The names of the classes, the text columns and the length go with the model."""
    rows = [["cat" if "cat" in text.split() else "none", text, str(n)] for n, text in enumerate(sentences[:80])]
    for name, part in (("train", rows[:60]), ("test", rows[60:])):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(part)
    columns = ("--columns", "kind", "text", "id")
    task = ("--task", "custom", *columns, "--text-columns", "text", "--label-column", "kind", "--seeds", "1")
    place = ("--data", str(tmp_path), "--output", str(tmp_path / "out"))
    more = ("--epochs", "1", "--jobs", "1", "--max-length", "12")
    assert main(["finetune", "--model", str(bert_folder), *task, *place, *more]) == 0
    run, test = tmp_path / "out" / "custom" / "seed-0", tmp_path / "test.csv"
    assert json.loads((run / "model" / "inputs.json").read_text()) == {
        "text_columns": ["text"],
        "label_column": "kind",
        "max_length": 12,
        "series": None,
        "label_scale": None,
        "characters": None,
    }
    card = (run / "model" / "README.md").read_text()
    assert "\ntags: [longmix, bert]\n" in card and "\n\nOn the selection split, a part of the training data" in card
    assert predict(run, "--data", test, *columns, "--output", tmp_path / "file.jsonl") == 0
    prepared = tmp_path / "out" / "custom" / "data" / "test"
    assert predict(run, "--data", prepared, "--output", tmp_path / "samples.jsonl") == 0
    assert (tmp_path / "file.jsonl").read_bytes() == (tmp_path / "samples.jsonl").read_bytes()
    found = [json.loads(line) for line in (tmp_path / "file.jsonl").read_text().splitlines()]
    assert set(found[0]) == {"row", "label", "probability_cat", "probability_none"}
    (reported,) = json.loads((tmp_path / "out" / "results.json").read_text())["tasks"][0]["splits"]
    right = sum(one["label"] == row[0] for one, row in zip(found, rows[60:], strict=True))
    assert reported["split"] == "test" and reported["figures"]["accuracy"]["mean"] == right / 20
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(test), *columns]) == 0
    printed = capsys.readouterr().out
    assert f"{right / 20:.4f}" in printed and "f1 is of the class 'none'" in printed


def test_a_regression_is_the_same_in_any_unit(bert_folder, tmp_path, sentences, capsys):
    """Of labels in the hundreds of thousands, too: a model that had to learn them would not leave their mean."""
    found = {}
    for unit, offset in ((1.0, 0.0), (30_000.0, 200_000.0)):
        folder = tmp_path / str(unit)
        folder.mkdir()
        rows = [f"{text}\t{unit * len(text.split()) + offset}\n" for text in sentences[:80]]
        for name, part in (("train", rows[:60]), ("dev", rows[60:]), ("test", rows[60:])):
            (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(part))
        task = ("--task", "custom", "--regression", "--seeds", "1", "--epochs", "20", "--jobs", "1")
        place = ("--data", str(folder), "--output", str(folder / "out"))
        assert main(["finetune", "--model", str(bert_folder), *task, *place]) == 0
        run = folder / "out" / "custom" / "seed-0"
        out = folder / "answers.jsonl"
        assert predict(run, "--data", folder / "dev.tsv", "--text-columns", "text", "--output", out) == 0
        values = np.array([json.loads(line)["value"] for line in out.read_text().splitlines()])
        assert json.loads((run / "predictions" / "dev.json").read_text()) == pytest.approx(values, rel=1e-4)
        submitted = [float(row["prediction"]) for row in tsv(folder / "out" / "submission" / "custom.tsv")]
        assert submitted == pytest.approx(values, abs=1e-5 * unit)
        capsys.readouterr()
        assert main(["evaluate", str(run), "--data", str(folder / "dev.tsv"), "--text-columns", "text"]) == 0
        error = next(line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("mae"))
        labels = [float(row["label"]) for row in tsv(folder / "dev.tsv")]
        assert float(error) == pytest.approx(np.abs(values - labels).mean(), rel=1e-3)
        found[unit] = (values - offset) / unit
    assert found[1.0] == pytest.approx(found[30_000.0], abs=2e-4) and np.std(found[1.0]) > 2e-3
    assert "Its labels were standardised: an answer" in (run / "model" / "README.md").read_text()
