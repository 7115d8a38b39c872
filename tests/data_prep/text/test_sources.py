"""Sources: every kind is read in pieces, and every damage is named with its place."""

import io
import json
import os
import tarfile
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.text import parts, sources
from longmix.data_prep.text.sources import find_sources


def read(*names, **options):
    return [unit for source in find_sources([str(name) for name in names], **options)
            for part in source.parts for unit in part.units()]  # fmt: skip


def test_text_lines_of_any_line_end_and_a_byte_order_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffeins\r\nzwei\n\n\ufeffdrei".encode())
    assert read(tmp_path / "a.txt") == ["eins", "zwei", "", "\ufeffdrei"]


def test_json_lines_and_parquet(tmp_path):
    lines = [{"text": "a", "id": 1}, {"text": None}, {"text": "half \ud800 pair"}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    assert read(tmp_path / "a.jsonl") == ["a", "", "half \ufffd pair"]
    pq.write_table(pa.table({"body": [f"row {index}" for index in range(1000)]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", column="body") == [f"row {index}" for index in range(1000)]


def make_wiki(folder, number=6):
    """A folder as wikiextractor writes it: JSON lines in files without an extension."""
    (folder / "AA").mkdir(parents=True)
    for name in ("wiki_00", "wiki_01"):
        lines = [
            {"id": f"{index}", "url": f"https://wiki.example/?curid={index}", "text": f"{name} article {index}\nbody"}
            for index in range(number)
        ]
        (folder / "AA" / name).write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


def test_tables_give_the_text_of_one_column(tmp_path):
    rows = [("1", 'Größe, "quoted"'), ("2", "two\tparts"), ("3", "last")]
    table = {
        "a.csv": "id,text\r\n"
        + "".join(f'{n},"{text}"\r\n' for n, text in ((n, t.replace('"', '""')) for n, t in rows)),
        "b.csv": '\ufeffid;text\n1;"Größe, ""quoted"""\n\n2;two\tparts\n3;last',
        "c.tsv": 'id\ttext\n1\tGröße, "quoted"\n2\ttwo parts\n3\tlast\n',
    }
    for name, content in table.items():
        (tmp_path / name).write_bytes(content.encode())
        (part,) = find_sources([str(tmp_path / name)])[0].parts
        expected = [text.replace("\t", " ") if name == "c.tsv" else text for _, text in rows]
        assert (list(part.units()), part.is_records, part.kind) == (expected, True, name[2:].upper())
    (as_text,) = find_sources([str(tmp_path / "c.tsv")], file_format="text")[0].parts
    assert next(as_text.units()) == "id\ttext" and as_text.fingerprint() != part.fingerprint()
    (tmp_path / "many.csv").write_text('text\n"two\nlines"\n')
    assert list(find_sources([str(tmp_path / "many.csv")])[0].parts[0].units()) == ["two\nlines"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", "id\tbody\n1\ta\n", r"t.tsv, line 1: there is no column 'text'; it has 'id', 'body': name one with"),
        ("t.tsv", "id\ttext\n1\ta\n2\n", r"t.tsv, line 3: 1 fields, the first line has 2 \(--format text reads"),
        ("t.csv", 'text\n"open', r"t.csv, line 2: no CSV \(unexpected end of data; --format text reads"),
        ("t.csv", "\n", r"t.csv, line 1: there is no column 'text'"),
        (
            "t.json",
            '[{"text": "a"}]',
            r"found list \(write the entries of the array so",
        ),
        ("t.json", '[\n{"text": "a"}]', r"not JSON .*\(write the entries of the array so, e.g. with jq -c"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        list(find_sources([str(tmp_path / name)])[0].parts[0].units())


def test_files_without_an_extension_are_read_by_their_content(tmp_path):
    wiki = make_wiki(tmp_path / "wiki")
    assert read(wiki)[:2] == ["wiki_00 article 0\nbody", "wiki_00 article 1\nbody"]
    pq.write_table(pa.table({"text": ["a row"]}), tmp_path / "table")
    assert read(tmp_path / "table") == ["a row"]
    # What only begins like JSON lines stays text.
    for index, text in enumerate(('{"a": 1}\nprose\n', "{braces}\n", "5\n", "", "[1]\n", "{" * 100_000, "PAR\n")):
        (tmp_path / f"text{index}").write_text(text)
        assert read(tmp_path / f"text{index}") == text.splitlines()


def test_a_guess_is_overridden_and_remembered(tmp_path):
    wiki = make_wiki(tmp_path / "wiki")
    assert read(wiki, file_format="text")[0].startswith('{"id": "0", "url"')
    guessed, told = (find_sources([str(wiki)], file_format=name)[0].parts[0] for name in (None, "json-lines"))
    # A folder that was prepared from the same file as plain text is another data set.
    assert guessed.fingerprint() == [*told.fingerprint(), "JSON lines"]
    with pytest.raises(UserError, match=r"no column 'body'; .* --column .--format text reads the file as plain text"):
        read(wiki, column="body")


def test_folders_are_read_in_sorted_order_without_hidden_files(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/b/c.txt", "Z.jsonl", ".hidden", ".git/x.txt"):
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": name}) if name.endswith("jsonl") else name)
    assert read(tmp_path / "set") == ["Z.jsonl", "a/b/c.txt", "a/z.txt", "b.txt"]


def test_a_large_file_is_not_held_in_memory(tmp_path):
    path = tmp_path / "large.txt"
    with open(path, "w") as stream:
        for _ in range(100):
            stream.write(("x" * 999 + "\n") * 200)
    (source,) = find_sources([str(path)])
    tracemalloc.start()
    assert sum(len(unit) for part in source.parts for unit in part.units()) == 999 * 20000
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_undecodable_bytes_are_named_with_file_and_offset(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"fine line\nna\xefve\n")
    with pytest.raises(
        UserError, match=r"latin\.txt: byte 0xef at offset 12 \(line 2\) is not UTF-8.* each with --source"
    ):
        read(path)
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text": "ok"}\n{"text": "\xff"}\n')
    with pytest.raises(UserError, match="offset 25"):
        read(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "line 1: not JSON"),
        ('["a"]', "line 1: expected one JSON object"),
        ("[" * 100_000, "line 1: not JSON"),
        ('{"text": 5}', "line 1: 'text' holds int"),
        ('{"body": "a", "id": 1}', "line 1: there is no column 'text'; it has 'body', 'id'"),
    ],
)
def test_damaged_json_lines(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.jsonl")


def test_damaged_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), path)
    with pytest.raises(UserError, match="no column 'text'; it has 'body', 'n'"):
        read(path)
    with pytest.raises(UserError, match="column 'n' holds int64, expected text"):
        read(path, column="n")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        read(path)
    not_utf8 = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff\xfe"]).buffers())
    pq.write_table(pa.table({"text": not_utf8}), path)
    with pytest.raises(UserError, match="row 2: 'text' holds bytes that are not UTF-8"):
        read(path)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"a"]),
        pa.array([1.5]),
        pa.array([["a"]]),
        pa.array([{"a": "b"}]),
        pa.array([2**62], pa.timestamp("ms")),  # no year that Python has
        pa.array([2**62], pa.duration("s")),
        pa.array([None], pa.list_(pa.string())),
    ],
    ids=lambda column: str(column.type),
)
def test_a_column_of_another_type_is_no_text(tmp_path, column):
    """Nothing becomes text that was none: no bytes, no number, no date, whatever its value."""
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: column 'text' holds .*, expected text: name one with --column"):
        read(tmp_path / "a.parquet")


def test_files_without_a_byte_hold_no_text_whatever_their_name(tmp_path):
    for name in ("a.parquet", "a.csv", "a.tsv", "a.jsonl", "a.txt", "a.txt.gz", "a"):
        (tmp_path / name).touch()
    (tmp_path / "b.txt").write_text("text")
    assert read(tmp_path) == ["text"]


def archive_of(tmp_path):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.add(tmp_path / "a.txt", "a.txt")
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("z.txt", b"PK\x03\x04" + bytes(9), r"z\.txt is a ZIP archive: unpack it first"),
        ("z.tar", archive_of, r"z\.tar is a tar archive: unpack it first"),
        ("z.jsonl", "text".encode("utf-16"), r"z\.jsonl: byte 0xff at offset 0 \(line 1\) is not UTF-8"),
        ("z.csv", b"text\n\xff", r"z\.csv: byte 0xff at offset 5 \(line 2\) is not UTF-8"),
        ("z", b"\xe4\xb8", r"z: byte 0xe4 at offset 0 \(line 1\) is not UTF-8"),
        ("z.parquet", b"text", r"z\.parquet cannot be read as Parquet: it does not begin with PAR1"),
        ("z.parquet", b"PAR1 and no end", r"z\.parquet cannot be read as Parquet: it does not end with PAR1"),
    ],
)
def test_what_cannot_be_read_is_told_before_anything_is_read(tmp_path, name, content, message):
    """Of a folder of many files it would else be told after hours."""
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / name).write_bytes(content(tmp_path) if callable(content) else content)
    with pytest.raises(UserError, match=message):
        find_sources([str(tmp_path)])


def test_a_character_across_the_end_of_the_first_bytes_is_no_mistake(tmp_path):
    text = "x" * (sources._HEAD_BYTES - 1) + "é"
    (tmp_path / "a.txt").write_text(text)
    assert read(tmp_path / "a.txt") == [text]


def test_odd_but_sound_parquet_is_read(tmp_path):
    path = tmp_path / "a.parquet"
    for column in (
        pa.array(["a", None, "b"], pa.large_string()),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.array(["a", None, "b"], pa.string_view()),
    ):
        far = pa.array([2**62] * 3, pa.timestamp("ms"))  # a column that is not asked for may hold anything
        pq.write_table(pa.table({"text": column, "date": far}), path)
        assert read(path) == ["a", "", "b"]
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert read(path) == []
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), path)
    with pytest.raises(UserError, match="more than one column 'text'"):
        read(path)


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "LONGEST_LINE", 16)
    (tmp_path / "a.txt").write_text("a" * 15 + "\n" + "b" * 40)
    with pytest.raises(UserError, match=r"a\.txt, line 2 is longer than 16 bytes"):
        read(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_text("a" * 15 + "\n" + "b" * 16)
    assert read(tmp_path / "a.txt") == ["a" * 15, "b" * 16]


def test_missing_and_overlapping_sources(tmp_path):
    (tmp_path / "set").mkdir()
    with pytest.raises(UserError, match="does not exist; for a hub data set write hub:"):
        read(tmp_path / "nothing.txt")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is not a regular file"):
        read(tmp_path / "pipe")
    with pytest.raises(UserError, match="folder without files"):
        read(tmp_path / "set")
    (tmp_path / "set" / "a.txt").write_text("a")
    with pytest.raises(UserError, match="given twice"):
        read(tmp_path / "set", tmp_path / "set")
    with pytest.raises(UserError, match="both hold"):
        read(tmp_path / "set", tmp_path / "set" / "a.txt")
    (tmp_path / "link.txt").symlink_to(tmp_path / "set" / "a.txt")
    with pytest.raises(UserError, match="both hold"):
        read(tmp_path / "set" / "a.txt", tmp_path / "link.txt")
    with pytest.raises(UserError, match="given twice"):
        find_sources(["hub:a/b", "hub:a/b:train:text"])
    with pytest.raises(UserError, match="lies inside"):
        find_sources([str(tmp_path / "set")], output=tmp_path / "set" / "out")
    with pytest.raises(UserError, match="no --source"):
        find_sources([])


@pytest.mark.parametrize("name", ["hub:", "hub:a:b:c:d", "hub:a::text"])
def test_malformed_hub_names(name):
    with pytest.raises(UserError, match=r"hub:NAME\[@CONFIGURATION\]\[:SPLIT\[:COLUMN\]\]"):
        find_sources([name])


def test_slices_of_a_hub_split_are_refused():
    with pytest.raises(UserError, match="slices of a split are not supported"):
        find_sources(["hub:a/b:train[:10]"])


@pytest.fixture
def repository(tmp_path):
    """A data set repository as the hub has them: Parquet files per split."""
    folder = tmp_path / "owner" / "set"
    (folder / "data").mkdir(parents=True)
    for split, count in (("train", 30), ("test", 5)):
        table = pa.table({"text": [f"{split} {index}" for index in range(count)], "title": ["t"] * count})
        pq.write_table(table, folder / "data" / f"{split}-00000-of-00001.parquet", row_group_size=10)
    return folder


def test_hub_repository_on_the_disk(repository):
    assert read(f"hub:{repository}") == [f"train {index}" for index in range(30)]
    assert read(f"hub:{repository}:test") == [f"test {index}" for index in range(5)]
    assert read(f"hub:{repository}:test:title") == ["t"] * 5
    assert read(f"hub:{repository}:test", column="title") == ["t"] * 5


def test_hub_mistakes(repository, tmp_path):
    with pytest.raises(UserError, match=r"no column 'body'; it has 'text', 'title'"):
        read(f"hub:{repository}:train:body")
    with pytest.raises(UserError, match="'dev', cannot be read"):
        read(f"hub:{repository}:dev")
    with pytest.raises(UserError, match="cannot be read"):
        read(f"hub:{tmp_path}/nowhere")
    script = tmp_path / "owner" / "scripted"
    script.mkdir()
    (script / "scripted.py").write_text("raise SystemExit('a script was run')")
    with pytest.raises(UserError, match="script of its own, which longmix never runs"):
        read(f"hub:{script}")
