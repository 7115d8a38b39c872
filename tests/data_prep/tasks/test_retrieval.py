"""longmix prepare retrieval: both texts of a pair arrive, byte by byte, with the pair's class."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

PAIRS = [(number % 2, f"b'{number} paper \u00e9'", f"cited by {number * 7}") for number in range(60)]


@pytest.fixture
def pairs_of(rows_of):
    """pairs_of(folder, split) -> (class, first text, second text) of its pairs."""

    def read(folder, split):
        return [
            (row["labels"], *(bytes(token - 2 for token in row[name]) for name in ("input_ids", "input_ids_b")))
            for row in rows_of(folder / split)
        ]

    return read


def expected(pairs, length):
    return sorted((label, first.encode()[:length], second.encode()[:length]) for label, first, second in pairs)


def test_the_official_files_have_no_header(tmp_path, run_prepare, pairs_of):
    for split, pairs in (("train", PAIRS[:40]), ("eval", PAIRS[40:50]), ("test", PAIRS[50:])):
        lines = [f"{label}.0\tP01\tP{n}\t{first}\t{second}" for n, (label, first, second) in enumerate(pairs)]
        (tmp_path / f"new_aan_pairs.{split}.tsv").write_bytes("\n".join(lines).encode())
    run_prepare("retrieval", "--source", tmp_path, "--length", 11, "--output", tmp_path / "out")
    for split, pairs in (("train", PAIRS[:40]), ("validation", PAIRS[40:50]), ("test", PAIRS[50:])):
        assert sorted(pairs_of(tmp_path / "out", split)) == expected(pairs, 11)
        manifest = Manifest.load(tmp_path / "out" / split)
        assert manifest.split_rule == "the files' own split" and manifest.label_names == ["0", "1"]
        assert manifest.columns["input_ids_b"] == manifest.columns["input_ids"] == {"dtype": "int32", "shape": [None]}
    (tmp_path / "new_aan_pairs.test.tsv").write_text("1\ta\tb\tc\td\n2\ta\tb\tc\td\n")
    with pytest.raises(UserError, match=r"test\.tsv, line 2: label is '2', allowed: 0, 1, 0\.0, 1\.0"):
        run_prepare("retrieval", "--source", tmp_path, "--output", tmp_path / "more")


@pytest.mark.parametrize("suffix", [".tsv", ".parquet"])
def test_another_corpus_of_pairs(tmp_path, suffix, run_prepare, pairs_of):
    names = ["no", "yes"]
    rows = [(names[label], second, first) for label, first, second in PAIRS]
    path = tmp_path / f"pairs{suffix}"
    if suffix == ".tsv":
        path.write_text("linked\tto\tfrom\n" + "".join("\t".join(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.table(list(map(list, zip(*rows, strict=True))), names=["linked", "to", "from"]), path)
    options = ["--label-column", "linked", "--first-column", "from", "--second-column", "to"]
    run_prepare("retrieval", "--source", path, *options, "--output", tmp_path / "out")
    made = {split: pairs_of(tmp_path / "out", split) for split in ("train", "validation", "test")}
    assert sorted(made["train"] + made["validation"] + made["test"]) == expected(PAIRS, 4000)
    assert Manifest.load(tmp_path / "out" / "test").label_names == names
    assert all(made.values()) and len(made["train"]) > len(made["test"])


def test_a_pair_and_the_pair_turned_around_share_a_split(tmp_path, run_prepare, pairs_of):
    turned = [(label, second, first) for label, first, second in PAIRS]
    lines = "".join(f"{label}\t{first}\t{second}\n" for label, first, second in PAIRS + turned)
    (tmp_path / "pairs.tsv").write_text("label\ttext1\ttext2\n" + lines)
    run_prepare("retrieval", "--source", tmp_path / "pairs.tsv", "--output", tmp_path / "out")
    for split in ("train", "validation", "test"):
        pairs = pairs_of(tmp_path / "out", split)
        assert sorted(pairs) == sorted((label, second, first) for label, first, second in pairs)


def test_a_pair_of_the_test_file_is_not_trained_on_turned_around_either(tmp_path, run_prepare, pairs_of):
    turned = [(label, second, first) for label, first, second in PAIRS[:10]]
    for split, pairs in (("train", PAIRS[:40]), ("validation", PAIRS[38:50]), ("test", [*turned, *PAIRS[50:]])):
        lines = "".join(f"{label}\t{first}\t{second}\n" for label, first, second in pairs)
        (tmp_path / f"{split}.tsv").write_text("label\ttext1\ttext2\n" + lines)
    run_prepare("retrieval", "--source", tmp_path, "--output", tmp_path / "out")
    assert sorted(pairs_of(tmp_path / "out", "train")) == expected(PAIRS[10:38], 4000)
    assert sorted(pairs_of(tmp_path / "out", "test")) == expected(turned + PAIRS[50:], 4000)
    assert Manifest.load(tmp_path / "out" / "train").report["left_out"] == 12


def test_pairs_without_one_text_are_left_out_and_told(tmp_path, run_prepare):
    lines = "".join(f"{label}\t{first}\t{second}\n" for label, first, second in [*PAIRS, (0, "", "x"), (1, "x", "")])
    (tmp_path / "pairs.tsv").write_text("label\ttext1\ttext2\n" + lines)
    run_prepare("retrieval", "--source", tmp_path / "pairs.tsv", "--output", tmp_path / "out")
    manifests = [Manifest.load(tmp_path / "out" / split) for split in ("train", "validation", "test")]
    assert sum(manifest.samples for manifest in manifests) == len(PAIRS)
    assert all("; 2 examples of these files with a text below 1 characters" in m.split_rule for m in manifests)
