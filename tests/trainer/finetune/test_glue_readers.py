"""GLUE's files: every quirk that the nine tasks have, byte for byte."""

import os
import re
import stat
from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.finetune.custom import load_custom
from longmix.trainer.finetune.readers import read_table, read_tsv
from longmix.trainer.finetune.sources import MissingTask, load_task
from longmix.trainer.finetune.tasks import TASKS

HEADERS = {
    "sst2": ("sentence\tlabel", "index\tsentence"),
    "mrpc": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "index\t#1 ID\t#2 ID\t#1 String\t#2 String"),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
    ),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "id\tquestion1\tquestion2"),
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse"
        "\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse"
        "\tsentence2_parse\tsentence1\tsentence2",
    ),
    "qnli": ("index\tquestion\tsentence\tlabel", "index\tquestion\tsentence"),
    "rte": ("index\tsentence1\tsentence2\tlabel", "index\tsentence1\tsentence2"),
    "wnli": ("index\tsentence1\tsentence2\tlabel", "index\tsentence1\tsentence2"),
}


def row(header: str, **values: str) -> str:
    return "\t".join(values.get(column, f"({column})") for column in header.split("\t"))


def write(folder, name: str, *lines: str, encoding="utf-8", end="\n"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes((end.join(lines) + end).encode(encoding))
    return path


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_every_task_reads_its_own_columns(name, tmp_path):
    task, (header, test_header) = TASKS[name], HEADERS[name]
    columns = task.text_columns
    labels = task.file_labels or ("0.000", "3.800", "5.000")
    body = [
        row(header, **dict(zip(columns, ("a" + c, "b" + c), strict=False)), **{task.label_column: c}) for c in labels
    ]
    folder = tmp_path / task.folder
    for file in ("train.tsv", *(split.file for split in task.dev)):
        write(folder, file, header, *body)
    for split in task.test:
        texts = dict(zip(columns, ("ta", "tb"), strict=False))
        write(folder, split.file, test_header, row(test_header, **texts, **{task.index_column: "7"}))
    data = load_task(str(tmp_path), task)
    assert data.train.first == ["a" + c for c in labels]
    assert data.train.second == (["b" + c for c in labels] if len(columns) == 2 else None)
    assert data.train.labels == ([0.0, 3.8, 5.0] if task.regression else list(range(len(labels))))
    assert list(data.dev) == [split.name for split in task.dev]
    for examples in data.test.values():
        assert (examples.first, examples.labels, examples.indices) == (["ta"], None, ["7"])
    assert data.notes == []


def test_cola_has_no_header_but_in_its_test_file(tmp_path):
    folder = tmp_path / "CoLA"
    write(folder, "train.tsv", "gj04\t1\t\tThey left.", "gj04\t0\t*\tThey leaves.")
    write(folder, "dev.tsv", "gj04\t1\t\tFine.")
    write(folder, "test.tsv", "index\tsentence", "0\tWell.")
    data = load_task(str(tmp_path), TASKS["cola"])
    assert (data.train.first, data.train.labels) == (["They left.", "They leaves."], [1, 0])
    assert data.test["test"].first == ["Well."]


def test_quotes_marks_and_odd_separators_are_text(tmp_path):
    texts = ['"', 'she said "no', '""x""', "\ufeffkept", "a\u2028b\x85c\x0bd", "cr\rinside", "end\r", " spaces ", ""]
    path = write(tmp_path, "train.tsv", "sentence\tlabel", *(f"{text}\t1" for text in texts))
    assert read_tsv(path, TASKS["sst2"]).first == texts


def test_byte_order_mark_and_carriage_returns(tmp_path):
    path = write(
        tmp_path, "t.tsv", "sentence\tlabel", "good\t1", "\ufeffodd\t0", "", "", encoding="utf-8-sig", end="\r\n"
    )
    examples = read_tsv(path, TASKS["sst2"])
    assert (examples.first, examples.labels) == (["good", "\ufeffodd"], [1, 0])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["sentence\tlabel", "a\t1", "b"], "t.tsv, line 3: 1 tab-separated fields, expected 2"),
        (["sentence\tlabel", "a\tb\t1"], "t.tsv, line 2: 3 tab-separated fields, expected 2"),
        (["sentence\tlabel", "a\t2"], "t.tsv, line 2: label is '2', expected one of: 0, 1"),
        (["sentence\tlabel", "a\t1", "", "b\t0"], "t.tsv, line 3: 1 tab-separated fields"),
        (["text\tlabel", "a\t1"], "t.tsv: no column 'sentence' in its header; it has: text, label"),
        (["sentence\tlabel"], "t.tsv: no rows below the header"),
        ([""], "t.tsv: the file is empty"),
    ],
)
def test_damaged_files_are_named_with_their_line(lines, message, tmp_path):
    path = write(tmp_path, "t.tsv", *lines)
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        read_tsv(path, TASKS["sst2"])
    assert message in str(caught.value)


def test_bytes_that_are_not_utf8(tmp_path):
    path = write(tmp_path, "t.tsv", "sentence\tlabel", "fine\t1", "caf\xe9\t0", encoding="latin-1")
    with pytest.raises(UserError, match=r"line 3: not UTF-8.* from its own encoding \(latin1 in Western Europe"):
        read_tsv(path, TASKS["sst2"])
    path = write(tmp_path, "t.tsv", "sentence\tlabel", "fine\t1", encoding="utf-16")
    with pytest.raises(UserError, match=r"line 1: not UTF-8; .* from utf-16$"):
        read_tsv(path, TASKS["sst2"])


@pytest.mark.parametrize("value", ["x", "nan", "inf", "", "1e39", "-1e300", "1_0"])
def test_regression_takes_finite_numbers_only(value, tmp_path):
    header = HEADERS["stsb"][0]
    path = write(tmp_path, "t.tsv", header, row(header, score=value))
    size = r" of at most 3\.4e\+38 in size" if value in ("inf", "1e39", "-1e300") else ""
    with pytest.raises(UserError, match=rf"line 2: score is '{value}', expected a number{size}$"):
        read_tsv(path, TASKS["stsb"])


def test_qqp_leaves_out_cut_rows_but_never_in_the_test_file(tmp_path):
    header, test_header = HEADERS["qqp"]
    good = row(header, question1="a", question2="b", is_duplicate="1")
    folder = tmp_path / "QQP"
    write(folder, "train.tsv", header, good, "cut\trow", good)
    write(folder, "dev.tsv", header, good)
    data = load_task(str(tmp_path), TASKS["qqp"])
    assert len(data.train) == 2
    assert "1 defective rows left out of train" in data.notes
    write(folder, "test.tsv", test_header, "0\tcut")
    with pytest.raises(UserError, match=r"test\.tsv, line 2"):
        load_task(str(tmp_path), TASKS["qqp"])


def test_missing_files_are_reasons_and_a_missing_folder_is_a_mistake(tmp_path):
    with pytest.raises(MissingTask, match="no folder RTE"):
        load_task(str(tmp_path), TASKS["rte"])
    header = HEADERS["rte"][0]
    write(tmp_path / "RTE", "dev.tsv", header, row(header, label="entailment"))
    with pytest.raises(MissingTask, match=r"train\.tsv is missing"):
        load_task(str(tmp_path), TASKS["rte"])
    write(tmp_path / "RTE", "train.tsv", header, row(header, label="not_entailment"))
    data = load_task(str(tmp_path), TASKS["rte"])
    assert data.test == {}
    assert "test.tsv missing" in data.notes[0]
    with pytest.raises(UserError, match="hub:NAME"):
        load_task(str(tmp_path / "nothing"), TASKS["rte"])


def write_hub_layout(folder):
    folder.mkdir(parents=True)
    (folder.parent / "ax").mkdir()
    diagnostic = {"premise": ["p0", "p1"], "hypothesis": ["h0", "h1"], "label": [-1, -1], "idx": [7, 8]}
    pyarrow.parquet.write_table(pyarrow.table(diagnostic), folder.parent / "ax" / "test-00000-of-00001.parquet")
    for split, labels in (("train", [0, 1, 2, -1]), ("validation_matched", [1]), ("test_matched", [-1, -1])):
        table = pyarrow.table(
            {
                "premise": [f"{split} p{i}" for i in range(len(labels))],
                "hypothesis": [f"{split} h{i}" for i in range(len(labels))],
                "label": labels,
                "idx": pyarrow.array(range(10, 10 + len(labels)), pyarrow.int32()),
            }
        )
        if split == "train":
            pyarrow.parquet.write_table(table[:2], folder / "train-00000-of-00002.parquet")
            pyarrow.parquet.write_table(table[2:], folder / "train-00001-of-00002.parquet")
        else:
            pyarrow.parquet.write_table(table, folder / f"{split}-00000-of-00001.parquet")


@pytest.mark.parametrize("nested", ["mnli", "glue/mnli"])
def test_hub_layout_in_a_folder(nested, tmp_path):
    write_hub_layout(tmp_path / nested)
    data = load_task(str(tmp_path), TASKS["mnli"])
    assert data.train.labels == [0, 1, 2]  # the row with label -1 has no gold label
    assert data.train.second == ["train h0", "train h1", "train h2"]
    assert data.dev["dev-matched"].labels == [1]
    assert data.test["test-matched"].labels is None
    assert data.test["test-matched"].indices == ["10", "11"]
    assert "validation_mismatched-*.parquet" in data.notes[0]
    assert data.test["diagnostic"].first == ["p0", "p1"] and data.test["diagnostic"].indices == ["7", "8"]


def test_hub_name_through_datasets(tmp_path, monkeypatch):
    import datasets

    write_hub_layout(tmp_path / "repository" / "mnli")
    (tmp_path / "repository" / "README.md").write_text(
        "---\nconfigs:\n- config_name: mnli\n  data_files:\n"
        + "".join(
            f"  - split: {split}\n    path: mnli/{split}-*\n"
            for split in ("train", "validation_matched", "test_matched")
        )
        + "- config_name: ax\n  data_files:\n  - split: test\n    path: ax/test-*\n---\n"
    )
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = load_task(f"hub:{tmp_path / 'repository'}", TASKS["mnli"])
    assert data.train.labels == [0, 1, 2]
    assert data.test["test-matched"].indices == ["10", "11"] and data.test["diagnostic"].first == ["p0", "p1"]
    with pytest.raises(MissingTask, match="no configuration rte"):
        load_task(f"hub:{tmp_path / 'repository'}", TASKS["rte"])
    with pytest.raises(UserError, match="cannot be loaded"):
        load_task(f"hub:{tmp_path / 'absent'}", TASKS["rte"])


def test_hub_layout_names_a_wrong_label_or_column():
    table = pyarrow.table({"sentence": ["a"], "label": [7]})
    with pytest.raises(UserError, match="row 0: label is 7, expected 0 to 1"):
        read_table(table, TASKS["sst2"], "x")
    with pytest.raises(UserError, match="no column 'question'"):
        read_table(table, TASKS["qnli"], "x")


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("sst2", {"sentence": [b"a"], "label": [1]}, "column 'sentence' holds binary, expected text"),
        ("sst2", {"sentence": [1.5], "label": [1]}, "column 'sentence' holds double, expected text"),
        ("sst2", {"sentence": [{"a": 1}], "label": [1]}, "column 'sentence' holds struct<a: int64>, expected text"),
        ("sst2", {"sentence": ["a"], "label": [float("nan")]}, "column 'label' holds double, expected whole numbers"),
        ("sst2", {"sentence": ["a"], "label": [True]}, "column 'label' holds bool, expected whole numbers"),
        ("sst2", {"sentence": ["a"], "label": ["1"]}, "column 'label' holds string, expected whole numbers"),
        ("sst2", {"sentence": ["a"], "label": [1], "idx": ["\x1b"]}, "column 'idx' holds string, expected whole"),
        ("stsb", {"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "label": [1, float("nan")]}, "row 1: score is nan"),
        ("stsb", {"sentence1": ["a"], "sentence2": ["b"], "label": [1e300]}, "row 0: score is 1e+300, expected"),
    ],
)
def test_hub_tables_hold_what_their_columns_should(name, columns, message, tmp_path):
    """Nothing becomes text or a label that was none: no bytes, no number, no NaN."""
    (tmp_path / name).mkdir()
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / name / "train.parquet")
    with pytest.raises(UserError) as caught:
        load_task(str(tmp_path), TASKS[name])
    assert message in str(caught.value) and f"{tmp_path / name / 'train'}" in str(caught.value)


def test_hub_tables_that_are_damaged_are_named(tmp_path):
    (tmp_path / "sst2").mkdir()
    path = tmp_path / "sst2" / "train.parquet"
    not_utf8 = pyarrow.Array.from_buffers(pyarrow.string(), 2, pyarrow.array([b"a", b"\xff"]).buffers())
    for table, message in (
        (pyarrow.table({"sentence": not_utf8, "label": [0, 1]}), "row 1: 'sentence' holds bytes that are not UTF-8"),
        (pyarrow.table([["a"], [1], [0]], names=["sentence", "label", "label"]), "more than one column 'label'"),
        (pyarrow.table({"sentence": pyarrow.array([], "string"), "label": pyarrow.array([], "int8")}), "no labelled"),
    ):
        pyarrow.parquet.write_table(table, path)
        with pytest.raises(UserError, match=message):
            load_task(str(tmp_path), TASKS["sst2"])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"train\.parquet cannot be read as Parquet"):
        load_task(str(tmp_path), TASKS["sst2"])


def test_a_note_is_read_as_the_files_are(tmp_path):
    folder = tmp_path / "SST-2"
    for name in ("train.tsv", "dev.tsv"):
        write(folder, name, "sentence\tlabel", "a\t1")
    (folder / "note.txt").write_bytes(b"")
    assert load_task(str(tmp_path), TASKS["sst2"]).notes == ["test.tsv missing in " + str(folder)]
    write(folder, "note.txt", "not  GLUE's", "own", encoding="utf-8-sig")
    assert load_task(str(tmp_path), TASKS["sst2"]).notes[-1] == "not GLUE's own"
    write(folder, "note.txt", "caf\xe9", encoding="latin-1")
    with pytest.raises(UserError, match=r"note\.txt, line 1: not UTF-8"):
        load_task(str(tmp_path), TASKS["sst2"])


def test_custom_task(tmp_path):
    write(tmp_path, "train.tsv", "id\ttitle\tbody\tkind", "1\tT1\tB1\tspam", "2\tT2\tB2\tham")
    write(tmp_path, "dev.tsv", "id\ttitle\tbody\tkind", "3\tT3\tB3\tspam")
    write(tmp_path, "test.tsv", "title\tbody", "T4\tB4")
    data = load_custom(str(tmp_path), ("body", "title"), "kind")
    assert data.task.label_names == ("ham", "spam")
    assert (data.train.first, data.train.second, data.train.labels) == (["B1", "B2"], ["T1", "T2"], [1, 0])
    assert data.dev["dev"].labels == [1]
    assert (data.test["test"].first, data.test["test"].indices) == (["B4"], ["0"])
    values = load_custom(str(tmp_path), ("body",), "id", regression=True)
    assert values.task.num_labels == 1 and values.train.labels == [1.0, 2.0]
    with pytest.raises(UserError, match=r"kind is .spam., expected a number; if labels are classes, leave"):
        load_custom(str(tmp_path), ("body",), "kind", regression=True)


@pytest.mark.parametrize(
    "others",
    [
        ("train.tsv", "train.csv"),
        ("dev.jsonl", "validation.jsonl"),
        ("train.tsv", "train-00000-of-00001.parquet"),
        ("val-00000-of-00001.parquet", "dev-00000-of-00001.parquet"),
    ],
)
def test_two_files_of_a_split_are_refused(tmp_path, others):
    for name in ("train.tsv", "dev.jsonl", *others):
        write(tmp_path, name, "body\tkind", "a\tspam", "b\tham")
    with pytest.raises(UserError, match=r"has (.*) for one split: leave one there") as told:
        load_custom(str(tmp_path), ("body",), "kind")
    for name in others:
        assert re.sub(r"-00000-of-00001", "-*-of-*", name) in str(told.value)


def test_what_a_table_was_made_from_and_a_link_to_it_are_no_second_file(tmp_path):
    for name in ("train.tsv", "validation.tsv"):
        write(tmp_path, name, "body\tkind", "a\tspam", "b\tham")
    write(tmp_path, "train.txt", "a", "b")
    (tmp_path / "dev.tsv").symlink_to("validation.tsv")
    (tmp_path / "train.csv").symlink_to("train.tsv")
    data = load_custom(str(tmp_path), ("body",), "kind")
    assert data.train.first == data.dev["dev"].first == ["a", "b"]


def test_custom_task_mistakes(tmp_path):
    with pytest.raises(UserError, match=r"train\.tsv is missing"):
        load_custom(str(tmp_path), ("body",), "kind")
    write(tmp_path, "train.tsv", "body\tkind", "a\tspam", "b\tham")
    write(tmp_path, "dev.tsv", "body\tkind", "a\teggs")
    with pytest.raises(
        UserError, match=r"dev\.tsv, line 2: kind is 'eggs', which is not among the training labels"
    ) as told:
        load_custom(str(tmp_path), ("body",), "kind")
    assert str(told.value).endswith("expected one of: ham, spam")
    with pytest.raises(UserError, match=r"needs --text-columns and --label-column, .*train\.tsv has body, kind"):
        load_custom(str(tmp_path), None, None)
    with pytest.raises(UserError, match="no column 'sort'"):
        load_custom(str(tmp_path), ("body",), "sort")
    with pytest.raises(UserError, match="give the label away"):
        load_custom(str(tmp_path), ("body", "kind"), "kind")
    write(tmp_path, "train.tsv", "body\tkind", "a\tspam", "b\t ")
    with pytest.raises(UserError, match=r"train\.tsv, line 3: kind is empty, expected a class"):
        load_custom(str(tmp_path), ("body",), "kind")
    write(tmp_path, "train.tsv", "body\tkind\tbody", "a\tspam\tb", "a\tham\tb")
    with pytest.raises(UserError, match=r"train\.tsv: more than one column 'body'; it has"):
        load_custom(str(tmp_path), ("body",), "kind")
    write(tmp_path, "train.tsv", "body\tkind", *(f"a\t{value}.5" for value in range(30)))
    write(tmp_path, "dev.tsv", "body\tkind", "a\t1e3")
    with pytest.raises(UserError, match=r"one of: 0\.5, .*, \.\.\. \(30 in all\); .*--regression") as caught:
        load_custom(str(tmp_path), ("body",), "kind")
    assert str(caught.value).count(".5") == 10 and "kind is '1e3', which is not" in str(caught.value)


def test_what_is_no_file_is_told_and_never_waited_for(tmp_path):
    # Sockets, for opening a named pipe would never end without the check.
    for name in ("train.tsv", "train-0.parquet"):
        os.mknod(tmp_path / name, stat.S_IFSOCK | 0o600)
    with pytest.raises(UserError, match=r"train\.tsv cannot be read: it is a socket, not a file"):
        read_tsv(tmp_path / "train.tsv", TASKS["cola"])
    with pytest.raises(UserError, match=r"train-0\.parquet cannot be read: it is a socket, not a file"):
        load_task(str(tmp_path.parent), replace(TASKS["cola"], folder=tmp_path.name))
