"""Chance: an accuracy says little beside the share of the most frequent class, which only the data can tell."""

from pathlib import Path

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.manifest_fields import IGNORED
from longmix.data_prep.parquet_columns import parquet_file

from ..many_runs.read import Run
from ..settings.mistakes import say_loading
from .data import find_data

VALIDATION_KEY = "data.eval"


def chance_of(run: Run, key: str) -> tuple[float | None, str | None]:
    """Share of the most frequent class in the samples that the run's evaluations read of a split; else why it is not
    known.

    Args:
        key: the key of config.yaml that names the split.
    """
    try:
        # The test split is read whole.
        return _majority(*find_data(run, key), run.value("eval.samples") if key == VALIDATION_KEY else None), None
    except UserError as error:
        return None, str(error)
    except (OSError, ValueError, KeyError, TypeError):
        return None, f"{key}, {run.value(key)}, cannot be read"


def _majority(folder: Path, manifest: Manifest, wanted: int | None) -> float | None:
    """Share of the most frequent class in all samples, or in the `wanted` of them that evaluations choose; None without
    classes.
    """
    if manifest.num_labels is None or "labels" not in manifest.columns:
        return None
    chosen = _chosen(sum(shard["samples"] for shard in manifest.shards), wanted)
    counts, first = np.zeros(manifest.num_labels, dtype=np.int64), 0
    for shard in manifest.shards:
        column = parquet_file(folder / shard["file"]).read(columns=["labels"])["labels"]
        end = first + len(column)
        if chosen is not None:
            column = column.take(chosen[(first <= chosen) & (chosen < end)] - first)
        first = end
        while hasattr(column.type, "value_type"):
            column = column.combine_chunks().flatten()
        labels = column.to_numpy()
        counts += np.bincount(labels[labels != IGNORED], minlength=len(counts))
    return float(counts.max() / counts.sum()) if counts.sum() else None


def _chosen(available: int, wanted: int | None) -> np.ndarray | None:
    """The samples that evaluations read; None: all."""
    if wanted is None or wanted >= available:
        return None
    # It brings torch, which a report whose evaluations read all samples need not wait for.
    say_loading("report")
    from ..run.evaluation import chosen_samples

    return chosen_samples(available, wanted)
