"""longmix prepare dna: bases in, bases out, from FASTA and from tables."""

import gzip
import random

import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tasks import dna
from longmix.data_prep.tasks.dna import read_fasta

LETTERS = {2: "A", 3: "C", 4: "G", 5: "T", 6: "N"}


def sequences(count, seed, shortest=5, longest=60):
    draw = random.Random(seed)
    return ["".join(draw.choices("ACGT", k=draw.randint(shortest, longest))) for _ in range(count)]


def fasta(records, width=10):
    lines = []
    for number, record in enumerate(records):
        lines += [f">record{number} ACGT > not a base", *(record[k : k + width] for k in range(0, len(record), width))]
    return "\n".join(lines) + "\n"


@pytest.fixture
def found_in(rows_of):
    """found_in(folder) -> {class: its sequences, sorted}, of all splits."""

    def read(folder):
        found = {}
        for split in ("train", "validation", "test"):
            manifest = Manifest.load(folder / split)
            assert (manifest.vocab_size, manifest.special_token_ids) == (7, [0, 1])
            for row in rows_of(folder / split):
                text = "".join(LETTERS[token] for token in row["input_ids"])
                found.setdefault(manifest.label_names[row["labels"]], []).append(text)
        return {name: sorted(texts) for name, texts in found.items()}

    return read


def test_a_fasta_file_for_each_class(tmp_path, capsys, run_prepare, rows_of, found_in):
    records = {"Bos": sequences(30, 1), "Mus": sequences(60, 2)}
    folder = tmp_path / "in"
    (folder / "Mus").mkdir(parents=True)
    (folder / "Bos.fa.gz").write_bytes(gzip.compress(fasta(records["Bos"]).encode()))
    (folder / "Mus" / "musculus.fasta").write_text(fasta(records["Mus"][:40]).lower().replace("t", "u"))
    (folder / "Mus" / "spretus.fna").write_text(fasta(records["Mus"][40:], width=1000).replace("\n", "\r\n"))
    (folder / "README.txt").write_text("not a class")
    run_prepare("dna", "--source", folder, "--length", 50, "--output", tmp_path / "out")
    assert found_in(tmp_path / "out") == {
        name: sorted(record[:50] for record in texts) for name, texts in records.items()
    }
    counts = [
        Manifest.load(tmp_path / "out" / split).report["class_counts"] for split in ("train", "validation", "test")
    ]
    assert [sum(column) for column in zip(*counts, strict=True)] == [30, 60]
    *_, test, last = capsys.readouterr().out.splitlines()
    assert f"2 classes (Bos: {counts[2][0]}, Mus: {counts[2][1]})" in test
    assert last == f"written to {tmp_path / 'out'}: train/, validation/, test/"
    (tmp_path / "Mus.fa").write_text(fasta(records["Mus"]))
    single = ["--source", folder / "Bos.fa.gz", "--source", tmp_path / "Mus.fa"]
    run_prepare("dna", *single, "--length", 50, "--output", tmp_path / "single")
    for split in ("train", "validation", "test"):
        assert sorted(map(str, rows_of(tmp_path / "single" / split))) == sorted(
            map(str, rows_of(tmp_path / "out" / split))
        )


def test_a_table_divides_as_fasta_does(tmp_path, run_prepare, rows_of):
    records = {"a": sequences(40, 3), "b": sequences(40, 4)}
    rows = [f"{'x' if name == 'a' else 'y'}\t{text.lower()}" for name, texts in records.items() for text in texts]
    (tmp_path / "a.tsv").write_text("label\tsequence\n" + "\n".join(rows))
    for name, texts in records.items():
        (tmp_path / f"{name}.fa").write_text(fasta(texts))
    run_prepare("dna", "--source", tmp_path / "a.tsv", "--length", 9, "--output", tmp_path / "table")
    run_prepare(
        "dna",
        "--source",
        tmp_path / "a.fa",
        "--source",
        tmp_path / "b.fa",
        "--length",
        9,
        "--output",
        tmp_path / "fasta",
    )
    for split in ("train", "validation", "test"):
        assert rows_of(tmp_path / "table" / split) == rows_of(tmp_path / "fasta" / split)


def test_short_sequences_are_left_out_before_others_are_cut(tmp_path, run_prepare, found_in):
    texts = {"a": ["A" * n for n in range(1, 40)], "b": ["C" * n for n in range(1, 40)]}
    for name, records in texts.items():
        (tmp_path / f"{name}.fa").write_text(fasta(records))
    run_prepare(
        "dna", "--source", tmp_path, "--length", 100, "--shortest", 20, "--output", tmp_path.with_name("dna-out")
    )
    assert found_in(tmp_path.with_name("dna-out")) == {name: sorted(records[19:]) for name, records in texts.items()}
    rule = Manifest.load(tmp_path.with_name("dna-out") / "train").split_rule
    assert rule.endswith("38 examples of these files with a text below 20 characters left out")


def test_uncertain_bases_are_n():
    assert dna.clean_sequence("acgtuRYSWKMBDHVNn", "here") == "ACGTT" + "N" * 12
    for letters in ("ACGT\u00df", "A C", "x"):
        with pytest.raises(UserError, match=r"here: .* is no base"):
            dna.clean_sequence(letters, "here")


@pytest.mark.parametrize("piece", [1 << 20, 16, 7])
def test_long_lines_are_read_in_pieces(tmp_path, monkeypatch, piece):
    records = [sequences(1, seed, 300, 400)[0] for seed in range(3)]
    (tmp_path / "a.fa").write_text(fasta(records, width=1000) + ">empty >\n\n")
    whole = list(read_fasta(tmp_path / "a.fa", 1000))
    monkeypatch.setattr(dna, "_PIECE", piece)
    pieces = list(read_fasta(tmp_path / "a.fa", 100))
    assert [example.texts[0] for example in pieces] == [record[:100] for record in records] + [""]
    assert [example.size for example in pieces] == [*map(len, records), 0]
    assert [example.digest for example in pieces] == [example.digest for example in whole]
    assert [example.place.rpartition(" ")[2] for example in pieces] == ["1", "3", "5", "7"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no sequence"),
        (b"ACGT\n", "line 1: FASTA begins with a line that starts with '>'"),
        (b">a\nAC\nAC-GT\n", r"line 3: '-' is no base"),
        (b">a\nMKLV\n", r"line 2: 'L' is no base"),
        (b">a\nAC\xc3\xa9\n", "line 2: .* is no base"),
    ],
)
def test_what_is_no_fasta_is_told(tmp_path, content, message):
    (tmp_path / "a.fa").write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_fasta(tmp_path / "a.fa", 10))


def test_damaged_gzip_is_told(tmp_path, run_prepare):
    packed = gzip.compress(fasta(sequences(50, 5)).encode())
    for content in (packed[:-20], packed[:40] + bytes(20) + packed[60:], b">a\nACGT\n"):
        (tmp_path / "a.fa.gz").write_bytes(content)
        with pytest.raises(UserError, match=r"a\.fa\.gz is damaged, or not compressed with gzip"):
            list(read_fasta(tmp_path / "a.fa.gz", 10))
    with pytest.raises(UserError, match="--shortest is 0"):
        run_prepare("dna", "--source", tmp_path, "--shortest", 0, "--output", tmp_path / "out")
