"""longmix prepare listops: expressions after the specification, exact answers, and the published files."""

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.tasks import listops
from longmix.data_prep.tasks.listops import ListOpsSettings, make_sample, prepare_listops, prepare_listops_files
from longmix.data_prep.tasks.listops_expressions import SYMBOLS, evaluate

# Another algorithm; its docstring says how to check 10,000 samples.
ORACLE = runpy.run_path(str(Path(__file__).with_name("listops_oracle.py")))
text_of, value_of = ORACLE["text_of"], ORACLE["value_of"]

HEADER = "Source\tTarget\r\n"
ROW = "( ( ( [MAX 2 ) ( ( ( [SM 9 ) 4 ) ] ) ) ] )\t3\r\n"  # as the release writes it
SMALL = {"min_length": 3, "max_length": 60, "train_samples": 40, "validation_samples": 8, "test_samples": 8}


def value(text):
    return evaluate([SYMBOLS.index(symbol) for symbol in text.split()])


def write_files(folder, train=ROW, validation="[MED 1 4 ]\t2\n", test="( ( ( [MIN 5 ) 6 ) ] )\t5\n"):
    folder.mkdir(exist_ok=True)
    for name, rows in (("train", train), ("val", validation), ("test", test)):
        text = rows if isinstance(rows, bytes) else (HEADER + rows).encode()
        (folder / f"basic_{name}.tsv").write_bytes(text)
    return folder


def test_values_of_known_expressions():
    assert value("[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]") == 5
    assert value("[SM 9 9 9 ]") == 7 and value("[MED 1 4 ]") == 2 and value("[MED 9 3 3 4 ]") == 3
    assert value("7") == 7
    for text in ("[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]", "[SM 9 9 9 ]", "[MED 1 4 ]", "[MED 9 3 3 4 ]", "7"):
        assert value(text) == value_of(text)


def test_answers_and_sizes_by_the_specification():
    settings = ListOpsSettings()
    lengths, labels, deepest, widest = [], Counter(), 0, 0
    for index in range(300):
        sample = make_sample(settings, "train", index)
        text = text_of(sample["input_ids"])
        assert value_of(text) == sample["labels"]
        lengths.append(len(sample["input_ids"]))
        labels[sample["labels"]] += 1
        depth, arguments = shape_of(text)
        deepest, widest = max(deepest, depth), max(widest, *arguments)
        assert min(arguments) >= 2
    assert 500 < min(lengths) < 560 and 1900 < max(lengths) < 2000
    assert (deepest, widest) == (9, 10)
    assert set(labels) == set(range(10))


def test_unconditioned_trees_have_the_probabilities_of_the_specification():
    settings = ListOpsSettings(max_depth=3, max_arguments=4, min_length=0, max_length=100)
    texts = [text_of(make_sample(settings, "test", index)["input_ids"]) for index in range(4000)]
    trees = [text for text in texts if text.startswith("[")]
    assert len(trees) / len(texts) == pytest.approx(0.25, abs=0.03)
    # A root's arguments are lists with the same probability; theirs are digits: the depth ends there.
    places = [place for text in trees for place in children_of(text)]
    assert sum(place.startswith("[") for place in places) / len(places) == pytest.approx(0.25, abs=0.03)
    assert max(shape_of(text)[0] for text in trees) == 2
    for counted, of in (
        (Counter(len(children_of(text)) for text in trees), {2, 3, 4}),
        (Counter(re.findall(r"\[\w+", " ".join(trees))), {"[MIN", "[MAX", "[MED", "[SM"}),
        (Counter(re.findall(r"\b\d\b", " ".join(texts))), set("0123456789")),
    ):
        assert set(counted) == of
        assert all(count / counted.total() == pytest.approx(1 / len(of), rel=0.2) for count in counted.values())


def children_of(text):
    """The arguments of the outermost list, as text."""
    found, depth = [], 0
    for token in text.split()[1:-1]:
        if depth:
            found[-1] += f" {token}"
        else:
            found.append(token)
        depth += token.startswith("[") - (token == "]")
    return found


def shape_of(text):
    """(how deep lists are nested, the numbers of arguments of all of them)"""
    deepest, open_lists, arguments = 0, [], []
    for token in text.split():
        if token == "]":
            arguments.append(open_lists.pop())
            continue
        if open_lists:
            open_lists[-1] += 1
        if token.startswith("["):
            open_lists.append(0)
            deepest = max(deepest, len(open_lists))
    return deepest, arguments


def test_the_folder_tells_the_trainer_what_it_needs(tmp_path, rows_of):
    settings = ListOpsSettings(**SMALL)
    made = prepare_listops(settings, tmp_path / "out")
    assert [made[split].samples + made[split].report["left_out"] for split in made] == [40, 8, 8]
    train = made["train"]
    assert (train.vocab_size, train.pad_token_id, train.mask_token_id, train.num_labels) == (17, 0, 1, 10)
    assert train.sequence_length == 59 and train.special_token_ids == [0, 1]
    samples, wrong = ORACLE["disagreements"](tmp_path / "out")
    assert samples == sum(manifest.samples for manifest in made.values()) and wrong == 0
    sample = make_sample(settings, "test", 5)
    row = {"input_ids": sample["input_ids"].tolist(), "labels": sample["labels"]}
    assert rows_of(tmp_path / "out" / "test")[5] == row
    others = [make_sample(settings, "validation", 5), make_sample(ListOpsSettings(**SMALL, seed=1), "test", 5)]
    assert all(other["input_ids"].tolist() != row["input_ids"] for other in others)


def test_the_published_files_are_read(tmp_path, capsys, run_prepare, rows_of):
    source = write_files(tmp_path / "source", train=ROW + "3\t3\r\n" + "[MED 1 4 ]\t2\r\n")
    assert run_prepare("listops", "--source", source, "--output", tmp_path / "out") == 0
    assert "train: 2 samples, 8 tokens, at most 7 each" in (printed := capsys.readouterr().out)
    assert "1 left out" in printed  # it stands in the validation split too
    rows = rows_of(tmp_path / "out" / "train")
    assert [(text_of(row["input_ids"]), row["labels"]) for row in rows] == [("[MAX 2 [SM 9 4 ] ]", 3), ("3", 3)]
    assert [row["labels"] for row in rows_of(tmp_path / "out" / "test")] == [5]
    again = prepare_listops_files(source, tmp_path / "out")
    assert set(again["train"].report["task"]["files"]["test"]) == {"file", "sha256"}
    write_files(source)
    with pytest.raises(UserError, match="already holds other data"):
        prepare_listops_files(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("[MAX 1 2 ]\t1\n", r"basic_train.tsv, line 2, column Target is '1', but the expression's value is 2"),
        (ROW + "[MAX 1 2 ]\tx\n", r"line 3, column Target is 'x'"),
        ("[MAX 1 2\t2\n", r"line 2, column Source is no expression: 1 lists are not closed"),
        ("1 ]\t1\n", "it is complete at token 1, but more follows"),
        ("]\t1\n", "the bracket at token 1 closes nothing"),
        ("[MAX ]\t1\n", "the bracket at token 2 closes an empty list"),
        ("( )\t1\n", "column Source is no expression: it is empty"),
        ("[MAX 1 [AVG 2 ] ]\t1\n", r"'\[AVG' is no symbol of ListOps"),
        ("[MAX 1 " + "7" * 9999 + "\t1\n", r"'7{20}\.\.\.' is no symbol"),
        ("[MAX 1 2 ]\n", "line 2 has 1 columns, the first line 2"),
        ("", "holds no expressions"),
        (b"", "holds no expressions"),
        (b"Source,Target\n1,1\n", "has no column Source"),
        (b"Source\tAnswer\n1\t1\n", "has no column Target"),
        (HEADER.encode() + b"[MAX 1 \xff ]\t1\n", r"line 2: byte 0xff is not ASCII"),
        (HEADER.encode() + b"1 " * (1 << 20), "line 2 has more than 1048576 bytes"),
        (HEADER.encode() + b"[MAX " + b"1 " * 140_000 + b"]\t1\n", "an expression of 140002 tokens, but at most"),
    ],
)
def test_mistakes_in_files_are_named(tmp_path, train, message):
    with pytest.raises(UserError, match=message):
        prepare_listops_files(write_files(tmp_path / "source", train), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_named(tmp_path, run_prepare):
    source = write_files(tmp_path / "source")
    (source / "basic_val.tsv").unlink()
    with pytest.raises(UserError, match=r"basic_val.tsv is missing: --source names the folder of basic_train.tsv"):
        prepare_listops_files(source, tmp_path / "out")
    (source / "basic_val.tsv").mkdir()
    with pytest.raises(UserError, match=r"basic_val.tsv is missing"):
        prepare_listops_files(source, tmp_path / "out")
    with pytest.raises(UserError, match="--max-depth is for generated expressions"):
        run_prepare("listops", "--source", source, "--max-depth", 3, "--output", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_depth": 0}, "--max-depth is 0, but must be at least 1"),
        ({"max_arguments": 1}, "--max-arguments is 1, but must be 2 to 131072"),
        ({"min_length": -1}, "--min-length is -1"),
        ({"max_length": 501}, r"--max-length is 501, but must be 502 \(--min-length \+ 2\) to 131072"),
        ({"max_length": 10**12}, "--max-length is 1000000000000"),
        ({"test_samples": 0}, "--test-samples is 0, but must be at least 1"),
        ({"seed": -1}, "--seed is -1, but must be at least 0"),
    ],
)
def test_mistakes_name_the_option_its_value_and_what_is_allowed(options, message):
    with pytest.raises(UserError, match=message):
        ListOpsSettings(**options)


def test_lengths_that_no_expression_has_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr(listops, "ATTEMPTS", 50)
    with pytest.raises(UserError, match="of 50 expressions none had more than 500 and fewer than 2000 tokens: change"):
        prepare_listops(ListOpsSettings(max_depth=2), tmp_path / "out")


def test_the_command_generates(tmp_path, capsys, run_prepare, rows_of):
    words = [f"--{name.replace('_', '-')}={number}" for name, number in SMALL.items()]
    assert run_prepare("listops", *words, "--max-depth", 4, "--seed", 7, "--output", tmp_path / "out") == 0
    assert "10 classes" in capsys.readouterr().out
    sample = make_sample(ListOpsSettings(**SMALL, max_depth=4, seed=7), "test", 0)
    assert rows_of(tmp_path / "out" / "test")[0]["input_ids"] == sample["input_ids"].tolist()
