"""Answers of a saved classification or regression model for every sample of a data set."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers

from ..data.collate import collate
from ..data.dataset import ShardedDataset
from ..models.loading import load_model

# Samples sorted by length at a time: padding is saved within, and reading stays in order.
WINDOW = 2048


@torch.inference_mode()
def predict(model_folder: Path, data_folder: Path, batch_size: int, *, regression: bool) -> np.ndarray:
    """(n,) int64 class indices, or float64 values for regression, in the order of the data set.

    Computed in float32 whatever the run's precision, on the first GPU if there is one: figures can be redrawn
    elsewhere.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(str(model_folder), transformers.AutoModelForSequenceClassification).to(device).eval()
    accepted = set(inspect.signature(model.forward).parameters) - {"labels"}
    dataset = ShardedDataset(str(data_folder))
    answers = np.zeros(len(dataset), dtype=np.float64 if regression else np.int64)
    for rows, samples in _batches(dataset, batch_size):
        batch = collate(samples, dataset.manifest.pad_token_id)
        inputs = {name: value.to(device) for name, value in batch.items() if name in accepted}
        logits = model(**inputs).logits.float().cpu().numpy()
        answers[rows] = logits[:, 0] if regression else logits.argmax(axis=1)
    return answers


def _batches(dataset: ShardedDataset, batch_size: int) -> Iterator[tuple[np.ndarray, list[dict]]]:
    """(indices, samples) of batches whose samples are of similar length."""
    for start in range(0, len(dataset), WINDOW):
        indices = np.arange(start, min(start + WINDOW, len(dataset)))
        samples = dataset.read(indices)
        order = np.argsort([-len(sample["input_ids"]) for sample in samples], kind="stable")
        for first in range(0, len(order), batch_size):
            chosen = order[first : first + batch_size]
            yield indices[chosen], [samples[row] for row in chosen]
