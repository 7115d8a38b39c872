"""A logistic regression beside the rows of a table of classification: what their tasks need no model for.

It learns from the training samples that the rows learn from; the validation split chooses what it reads and its
penalty, as it chooses their rate, and the test split is read once.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from longmix.trainer.samples.dataset import ShardedDataset

SPLITS = ("train", "eval", "test")
PENALTIES = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)  # inverse strengths
RUNS = (1, 2, 4)  # the longest run of tokens that is counted
# A token is a character here, none of them a space: scikit-learn's runs of characters would join spaces.
FIRST_CHARACTER = 0x4E00


def score(data: dict[str, str]) -> dict[str, Any]:
    """The regression that is best on the validation split.

    Args:
        data: `train`, `eval` and `test`, folders of `input_ids` and `labels`.

    Returns:
        `reads`, `penalty`, and `validation` and `accuracy`, the shares that it answers correctly there and on test.
    """
    (train, train_labels), (chosen_by, chosen_labels), (test, test_labels) = (
        _read(Path(data[name])) for name in SPLITS
    )
    best: dict[str, Any] = {"validation": -1.0}
    for reads, features in _features(train):
        read, read_too = features.fit_transform(train), features.transform(chosen_by)
        for penalty in PENALTIES:
            found = LogisticRegression(C=penalty, max_iter=300).fit(read, train_labels)
            validation = found.score(read_too, chosen_labels)
            if validation > best["validation"]:
                best = {"reads": reads, "penalty": penalty, "validation": validation, "found": (features, found)}
    features, found = best.pop("found")
    return {**best, "accuracy": found.score(features.transform(test), test_labels)}


def _read(folder: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """The sequences of a split, and their classes."""
    dataset = ShardedDataset(folder)
    samples = dataset.read(np.arange(len(dataset)))
    return [sample["input_ids"] for sample in samples], np.array([int(sample["labels"]) for sample in samples])


def _features(train: list[np.ndarray]) -> Iterable[tuple[str, Pipeline]]:
    """What may be read: the value at each position, where sequences are of one length; else the runs that they hold."""
    if len({len(sequence) for sequence in train}) == 1:
        yield "the value at each position", make_pipeline(FunctionTransformer(np.stack), StandardScaler())
        return
    for longest in RUNS:
        counted = TfidfVectorizer(
            analyzer="char", ngram_range=(1, longest), lowercase=False, min_df=2, sublinear_tf=True
        )
        reads = f"runs of up to {longest} tokens" if longest > 1 else "the tokens without their order"
        yield reads, make_pipeline(FunctionTransformer(_as_texts), counted)


def _as_texts(sequences: list[np.ndarray]) -> list[str]:
    return ["".join(chr(FIRST_CHARACTER + token) for token in sequence) for sequence in sequences]
