"""The windows of a series: samples that a run's objective cuts from the time steps of a data set.

A window is `input_length` consecutive steps and the `horizon` steps after them. The shards hold each step once; sample
number i of a data set is the window that begins i steps after the first one, where the series has no breaks; no window
reaches over one. So the order of a run, its seeking and its resuming are those of any other data set.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.manifest_fields import SERIES

from ..settings.objectives import FORECASTING
from ..settings.sections import ObjectiveSection
from .collate import VALUES
from .dataset import ShardedDataset


class WindowedDataset:
    """The windows of a prepared series, with the methods of ShardedDataset.

    Attributes:
        manifest: of the windows, as if they were stored: their number, columns and length.
        stored: the manifest of the series.

    Raises:
        UserError: see `windows_manifest`.
    """

    def __init__(self, dataset: ShardedDataset, objective: ObjectiveSection):
        self.folder, self.stored = dataset.folder, dataset.manifest
        self.manifest = windows_manifest(dataset.folder, dataset.manifest, objective)
        self._dataset = dataset
        self._input_length, self._length = objective.input_length, objective.input_length + objective.horizon
        dataset.reach(self._length)
        firsts, counts = _windows_of_pieces(dataset.manifest, objective)
        self._ends = counts.cumsum()  # numbers of windows, up to the end of each piece
        self._shifts = firsts - (self._ends - counts)

    def __len__(self) -> int:
        return self.manifest.samples

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(shard, row in it) of the first steps of windows."""
        return self._dataset.locate(self._first_steps(np.asarray(indices)))

    def read(self, indices: np.ndarray) -> list[dict[str, Any]]:
        """Windows in the order of `indices`: {values: (input_length, C), labels: (horizon, C)} float32.

        Raises:
            UserError: a shard cannot be read, or is not what the manifest says.
        """
        windows = []
        for first in self._first_steps(np.asarray(indices)).tolist():
            steps = self._dataset.read_consecutive(SERIES, first, self._length)
            windows.append({VALUES: steps[: self._input_length], "labels": steps[self._input_length :]})
        return windows

    def verify_next(self) -> bool:
        """See ShardedDataset."""
        return self._dataset.verify_next()

    def fetch(self, indices: np.ndarray) -> None:
        """Have the shards of all steps of these windows copied here, if they are remote."""
        steps = self._first_steps(np.asarray(indices))[:, None] + np.arange(self._length)
        self._dataset.fetch(np.unique(steps))

    def _first_steps(self, indices: np.ndarray) -> np.ndarray:
        """The steps at which windows begin."""
        return indices + self._shifts[np.searchsorted(self._ends, indices, side="right")]


Dataset = ShardedDataset | WindowedDataset


def as_seen(dataset: ShardedDataset, objective: ObjectiveSection) -> Dataset:
    """The data set whose samples are what the objective learns from: the windows of a series, or the data set itself.

    Raises:
        UserError: a series for another objective, or something else for forecasting.
    """
    manifest = manifest_seen(dataset.folder, dataset.manifest, objective)
    return dataset if manifest is dataset.manifest else WindowedDataset(dataset, objective)


def manifest_seen(folder: str, manifest: Manifest, objective: ObjectiveSection) -> Manifest:
    """The manifest of the data set that `as_seen` gives."""
    kind = unfitting_kind(manifest, objective)
    if kind is not None:
        advice = "forecasting" if manifest.series is not None else "longmix prepare forecasting makes them"
        raise UserError(f"objective.name is {objective.name}, but {folder} holds {kind}: {advice}")
    return manifest if manifest.series is None else windows_manifest(folder, manifest, objective)


def unfitting_kind(manifest: Manifest, objective: ObjectiveSection) -> str | None:
    """The kind of data that the data set holds, in words, if the objective is for the other one; None if it fits."""
    is_series = manifest.series is not None
    if is_series == (objective.name == FORECASTING):
        return None
    return "a time series" if is_series else "no time series"


def scales(manifest: Manifest) -> list[Any] | None:
    """The names, means and scales of a series' variables; None for other data sets."""
    return None if manifest.series is None else [manifest.series[key] for key in ("names", "mean", "scale")]


def characters_of(manifest: Manifest) -> str | None:
    """The characters that a data set numbers, in their order; None for other data sets."""
    task = manifest.report.get("task")
    characters = task.get("vocabulary") if isinstance(task, dict) else None
    return characters if isinstance(characters, str) else None


def first_window(manifest: Manifest, input_length: int) -> int:
    """The step at which the first window of a series begins.

    The first steps may be there for the inputs alone, when they belong to the split before: what is forecast begins at
    the first step that is the split's own.
    """
    return max(0, manifest.series["lookback"] - input_length)


def windows_manifest(folder: str, manifest: Manifest, objective: ObjectiveSection) -> Manifest:
    """The manifest of a series as it would be if its windows were stored.

    Raises:
        UserError: the series is too short for one window.
    """
    steps = sum(shard["samples"] for shard in manifest.shards)
    length, lookback = objective.input_length, manifest.series["lookback"]
    if 0 < lookback < length:
        raise UserError(
            f"objective.input_length is {length}, but {folder} holds {lookback} time steps before its own for inputs: "
            f"at most {lookback}"
        )
    windows = int(_windows_of_pieces(manifest, objective)[1].sum())
    if windows < 1:
        pieces = f", in {len(manifest.series['breaks']) + 1} pieces" if "breaks" in manifest.series else ""
        raise UserError(
            f"objective.input_length {length} and objective.horizon {objective.horizon} make no window of {folder}, "
            f"which holds {steps} time steps ({lookback} of them for inputs alone{pieces}): lower them"
        )
    channels = len(manifest.series["names"])
    return dataclasses.replace(
        manifest,
        samples=windows,
        tokens=windows * length,
        sequence_length=length,
        columns={
            VALUES: {"dtype": "float32", "shape": [None, channels]},
            "labels": {"dtype": "float32", "shape": [objective.horizon, channels]},
        },
    )


def _windows_of_pieces(manifest: Manifest, objective: ObjectiveSection) -> tuple[np.ndarray, np.ndarray]:
    """(the first window's first step, the number of windows) of each piece of a series between its breaks."""
    begins, ends = np.asarray(pieces(manifest), dtype=np.int64).T
    firsts = np.maximum(begins, first_window(manifest, objective.input_length))
    return firsts, np.maximum(0, ends - firsts - objective.input_length - objective.horizon + 1)


def pieces(manifest: Manifest) -> list[tuple[int, int]]:
    """(first step, the one after the last) of each piece of a series between its breaks."""
    steps = sum(shard["samples"] for shard in manifest.shards)
    return list(itertools.pairwise([0, *manifest.series.get("breaks", ()), steps]))
