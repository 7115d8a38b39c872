"""Points in space with a scalar target: what FLT's geometric positions (section 5.3, 3-D molecules) are for.

Either read from .npz files, or generated: clusters of particles of charge +1 and -1 in a cube, and the energy of their
pairs, divided by the number of particles. With lengths in units of the particles' diameter and r = |r_i - r_j|,

    E = 1/n  sum_{i<j}  4 (r^-12 - r^-6 + q_i q_j exp(-r) / r),

a Lennard-Jones and a screened Coulomb (Yukawa) term. Density and share of charges are the same for all sizes: what
mostly decides the energy is which charges are near which. Particles are at least one diameter apart: no term diverges.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import sha256_of_file
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import SCALAR_FLOAT32
from longmix.data_prep.split_names import SPLITS, TEST, TRAIN, VALIDATION
from longmix.data_prep.tasks.arrays import read_npz
from longmix.data_prep.tasks.task_folder import Split, check_seed, describe, kept_in, write_task

DIMENSIONS = 3
ARRAYS = ("coordinates", "counts", "labels")
OPTIONAL = "values"
HELD_OUT_SHARE = 10  # where no file is given for a split, it is one of so many training samples
DENSITY = 0.3  # particles in a cube of side 1; spheres of diameter 1 can be placed at random below 0.73
MOST_POINTS = 4096
DEFAULT_SAMPLES, DEFAULT_POINTS = 20000, (16, 48)
_FORMAT = 1  # raise it when the same settings are to give other samples
_LARGEST = float(np.finfo(np.float32).max)

_DESCRIPTION = """\
Make a regression of a number from points in space, for models of real values with coordinates (FLT,
model.coordinate_dimensions = 3, model.input_channels = C) and objective.name=regression.

DIR gets train/, validation/ and test/ with the columns coordinates (N, 3), values (N, C) and labels. The labels are
standardised by their mean and standard deviation in train/ (what also stands in another split is left out before),
which stand in the manifests: report.task.label_mean and label_scale; an error in original units is the one measured
times label_scale.

Without --train, clusters of charged particles and their energy per particle are generated. With it, a .npz file of
  coordinates (A, 3)  the points of all samples, one sample after the other
  counts (M,)         how many points each sample has, at least 1 each, A in all
  labels (M,)         the target of each sample
  values (A, C)       features of each point; optional, without it each point has the one feature 1
Nothing in it is unpickled. A split without a file is cut off train: a tenth each, drawn by seed.
"""
_EXAMPLES = """\
examples:
  longmix prepare points --output data/points
  longmix prepare points --train train.npz --test test.npz --output data/molecules
"""


@dataclass(frozen=True)
class PointsSettings:
    """The settings that decide every sample.

    Args:
        train, validation, test: .npz files; no `train`: samples are generated.
        samples: generated ones to train on; validation and test get a tenth as many each.
        points: the fewest and the most points of a generated sample.
        seed: draws the samples, or the splits.

    Raises:
        UserError: with the option, its value and what is allowed.
    """

    train: str | None = None
    validation: str | None = None
    test: str | None = None
    samples: int = DEFAULT_SAMPLES
    points: tuple[int, int] = DEFAULT_POINTS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.train is None and (self.validation or self.test):
            raise UserError("--validation and --test need --train: give its .npz file, too")
        if self.samples < 1:
            raise UserError(f"--samples is {self.samples}, but must be at least 1")
        if not 2 <= self.points[0] <= self.points[1] <= MOST_POINTS:
            raise UserError(
                f"--points is {self.points[0]} {self.points[1]}, but must be the fewest and the most points of a "
                f"sample, from 2 to {MOST_POINTS}"
            )
        check_seed(self.seed)


@dataclass(frozen=True)
class Points:
    """Samples of points.

    Args:
        read: gives sample i as (coordinates (N, 3) float32, values (N, C) float32, label in its own unit).
        indices: of the samples that there are.
        rule: how they were chosen, for the manifest.
    """

    read: Callable[[int], tuple[np.ndarray, np.ndarray, float]]
    indices: np.ndarray
    rule: str


def prepare_points(settings: PointsSettings, output: str | Path) -> dict[str, Manifest]:
    """Write `output/train`, `output/validation` and `output/test`; returns their manifests. See `write_task`."""
    task: dict[str, Any] = {"name": "points", "format": _FORMAT, "seed": settings.seed}
    if settings.train is None:
        parts = _generated(settings)
        channels, longest = 1, settings.points[1]
        task |= {"samples": settings.samples, "points": list(settings.points)}
    else:
        files = {name: getattr(settings, name) for name in SPLITS if getattr(settings, name)}
        tables = {name: Table(file) for name, file in files.items()}
        channels, longest = tables[TRAIN].channels, max(table.longest for table in tables.values())
        for name, table in tables.items():
            if table.channels != channels:
                raise UserError(f"{files[name]} has {table.channels} values a point, {files[TRAIN]} has {channels}")
        parts = _from_tables(tables, settings.seed)
        task |= {"files": {name: sha256_of_file(file) for name, file in files.items()}}
    given = {name: Split(lambda part=part: _samples(part), part.rule) for name, part in parts.items()}
    mean, scale = _standardisation([sample["labels"] for sample in kept_in(TRAIN, given)])
    splits = {name: Split(lambda part=part: _samples(part, mean, scale), part.rule) for name, part in parts.items()}
    return write_task(
        output,
        task | {"label_mean": mean, "label_scale": scale},
        {
            "coordinates": {"dtype": "float32", "shape": [None, DIMENSIONS]},
            "values": {"dtype": "float32", "shape": [None, channels]},
            "labels": SCALAR_FLOAT32,
        },
        splits,
        sequence_length=longest,
    )


# -----------------------------------------------------------------------------
# Generated samples: dense enough that pairs matter, and no two particles so near that the energy diverges.


def make_sample(settings: PointsSettings, split: str, index: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Generated sample `index` of a split: coordinates (n, 3), charges (n, 1), both float32, and their energy."""
    generator = np.random.default_rng([_FORMAT, settings.seed, SPLITS.index(split), index])
    count = int(generator.integers(settings.points[0], settings.points[1] + 1))
    coordinates = _place(generator, count).astype(np.float32)
    charges = generator.permutation(np.where(np.arange(count) % 2, -1, 1)).astype(np.float32)
    return coordinates, charges[:, None], energy(coordinates, charges)


def energy(coordinates: np.ndarray, charges: np.ndarray) -> float:
    """The energy per particle of the module's docstring: coordinates (n, 3), charges (n,), in float64."""
    places, charges = coordinates.astype(np.float64), charges.astype(np.float64)
    total = 0.0
    for i in range(1, len(places)):
        distance = np.sqrt(((places[:i] - places[i]) ** 2).sum(axis=1))
        attraction = distance**-6
        yukawa = charges[:i] * charges[i] * np.exp(-distance) / distance
        total += 4 * float((attraction * attraction - attraction + yukawa).sum())
    return total / len(places)


def _place(generator: np.random.Generator, count: int) -> np.ndarray:
    """(count, 3): points in a cube about 0, drawn one after the other, each as often as is needed to be 1 from all."""
    side = (count / DENSITY) ** (1 / DIMENSIONS)
    places = np.empty((count, DIMENSIONS))
    placed = 0
    while placed < count:
        for place in side * (generator.random((count, DIMENSIONS)) - 0.5):
            if (((places[:placed] - place) ** 2).sum(axis=1) >= 1).all():
                places[placed] = place
                placed += 1
                if placed == count:
                    break
    return places


# -----------------------------------------------------------------------------
# Samples of files: checked whole when opened, since a NaN would only show as a loss of NaN much later.


class Table:
    """The samples of a .npz file.

    Raises:
        UserError: it cannot be read, an array is missing or of another shape, or a number is not finite in float32.
    """

    def __init__(self, path: str | Path) -> None:
        arrays = read_npz(path)
        missing = [name for name in ARRAYS if name not in arrays]
        unknown = sorted(set(arrays) - {*ARRAYS, OPTIONAL})
        if missing or unknown:
            what = f"no array {missing[0]}" if missing else f"an array {unknown[0]}"
            raise UserError(f"{path} has {what}: it must hold {', '.join(ARRAYS)}, and may hold {OPTIONAL}")
        counts = arrays["counts"]
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or not len(counts) or counts.min() < 1:
            raise UserError(f"{path}: counts must hold a whole number of points, at least 1, for each sample")
        if counts.max() > MOST_POINTS * 16:
            raise UserError(f"{path}: counts holds {counts.max()}, but a sample may have {MOST_POINTS * 16} points")
        total = int(counts.sum(dtype=np.int64))
        coordinates = _real(path, "coordinates", arrays["coordinates"], (total, DIMENSIONS))
        given = arrays.get(OPTIONAL)
        if given is None:
            values = np.ones((total, 1), dtype=np.float32)
        else:
            channels = given.shape[1] if given.ndim == 2 and given.shape[1] else "C"
            values = _real(path, OPTIONAL, given, (total, channels))
        self._labels = _real(path, "labels", arrays["labels"], (len(counts),), np.float64)
        self._coordinates, self._values = coordinates, values
        self._ends = np.cumsum(counts, dtype=np.int64)
        self.channels, self.longest = values.shape[1], int(counts.max())

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Sample `index`, as `Points.read`."""
        rows = slice(self._ends[index - 1] if index else 0, self._ends[index])
        return self._coordinates[rows], self._values[rows], float(self._labels[index])


def _real(path: str | Path, name: str, array: np.ndarray, shape: tuple, dtype: type = np.float32) -> np.ndarray:
    """`array` as `dtype`, of that shape and finite in float32."""
    if array.dtype.kind not in "fiu" or array.shape != shape:
        wanted = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise UserError(f"{path}: {name} holds {array.dtype} of shape {array.shape}, but must hold numbers ({wanted})")
    wrong = np.argwhere(~(np.abs(array.astype(np.float64)) <= _LARGEST))
    if len(wrong):
        place = ", ".join(map(str, wrong[0]))
        raise UserError(f"{path}: {name}[{place}] is {array[tuple(wrong[0])]}, but must be a finite number of float32")
    return array.astype(dtype)


# -----------------------------------------------------------------------------
# Splits, and labels standardised by those that are trained on: files may have them in any unit.


def _generated(settings: PointsSettings) -> dict[str, Points]:
    held_out = -(-settings.samples // HELD_OUT_SHARE)
    return {
        name: Points(
            lambda index, name=name: make_sample(settings, name, index),
            np.arange(count),
            "samples of their own, drawn by split, seed and number",
        )
        for name, count in ((TRAIN, settings.samples), (VALIDATION, held_out), (TEST, held_out))
    }


def _from_tables(tables: Mapping[str, Table], seed: int) -> dict[str, Points]:
    """The splits of files; what has no file is cut off train."""
    train = tables[TRAIN]
    order = np.random.default_rng([seed, len(train)]).permutation(len(train))
    missing = [name for name in (VALIDATION, TEST) if name not in tables]
    share = len(train) // HELD_OUT_SHARE
    if missing and share == 0:
        raise UserError(f"--train has {len(train)} samples: cutting {missing[0]} off needs at least {HELD_OUT_SHARE}")
    parts = {}
    for number, name in enumerate(missing):
        rows = np.sort(order[number * share : (number + 1) * share])
        parts[name] = Points(train.read, rows, f"1 of {HELD_OUT_SHARE} samples of the training file, drawn by seed")
    kept = np.sort(order[len(missing) * share :])
    parts[TRAIN] = Points(train.read, kept, "what the other splits leave of the training file")
    for name, table in tables.items():
        if name != TRAIN:
            parts[name] = Points(table.read, np.arange(len(table)), f"the {name} file")
    return {name: parts[name] for name in SPLITS}


def _standardisation(labels: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of the labels; 1 for labels that are all alike."""
    if min(labels) == max(labels):
        return labels[0], 1.0  # what rounding leaves of a deviation is none
    mean = math.fsum(labels) / len(labels)
    scale = math.sqrt(math.fsum((label - mean) ** 2 for label in labels) / len(labels))
    return mean, scale


def _samples(part: Points, mean: float = 0.0, scale: float = 1.0) -> Iterator[Mapping[str, Any]]:
    for index in part.indices:
        coordinates, values, label = part.read(int(index))
        yield {"coordinates": coordinates, "values": values, "labels": (label - mean) / scale}


# -----------------------------------------------------------------------------
# The command line: an option for each field of the settings.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare points`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add = parser.add_argument
    for name in SPLITS:
        add(f"--{name}", metavar="FILE", help=f".npz file of {name}")
    add("--samples", type=int, default=DEFAULT_SAMPLES, metavar="N", help="generated samples (default: 20000)")
    add(
        "--points",
        type=int,
        nargs=2,
        default=list(DEFAULT_POINTS),
        metavar=("FEWEST", "MOST"),
        help="points of a generated sample (default: 16 48)",
    )
    add("--seed", type=int, default=0, metavar="N", help="another one gives other samples or splits (default: 0)")
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    settings = PointsSettings(**given_options(arguments, PointsSettings))
    return describe(prepare_points(settings, arguments.output), arguments.output)
