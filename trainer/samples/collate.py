"""Samples into one padded micro-batch of tensors."""

from typing import Any

import numpy as np
import torch

from longmix.data_prep.manifest_fields import IGNORED

# One sample as it is read, and a micro-batch, by the names of their columns.
Sample = dict[str, Any]
Batch = dict[str, torch.Tensor | int]

TOKEN_IDS, VALUES = "input_ids", "values"
# Ending of the columns of a pair's second sequence, and of its mask.
SECOND = "_b"
# Columns that are padded with something else than zeros; None stands for the data set's own pad token.
_PADDING = {TOKEN_IDS: None, "labels": IGNORED}


def length_of(sample: Sample, suffix: str = "") -> int:
    """Positions of a sample's sequence (of its second one with SECOND): tokens, or vectors of real values."""
    return len(sample[TOKEN_IDS + suffix] if TOKEN_IDS + suffix in sample else sample[VALUES + suffix])


def is_pair(sample: Sample) -> bool:
    """Whether a sample, or a data set's columns, have a second sequence."""
    return TOKEN_IDS + SECOND in sample or VALUES + SECOND in sample


def count_positions(sample: Sample) -> int:
    """Positions of all sequences of a sample."""
    return length_of(sample) + (length_of(sample, SECOND) if is_pair(sample) else 0)


def collate(samples: list[Sample], pad_token_id: int | None) -> Batch:
    """Pad ragged columns to the longest of the batch and make the masks.

    Args:
        samples: samples as `ShardedDataset.read` gives them.
        pad_token_id: fills `input_ids` past a sample's end.

    Returns:
        `input_ids` and other ragged columns (B, N) int64, `values` (B, N, C) and `coordinates` (B, N, l) float32,
        scalar columns (B,); `attention_mask` (B, N) int64 unless every sample has length N; `document_ids` (B, N) int64
        (0, 1, ... in each row) where the samples have `document_starts`, and the same documents as `segment_offsets`
        (S + 1,) int32 and the number `longest_segment`, as the models take them. Columns of a pair's second sequence
        end with `_b` and have a length N' and a mask `attention_mask_b` of their own.
    """
    suffixes = ("", SECOND) if is_pair(samples[0]) else ("",)
    lengths = {suffix: np.asarray([length_of(sample, suffix) for sample in samples]) for suffix in suffixes}
    batch = {}
    for name, first in samples[0].items():
        suffix = SECOND if name.endswith(SECOND) else ""
        longest = int(lengths[suffix].max())
        if name == "document_starts":
            batch["document_ids"] = _document_ids(samples, longest)
            batch["segment_offsets"], batch["longest_segment"] = _segments(samples, lengths[suffix])
        elif np.ndim(first) == 0:
            batch[name] = torch.from_numpy(np.asarray([sample[name] for sample in samples]))
        else:
            fill = _PADDING.get(name.removesuffix(SECOND), 0)
            fill = pad_token_id if fill is None else fill
            assert fill is not None or (lengths[suffix] == longest).all()
            dtype = np.float32 if np.asarray(first).dtype.kind == "f" else np.int64
            shape = (len(samples), longest, *np.shape(first)[1:])
            padded = np.full(shape, 0 if fill is None else fill, dtype=dtype)
            for row, sample in zip(padded, samples, strict=True):
                row[: len(sample[name])] = sample[name]
            batch[name] = torch.from_numpy(padded)
    for suffix in suffixes:
        longest = lengths[suffix].max()
        if (lengths[suffix] != longest).any():
            mask = np.arange(longest) < lengths[suffix][:, None]
            batch[f"attention_mask{suffix}"] = torch.from_numpy(mask.astype(np.int64))
    return batch


def _document_ids(samples: list[Sample], longest: int) -> torch.Tensor:
    ids = np.zeros((len(samples), longest), dtype=np.int64)
    for row, sample in zip(ids, samples, strict=True):
        row[np.asarray(sample["document_starts"][1:], dtype=np.int64)] = 1
    return torch.from_numpy(ids.cumsum(axis=1))


def _segments(samples: list[Sample], lengths: np.ndarray) -> tuple[torch.Tensor, int]:
    """Where documents and padding begin in the flat batch, and its end; and the length of the longest of them."""
    longest = int(lengths.max())
    cuts = [np.append(sample["document_starts"], [0, length]) for sample, length in zip(samples, lengths, strict=True)]
    offsets = np.unique(np.concatenate([row * longest + cut for row, cut in enumerate(cuts)]))
    offsets = np.append(offsets[offsets < len(samples) * longest], len(samples) * longest)
    return torch.from_numpy(offsets.astype(np.int32)), int(np.diff(offsets).max(initial=1))
