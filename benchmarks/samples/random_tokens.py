"""Data sets of random tokens: for speed alone."""

from pathlib import Path

import numpy as np

from longmix.data_prep.shards import LIST_INT32, write_dataset

VOCABULARY = 8000


def write_samples(folder: Path, length: int, samples: int, vocabulary: int = VOCABULARY) -> None:
    """A data set for masked language modelling: every row one document of the same length."""
    generator = np.random.default_rng(0)
    write_dataset(
        folder,
        ({"input_ids": generator.integers(5, vocabulary, length)} for _ in range(samples)),
        {"input_ids": LIST_INT32},
        split="train",
        split_rule="random tokens",
        vocab_size=vocabulary,
        pad_token_id=0,
        mask_token_id=4,
        special_token_ids=[0, 1, 2, 3, 4],
        sequence_length=length,
        packing="one-per-row",
    )
