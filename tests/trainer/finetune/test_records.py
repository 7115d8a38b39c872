"""Files as they come: one reader for TSV, CSV, JSON lines, Parquet, plain text and the hub, and a task made of them."""

import bz2
import csv
import datetime
import decimal
import gzip
import json
import lzma

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.finetune import readers, records
from longmix.trainer.finetune.custom import labelled, load_custom
from longmix.trainer.finetune.records import open_table

COLUMNS = ("label", "title", "text")
ROWS = [("World", 'He said "no"', "a, b; c"), ("Sport", "", "Größe = 3"), ("World", "-1", "=1+1")]


def quoted(row):
    return ",".join('"{}"'.format(cell.replace('"', '""')) for cell in row)


def write(folder, name, rows=ROWS, header=True):
    """The rows as a file of the kind that its suffix says."""
    folder.mkdir(parents=True, exist_ok=True)
    path, lines = folder / name, [COLUMNS, *rows] if header else rows
    if path.suffix == ".tsv":
        path.write_text("".join("\t".join(row) + "\n" for row in lines), encoding="utf-8")
    elif path.suffix == ".csv":
        path.write_text("".join(quoted(row) + "\r\n" for row in lines), encoding="utf-8-sig")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.table(list(map(list, zip(*rows, strict=True))), list(COLUMNS)), path)
    return path


@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.jsonl", "t.parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, name):
    table = open_table(str(write(tmp_path, name)))
    assert table.columns == list(COLUMNS)
    assert [tuple(row.texts) for row in table.rows(("text", "label"))] == [(text, label) for label, _, text in ROWS]
    with pytest.raises(UserError, match=r"no column 'sort'; it has: label, title, text") as told:
        table.rows(["sort"])
    assert ("--columns" in str(told.value)) == (name in ("t.tsv", "t.csv"))


def test_spaces_around_the_names_of_a_header_are_passed_over(tmp_path):
    for name, between in (("t.csv", ", "), ("t.tsv", " \t")):
        (tmp_path / name).write_text(f"{between.join(('date', 'OT', 'a'))}\n{between.strip(' ').join('123')}\n")
        table = open_table(str(tmp_path / name))
        assert table.columns == ["date", "OT", "a"]
        # As an earlier version noted them.
        assert [row.texts for row in table.rows(["a", " OT", "date "])] == [["3", "2", "1"]]
    # What differs in spaces alone keeps them.
    (tmp_path / "t.csv").write_text("date, a,a\n1,3,4\n")
    table = open_table(str(tmp_path / "t.csv"))
    assert [row.texts for row in table.rows(["a", " a"])] == [["4", "3"]]
    # In every split of a task.
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.csv").write_text("text, label\na,x\nb,y\n")
    data = load_custom(str(tmp_path), None, None)
    assert data.task.text_columns == ("text",) and data.test_labels == data.train.labels == [0, 1]
    (tmp_path / "t.csv").write_text("date, OT,OT \n1,2,3\n")
    with pytest.raises(UserError, match="no column 'OT'; it has"):
        open_table(str(tmp_path / "t.csv")).rows(["OT"])


PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.jsonl"])
def test_a_compressed_file_gives_the_same_rows(tmp_path, name, ending):
    plain = write(tmp_path, name)
    packed = tmp_path / f"{name}.{ending}"
    packed.write_bytes(PACKERS[ending](plain.read_bytes()))
    assert [row.texts for row in open_table(str(packed)).rows(COLUMNS)] == [list(row) for row in ROWS]
    shouted = packed.rename(tmp_path / packed.name.upper())
    assert len(list(open_table(str(shouted)).rows(COLUMNS))) == len(ROWS)
    packed.write_bytes(shouted.read_bytes()[:-9])
    with pytest.raises(UserError, match=rf"{name}.{ending}, compressed with .*damaged or cut short .*: get it anew$"):
        open_table(str(packed))


def test_a_task_may_be_compressed_but_no_parquet(tmp_path, monkeypatch):
    for split in ("train", "dev"):
        lines = b"label\ttext\nno\ta\nyes\tb\n"
        (tmp_path / f"{split}.tsv.gz").write_bytes(gzip.compress(lines))
    assert load_custom(str(tmp_path), ("text",), None).train.first == ["a", "b"]
    write(tmp_path, "t.parquet").rename(tmp_path / "t.parquet.gz")
    with pytest.raises(UserError, match=r"t\.parquet\.gz is compressed Parquet: unpack it first"):
        open_table(str(tmp_path / "t.parquet.gz"))
    monkeypatch.setattr(readers, "_LARGEST_FILE", 20)
    with pytest.raises(UserError, match=r"train\.tsv\.gz has more than 20 bytes of text: cut it"):
        load_custom(str(tmp_path), ("text",), None)


@pytest.mark.parametrize("suffix", ["tsv", "csv", "txt"])
def test_a_blank_line_of_one_column_is_an_empty_text(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    for header, columns in (("text\n", None), ("", ["text"])):
        path.write_text(("" if suffix == "txt" else header) + "one\n\nthree\n\n")
        rows = list(open_table(str(path), columns).rows(["text"]))
        assert [row.texts for row in rows] == [["one"], [""], ["three"]]
        assert [row.place[-1] for row in rows] == (["2", "3", "4"] if header and suffix != "txt" else ["1", "2", "3"])


def test_a_blank_line_of_several_columns_is_no_row_of_csv(tmp_path):
    (tmp_path / "t.csv").write_text("\ntext,label\n\na,1\n\nb,2\n")
    table = open_table(str(tmp_path / "t.csv"))
    assert [row.texts for row in table.rows(["text"])] == [["a"], ["b"]] and table.count == 2


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_the_first_line_of_a_file_without_a_header_is_a_row(tmp_path, name):
    path = str(write(tmp_path, name, header=False))
    assert [row.texts for row in open_table(path, COLUMNS).rows(COLUMNS)] == [list(row) for row in ROWS]
    with pytest.raises(UserError, match=r"line 1: 3 .*, expected 2"):
        list(open_table(path, COLUMNS[:2]).rows(COLUMNS[:1]))


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_a_header_that_is_there_is_no_row(tmp_path, name):
    with pytest.raises(UserError, match=rf"{name}: its first line seems to be a header \(label, title, text\): leave"):
        open_table(str(write(tmp_path, name)), COLUMNS)
    with pytest.raises(
        UserError, match=r"first line seems to be a header \(label, title, text\): .* if it is to have other names"
    ):
        open_table(str(write(tmp_path, name)), [COLUMNS[0], "subject", "words"])


@pytest.mark.parametrize(
    ("first", "names"),
    [
        (",label,text", ["row", "label", "text"]),  # as pandas writes it
        ("Label,Text", ["label", "text"]),
        ("label,review text", ["label", "text"]),
        ("label,text,2", ["label", "text", "extra"]),
    ],
)
def test_a_header_with_some_of_the_names_is_no_row(tmp_path, first, names):
    (tmp_path / "t.csv").write_text(f"{first}\n{'a,' * (len(names) - 1)}b\n")
    with pytest.raises(UserError, match="first line seems to be a header"):
        open_table(str(tmp_path / "t.csv"), names)


@pytest.mark.parametrize(
    "first", [("0", "the film was awful"), ("text", "some words of one"), ("1", "2"), ("Text", "noun")]
)
def test_a_row_that_holds_the_name_of_a_column_is_a_row(tmp_path, first):
    (tmp_path / "t.tsv").write_text("\n".join(["\t".join(first), "1\tit was fine"]) + "\n")
    assert open_table(str(tmp_path / "t.tsv"), [first[0].lower(), "other"]).count == 2


def test_a_header_behind_a_blank_line_is_no_row(tmp_path):
    (tmp_path / "t.csv").write_text("\nlabel,text\nneg,it was bad\n")
    with pytest.raises(UserError, match=r"first line seems to be a header \(label, text\)"):
        open_table(str(tmp_path / "t.csv"), ["label", "text"])


def test_what_a_csv_file_needs_is_not_taken_from_others(tmp_path):
    """The longest field that csv allows is a setting of the whole process."""
    open_table(str(write(tmp_path, "t.csv")))
    assert csv.field_size_limit() >= 131_072


def test_csv_may_hold_line_ends_semicolons_between_and_long_fields(tmp_path):
    (tmp_path / "t.csv").write_text('text;label\n"two\nlines; one field";a\n' + "x" * 200_000 + ";b\n")
    rows = [row.texts for row in open_table(str(tmp_path / "t.csv")).rows(["text", "label"])]
    assert rows == [["two\nlines; one field", "a"], ["x" * 200_000, "b"]]
    (tmp_path / "t.csv").write_text('text\tlabel\n"a\tb; c, d"\te\n')
    table = open_table(str(tmp_path / "t.csv"))
    assert [row.texts for row in table.rows(["label", "text"])] == [["e", "a\tb; c, d"]] and table.has_decimal_commas
    (tmp_path / "t.csv").write_text("a\tb\nc\n")  # no header
    assert [row.texts for row in open_table(str(tmp_path / "t.csv"), ["text"]).rows(["text"])] == [["a\tb"], ["c"]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", 'text\n"open', "t.csv, line 2: unexpected end of data"),
        ("t.csv", "\n\r\n", "t.csv: the file is empty"),
        ("t.csv", "text,label\na\n", r"t.csv, line 2: 1 fields between ',', expected 2"),
        ("t.jsonl", '{"text": "a"}\n{"label": 1}\n', "t.jsonl, line 2: there is no 'text'; it has: label"),
        (
            "t.jsonl",
            '{"text": ["a"]}\n',
            r"'text' holds list, expected a text, a number or a date \(tasks with several labels",
        ),
        ("t.jsonl", "[1]\n", "t.jsonl, line 1: expected one JSON object a line, found list"),
        ("t.parquet", "no", r"t\.parquet cannot be read as Parquet"),
        ("t.doc", "no", r"t\.doc is of no known kind; these are read: \.tsv, \.csv"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        list(open_table(str(tmp_path / name)).rows(["text"]))


def test_the_width_of_a_row_is_looked_at_when_its_table_is_opened(tmp_path):
    (tmp_path / "t.tsv").write_text("text\tlabel\na\tb\na\n")
    with pytest.raises(UserError, match=r"t\.tsv, line 3: 1 "):
        open_table(str(tmp_path / "t.tsv"))


def test_class_numbers_of_the_hub_become_names(tmp_path, monkeypatch):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    split = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features)
    split.to_parquet(tmp_path / "t.parquet")
    monkeypatch.setattr(records, "hub_splits", lambda source: {"train": split, "validation": split})
    for source in (str(tmp_path / "t.parquet"), "hub:someone/data", "hub:someone/data:validation"):
        assert [row.texts[0] for row in open_table(source).rows(["label"])] == ["yes", "no", ""]
    with pytest.raises(UserError, match=r"there is no split 'test'"):
        open_table("hub:someone/data:test")


def test_a_key_that_a_late_line_lacks_is_told_before_a_row_is_read(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "a", "id": 1}\n{"text": "b"}\n')
    with pytest.raises(UserError, match=r"t\.jsonl, line 2: there is no 'id'; it has: text"):
        open_table(str(tmp_path / "t.jsonl")).rows(["id"])


def test_dates_and_decimals_are_texts(tmp_path):
    columns = {
        "at": [datetime.datetime(2024, 2, 3, 4, 5), None],
        "day": [datetime.date(2024, 2, 3), None],
        "price": [decimal.Decimal("1.50"), None],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    table = open_table(str(tmp_path / "t.parquet"))
    assert [row.texts for row in table.rows(list(columns))] == [["2024-02-03 04:05:00", "2024-02-03", "1.50"], [""] * 3]
    far = pyarrow.array([10**18], pyarrow.timestamp("us"))
    pyarrow.parquet.write_table(pyarrow.table({"at": far}), tmp_path / "far.parquet")
    with pytest.raises(UserError, match=r"far\.parquet cannot be read as Parquet"):
        list(open_table(str(tmp_path / "far.parquet")).rows(["at"]))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_task_of_several_text_columns_without_a_dev_split(tmp_path, suffix):
    """As AG News is: no header in its CSV files, a labelled test file, no dev file."""
    for name in ("train", "test"):
        write(tmp_path, f"{name}.{suffix}", header=False)
    data = load_custom(str(tmp_path), ("title", "text"), None, columns=COLUMNS if suffix == "csv" else None)
    assert data.task.label_names == ("Sport", "World") and data.train.labels == [1, 0, 1]
    assert (data.train.first, data.train.second) == ([row[1] for row in ROWS], [row[2] for row in ROWS])
    assert list(data.dev) == ["test"] and data.dev["test"].labels == [1, 0, 1] and data.test == {}
    assert data.notes == [
        "no dev split: the figures are those of the labelled test split",
        "test: 3 of 3 texts stand in the training data, too",
    ]
    write(tmp_path, f"test.{suffix}", [ROWS[0], ("Sport", "", "another text")], header=False)
    data = load_custom(str(tmp_path), ("title", "text"), None, columns=COLUMNS if suffix == "csv" else None)
    assert data.notes[1:] == ["test: 1 of 2 texts stand in the training data, too"]
    write(tmp_path, f"test.{suffix}", [("Sport", "", "another text")], header=False)
    data = load_custom(str(tmp_path), ("title", "text"), None, columns=COLUMNS if suffix == "csv" else None)
    assert data.notes[1:] == []


def test_booleans_are_as_json_writes_them(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a", "label": true}\n{"text": "b", "label": false}\n')
    (tmp_path / "dev.csv").write_text("text,label\na,true\nb,false\n")
    data = load_custom(str(tmp_path), ("text",), None)
    assert data.task.label_names == ("false", "true") and data.dev["dev"].labels == [1, 0]
    # Earlier versions wrote them as Python does: what they have begun, and their models, go on with these names.
    (tmp_path / "dev.csv").rename(tmp_path / "labelled.csv")
    (tmp_path / "dev.jsonl").write_text((tmp_path / "train.jsonl").read_text())
    begun = load_custom(str(tmp_path), ("text",), None, begun_with=["False", "True"])
    assert begun.task.label_names == ("False", "True") and begun.dev["dev"].labels == begun.train.labels == [1, 0]
    for name in ("train.jsonl", "labelled.csv"):
        _, labels, notes = labelled(open_table(str(tmp_path / name)), ("text",), "label", ["False", "True"])
        assert labels.tolist() == [1, 0] and not notes
    with pytest.raises(UserError, match=r"label is 'true', expected one of: a, 1$"):
        labelled(open_table(str(tmp_path / "train.jsonl")), ("text",), "label", ["a", "1"])


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    for values in (["10", "9", "-1", "100"], ["10.0", "9.5", "-1.0", "100.0"]):
        for name in ("train.csv", "dev.csv"):
            write(tmp_path, name, [(value, "", "a") for value in values])
        assert [float(name) for name in load_custom(str(tmp_path), ("text",), None).task.label_names] == sorted(
            map(float, values)
        )
    # What was begun otherwise goes on so, if its classes are those of the data.
    for begun, first in ((["-1.0", "10.0", "100.0", "9.5"], "-1.0, 10.0"), (["a", "-1.0"], "-1.0, 9.5")):
        names = load_custom(str(tmp_path), ("text",), None, begun_with=begun).task.label_names
        assert ", ".join(names).startswith(first)


@pytest.mark.parametrize("is_local", [True, False])
def test_classes_of_the_datasets_library_keep_its_order(tmp_path, monkeypatch, is_local):
    names = ["World", "Sports", "Business"]
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    split = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [2, 1, 0]}, features=features)
    for name in ("train", "validation"):
        split.to_parquet(tmp_path / f"{name}.parquet")
    monkeypatch.setattr("longmix.trainer.finetune.custom.hub_splits", lambda source: {"train": split, "dev": split})
    data = load_custom(str(tmp_path) if is_local else "hub:someone/data", ("text",), None)
    assert data.task.label_names == tuple(names) and data.train.labels == [2, 1, 0]


def test_the_spaces_around_a_class_are_not_of_its_name(tmp_path):
    for name in ("train.csv", "dev.csv"):
        write(tmp_path, name, [("pos ", "", "a"), (" neg", "", "b"), ("pos", "", "c")])
    data = load_custom(str(tmp_path), ("text",), None)
    assert data.task.label_names == ("neg", "pos") and data.train.labels == data.dev["dev"].labels == [1, 0, 1]


def test_names_that_an_earlier_model_has_with_spaces_are_found(tmp_path):
    path = write(tmp_path, "t.csv", [("pos ", "", "a"), (" neg", "", "b")])
    _, labels, notes = labelled(open_table(str(path)), ("text",), "label", [" neg", "pos "])
    assert labels.tolist() == [1, 0] and not notes


def test_numbers_stand_for_classes_only_where_no_name_is_one(tmp_path):
    path = write(tmp_path, "t.csv", [("1", "", "a"), ("0", "", "b")])
    _, labels, notes = labelled(open_table(str(path)), ("text",), "label", ["neg", "pos"])
    assert labels.tolist() == [1, 0] and notes == ["labels 0, 1 are read as neg, pos"]
    odd = write(tmp_path, "odd.csv", [("1", "", "a"), ("", "", "b")])
    with pytest.raises(UserError, match=r"odd\.csv, line 3: label is '', expected one of: 0, 1"):
        labelled(open_table(str(odd)), ("text",), "label", ["neg", "pos"])
    for names in (["1.0", "2.0"], ["1", "2"]):
        with pytest.raises(UserError, match=r"label is '[01]', expected one of: 1"):
            labelled(open_table(str(path)), ("text",), "label", names)


def test_what_pandas_calls_none_is_no_class(tmp_path):
    for name in ("train.jsonl", "dev.jsonl"):
        (tmp_path / name).write_text('{"text": "a", "label": 1.0}\n{"text": "b", "label": NaN}\n')
    with pytest.raises(UserError, match=r"train.jsonl, line 2: label is empty, expected a class"):
        load_custom(str(tmp_path), ("text",), None)


def test_a_text_is_not_the_label(tmp_path):
    for name in ("train.csv", "dev.csv"):
        write(tmp_path, name)
    for label in (None, "label"):
        with pytest.raises(UserError, match="--label-column label is one of --text-columns"):
            load_custom(str(tmp_path), ("text", "label"), label)


def test_columns_that_are_named_are_texts_but_for_the_label(tmp_path):
    for name in ("train.csv", "validation.csv"):
        write(tmp_path, name, [("a", "b", "c"), ("d", "e", "f")], header=False)
    data = load_custom(str(tmp_path), None, "y", columns=("x1", "y", "x2"))
    assert data.task.text_columns == ("x1", "x2") and list(data.dev) == ["dev"]
    three = load_custom(str(tmp_path), ("x1", "x2", "x1"), "y", columns=("x1", "y", "x2"))
    assert (three.train.first, three.train.second) == (["a", "d"], ["c a", "f d"])


def test_the_files_of_a_split_as_the_hub_names_them_are_one(tmp_path):
    for number in range(2):
        write(tmp_path, f"train-0000{number}-of-00002.parquet", ROWS[number : number + 2])
    write(tmp_path, "validation-00000-of-00001.parquet")
    data = load_custom(str(tmp_path), ("text",), None)
    assert data.train.first == [ROWS[row][2] for row in (0, 1, 1, 2)] and len(data.dev["dev"]) == 3


def test_what_a_task_lacks_is_named_alone(tmp_path):
    for name in ("train", "test"):
        write(tmp_path, f"{name}.csv", header=False)
    first, *_ = ROWS
    with pytest.raises(
        UserError, match=r"dev.tsv is missing, and the test split has no column 'label'.*it has: "
    ) as told:
        load_custom(str(tmp_path), None, None)
    assert f"it has: {', '.join(first)}; " in str(told.value) and "--columns names the columns" in str(told.value)
    for name in ("train", "test"):
        write(tmp_path, f"{name}.csv", header=True)
    with pytest.raises(UserError, match=r"needs --text-columns, where it cannot tell them: .* has label, title, text"):
        load_custom(str(tmp_path), None, "label")
    with pytest.raises(UserError, match=r"no column 'labels' to take its place; it has: label, title"):
        load_custom(str(tmp_path), ("text",), "labels")
