"""Reading labelled texts: what stands in the files arrives as it is, and what is wrong is told with its place."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.tasks import labelled_files
from longmix.data_prep.tasks.labelled_files import Layout, content_digest

ONE = Layout("label", ("text",))


def read(path, layout=ONE):
    return [(example.label, *example.texts) for example in layout.read(path)]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_tsv_is_raw(tmp_path):
    path = write(tmp_path / "a.tsv", '\ufeffid\ttext\tlabel\n1\tsays "no\u2028no\tpos\n\n2\t\r,\r\tneg\n3\t"\tpos')
    assert read(path) == [("pos", 'says "no\u2028no'), ("neg", "\r,\r"), ("pos", '"')]
    path = write(tmp_path / "b.tsv", "text\tlabel\r\na\t1\r\n\r\nb\r\t0\r\n")
    assert read(path) == [("1", "a"), ("0", "b\r")]


def test_parquet_labels_are_texts_or_whole_numbers(tmp_path):
    for labels, expected in (([1, 0], ["1", "0"]), ([True, False], ["1", "0"]), (["b", " a "], ["b", "a"])):
        pq.write_table(pa.table({"label": labels, "text": ["x", None], "other": [1, 2]}), tmp_path / "a.parquet")
        assert read(tmp_path / "a.parquet") == [(expected[0], "x"), (expected[1], "")]
    for labels, found in ((["a", None], "None"), (["a", " "], "' '")):
        pq.write_table(pa.table({"label": labels, "text": ["x", "y"]}), tmp_path / "a.parquet")
        with pytest.raises(UserError, match=rf"a\.parquet, row \d: label is {found}, expected a class"):
            read(tmp_path / "a.parquet")
    for columns, found in (
        ({"label": [1], "text": [2]}, "column 'text' holds int64, expected text"),
        ({"label": [0.0], "text": ["x"]}, "column 'label' holds double, expected text or whole numbers"),
        ({"label": [1], "text": [b"x"]}, "column 'text' holds binary, expected text"),
        ({"label": pa.array([2**62], pa.timestamp("ms")), "text": ["x"]}, r"column 'label' holds timestamp\[ms\]"),
    ):
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        with pytest.raises(UserError, match=found):
            read(tmp_path / "a.parquet")


def test_a_folder_for_each_class(tmp_path):
    write(tmp_path / "pos" / "0_9.txt", "g\u00f6od\t\n")
    write(tmp_path / "neg" / "deep" / "1.txt", "bad")
    for ignored in ("neg/note.md", "neg/.hidden.txt", ".git/a.txt", "unsup/0.txt", "urls.txt"):
        write(tmp_path / ignored, "?")
    assert read(tmp_path, Layout("label", ("text",), ignored=("unsup",))) == [("neg", "bad"), ("pos", "g\u00f6od\t\n")]


def test_tables_in_a_folder_are_read_in_order(tmp_path):
    write(tmp_path / "b.tsv", "label\ttext\n1\tsecond\n")
    write(tmp_path / "a.tsv", "text\tlabel\nfirst\t1\n")
    assert read(tmp_path) == [("1", "first"), ("1", "second")]


def test_a_pair_has_one_digest_in_both_orders():
    assert content_digest(("a", "b")) == content_digest(("b", "a"))
    digests = [("a", "b"), ("a", "a"), ("ab", ""), ("a",), ("ab",)]
    assert len({content_digest(texts) for texts in digests}) == len(digests)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"a\.tsv is empty"),
        ("label\tbody\n1\tx\n", r"no column 'text'; it has 'label', 'body'"),
        ("label\ttext\ttext\n", "more than one column 'text'"),
        ("label\ttext\n1\tx\n1\tx\ty\n", r"a\.tsv, line 3: 3 fields .* expected 2 \(label, text\)"),
        ("label\ttext\n\tx\n", r"line 2: label is '', expected a class"),
        (b"label\ttext\n1\t\xff\n", r"line 2: byte 0xff at offset 2 is not UTF-8"),
        ("label\ttext\n1\t" + "x" * 100, r"line 2 is longer than 64 bytes"),
    ],
)
def test_mistakes_in_tsv_are_told(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(labelled_files, "LARGEST_TEXT", 64)
    with pytest.raises(UserError, match=message):
        read(write(tmp_path / "a.tsv", content))


def test_other_mistakes_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(labelled_files, "LARGEST_TEXT", 64)
    with pytest.raises(UserError, match="does not exist"):
        read(tmp_path / "none.tsv")
    with pytest.raises(UserError, match="is none of what is read here"):
        read(write(tmp_path / "a.csv", "label,text\n"))
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        read(write(tmp_path / "a.parquet", "PAR1 but no more"))
    os.mkfifo(tmp_path / "b.tsv")
    with pytest.raises(UserError, match="not a regular file"):
        read(tmp_path / "b.tsv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no \.tsv or \.parquet or \.txt files"):
        read(tmp_path / "empty")
    for content, message in ((b"\xe4", "byte 0xe4 at offset 0 is not UTF-8"), (b"x" * 65, "larger than 64 bytes")):
        write(tmp_path / "classes" / "a" / "1.txt", content)
        with pytest.raises(UserError, match=message):
            read(tmp_path / "classes")
