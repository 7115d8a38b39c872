"""longmix prepare documents: characters in, characters out, and a vocabulary of the training documents alone."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

ALPHABET = "aebnt \n\u00e9\U0001d465"
_DRAW = random.Random(0)
DOCUMENTS = [(f"cs.{'ABC'[n % 3]}I", "".join(_DRAW.choices(ALPHABET, k=20 + n))) for n in range(90)]


@pytest.fixture
def decoded(rows_of):
    """decoded(folder, split) -> (class, text) with U+FFFD for the characters without an id, by the manifest alone."""

    def read(folder, split):
        manifest = Manifest.load(folder / split)
        characters = "\0\0\ufffd" + manifest.report["task"]["vocabulary"]
        assert manifest.vocab_size == len(characters) and manifest.special_token_ids == [0, 1, 2]
        return sorted(
            (manifest.label_names[row["labels"]], "".join(characters[token] for token in row["input_ids"]))
            for row in rows_of(folder / split)
        )

    return read


def as_folders(folder):
    for number, (label, text) in enumerate(DOCUMENTS):
        path = folder / label / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder


def as_parquet(folder):
    labels, texts = zip(*DOCUMENTS, strict=True)
    pq.write_table(pa.table({"label": labels, "text": texts}), folder / "papers.parquet")
    return folder / "papers.parquet"


@pytest.mark.parametrize("lay_out", [as_folders, as_parquet])
def test_tokens_are_the_characters_of_the_document(tmp_path, lay_out, run_prepare, decoded):
    (tmp_path / "in").mkdir()
    run_prepare("documents", "--source", lay_out(tmp_path / "in"), "--length", 32, "--output", tmp_path / "out")
    made = {split: decoded(tmp_path / "out", split) for split in ("train", "validation", "test")}
    whole = sorted((label, text[:32]) for label, text in DOCUMENTS)
    assert sorted(made["train"] + made["validation"] + made["test"]) == whole
    counts = Manifest.load(tmp_path / "out" / "train").report["class_counts"]
    assert counts == [sum(label == f"cs.{c}I" for label, _ in made["train"]) for c in "ABC"]


def test_the_vocabulary_is_the_most_frequent_characters_of_the_training_documents(tmp_path, run_prepare, decoded):
    for split, texts in {"train": ["aaab", "abbcc", "xd", "dzzz"], "test": ["dzzzz", "baé"], "dev": ["c", "y"]}.items():
        lines = "".join(f"{number % 2}\t{text}\n" for number, text in enumerate(texts))
        (tmp_path / f"{split}.tsv").write_text("label\ttext\n" + lines)
    options = ["documents", "--source", tmp_path, "--length", 4]
    run_prepare(*options, "--characters", 3, "--output", tmp_path / "out")
    # The second c of abbcc is cut off: c, d and x occur once each. What begins as the test document is not trained on.
    assert Manifest.load(tmp_path / "out" / "train").report["task"]["vocabulary"] == "abc"
    assert decoded(tmp_path / "out", "train") == [("0", "aaab"), ("0", "\ufffd\ufffd"), ("1", "abbc")]
    assert decoded(tmp_path / "out", "test") == [("0", "\ufffd" * 4), ("1", "ba\ufffd")]
    with pytest.raises(UserError, match="--characters is 0"):
        run_prepare(*options, "--characters", 0, "--output", tmp_path / "more")
