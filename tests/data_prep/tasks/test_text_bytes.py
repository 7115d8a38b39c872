"""longmix prepare text-bytes: every token is a byte of the review, and the official layouts are read as they are."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

REVIEWS = {
    "train": [("neg", f"bad\u2026 {n}<br />") for n in range(30)] + [("pos", f'"g\u00f6od" {n}') for n in range(30)],
    "test": [("neg", "never again"), ("pos", "\U0001f600" * 5), ("neg", "bad\u2026 3<br />")],
}


def as_official_folder(folder):
    for split, reviews in REVIEWS.items():
        for number, (label, text) in enumerate(reviews):
            path = folder / split / label / f"{number}_7.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        (folder / split / "urls_pos.txt").write_text("http://example.org")
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0_0.txt").write_text("no label")
    (folder / "README").write_text("...")


def as_tsv(folder):
    for split, reviews in REVIEWS.items():
        lines = [f"{label}\t{number}\t{text}" for number, (label, text) in enumerate(reviews)]
        (folder / f"{split}.tsv").write_bytes("\n".join(["label\tid\ttext", *lines]).encode())


def as_parquet(folder):
    for split, reviews in REVIEWS.items():
        labels, texts = zip(*reviews, strict=True)
        pq.write_table(pa.table({"text": texts, "label": labels}), folder / f"{split}-00000-of-00001.parquet")


@pytest.mark.parametrize("lay_out", [as_official_folder, as_tsv, as_parquet])
def test_tokens_are_the_bytes_of_the_text(tmp_path, capsys, lay_out, run_prepare, rows_of):
    (tmp_path / "imdb").mkdir()
    lay_out(tmp_path / "imdb")
    assert run_prepare("text-bytes", "--source", tmp_path / "imdb", "--length", 12, "--output", tmp_path / "out") == 0
    found = {}
    for split in ("train", "validation", "test"):
        manifest = Manifest.load(tmp_path / "out" / split)
        assert (manifest.label_names, manifest.num_labels, manifest.sequence_length) == (["neg", "pos"], 2, 12)
        assert (manifest.vocab_size, manifest.special_token_ids, manifest.packing) == (258, [0, 1], "one-per-row")
        found[split] = [
            (manifest.label_names[row["labels"]], bytes(token - 2 for token in row["input_ids"]))
            for row in rows_of(tmp_path / "out" / split)
        ]
    cut = {split: [(label, text.encode()[:12]) for label, text in reviews] for split, reviews in REVIEWS.items()}
    assert sorted(found["test"]) == sorted(cut["test"])
    # One review of the training split stands in the test split too.
    assert sorted(found["train"] + found["validation"]) == sorted(set(cut["train"]) - set(cut["test"]))
    assert found["validation"] and not set(found["train"]) & set(found["validation"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[2] == "test: 3 samples, 35 tokens, at most 12 each; 2 classes (neg: 2, pos: 1)"


def test_the_length_does_not_move_reviews_between_splits(tmp_path, run_prepare, rows_of):
    as_tsv(tmp_path)
    for length in (15, 4096):
        run_prepare("text-bytes", "--source", tmp_path, "--length", length, "--output", tmp_path / f"out-{length}")
    short, whole = (
        [tuple(row["input_ids"][:15]) for row in rows_of(tmp_path / f"out-{length}" / "validation")]
        for length in (15, 4096)
    )
    assert short == whole and len(short) > 1


def test_columns_are_named(tmp_path, run_prepare):
    (tmp_path / "a.tsv").write_text("review\tstars\n" + "".join(f"text {n}\t{n % 5}\n" for n in range(100)))
    options = ["text-bytes", "--source", tmp_path / "a.tsv", "--output", tmp_path / "out"]
    with pytest.raises(UserError, match="no column 'label'; it has 'review', 'stars'"):
        run_prepare(*options)
    assert not (tmp_path / "out").exists()
    run_prepare(*options, "--label-column", "stars", "--text-column", "review")
    assert Manifest.load(tmp_path / "out" / "train").label_names == ["0", "1", "2", "3", "4"]
    for length in (0, 1 << 20):
        with pytest.raises(UserError, match=f"--length is {length}"):
            run_prepare(*options, "--length", length)
