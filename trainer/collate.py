"""Samples into one padded micro-batch of tensors."""

from typing import Any

import numpy as np
import torch

# Columns that the loader pads, and with what; None stands for the data set's own pad token.
_PADDING = {"input_ids": None, "token_type_ids": 0, "labels": -100}


def collate(samples: list[dict[str, Any]], pad_token_id: int | None) -> dict[str, torch.Tensor]:
    """Pad ragged columns to the longest of the batch and make the masks.

    Args:
        samples: what `ShardedDataset.read` gives.
        pad_token_id: fills `input_ids` past a sample's end.

    Returns:
        `input_ids` and other ragged columns (B, N) int64, scalar columns (B,); `attention_mask` (B, N) int64 unless
        every sample has length N; `document_ids` (B, N) int64 (0, 1, ... in each row) where the samples have
        `document_starts`.
    """
    lengths = np.asarray([len(sample["input_ids"]) for sample in samples])
    longest = int(lengths.max())
    batch = {}
    for name in samples[0]:
        if name == "document_starts":
            batch["document_ids"] = _document_ids(samples, longest)
        elif np.ndim(samples[0][name]) == 0:
            batch[name] = torch.from_numpy(np.asarray([sample[name] for sample in samples]))
        else:
            fill = _PADDING.get(name, 0)
            fill = pad_token_id if fill is None else fill
            assert fill is not None or (lengths == longest).all()
            padded = np.full((len(samples), longest), 0 if fill is None else fill, dtype=np.int64)
            for row, sample in zip(padded, samples, strict=True):
                row[: len(sample[name])] = sample[name]
            batch[name] = torch.from_numpy(padded)
    if (lengths != longest).any():
        batch["attention_mask"] = torch.from_numpy((np.arange(longest) < lengths[:, None]).astype(np.int64))
    return batch


def _document_ids(samples: list[dict[str, Any]], longest: int) -> torch.Tensor:
    ids = np.zeros((len(samples), longest), dtype=np.int64)
    for row, sample in zip(ids, samples, strict=True):
        row[np.asarray(sample["document_starts"][1:], dtype=np.int64)] = 1
    return torch.from_numpy(ids.cumsum(axis=1))
