"""Images as sequences of patches, real-valued: what FLT's ViT (section 5.2) reads.

A patch of p x p pixels is one position; its p * p * channels values are standardised per channel by the mean and
standard deviation of the images that are trained on.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import SCALAR_INT64
from longmix.data_prep.split_names import TRAIN
from longmix.data_prep.tasks.images.image_sources import (
    SPLIT_RULES,
    Images,
    ImageSource,
    add_source_arguments,
    to_gray,
)
from longmix.data_prep.tasks.task_folder import Split, check_seed, describe, kept_in, write_task

_FORMAT = 1  # raise it when the same settings are to give other samples

_DESCRIPTION = """\
Cut images into patches, for models of real values (model.input_channels = C) and objective.name=classification.

DIR gets train/, validation/ (a tenth of the training images, drawn by seed) and test/. A sample has the columns values
(N, C), its N patches row by row, each of C = p * p * channels standardised values, and labels; with --coordinates also
coordinates (N, 2), row and column of each patch (FLT, model.coordinate_dimensions = 2); without, positions are indices.
"""
_EXAMPLES = """\
example:
  longmix prepare patches --cifar cifar-10-batches-bin --patch-size 4 --coordinates --output data/patches
"""


@dataclass(frozen=True)
class PatchesSettings:
    """The settings that decide every sample.

    Args:
        source: the images.
        patch_size: p, which divides both sides of the images.
        coordinates: whether samples have the column `coordinates`.
        gray: colours become gray first.
        samples: None, or images to train on; the other splits keep the same share.
        seed: draws the validation split.

    Raises:
        UserError: with the option, its value and what is allowed.
    """

    source: ImageSource
    patch_size: int = 4
    coordinates: bool = False
    gray: bool = False
    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)


def prepare_patches(settings: PatchesSettings, output: str | Path) -> dict[str, Manifest]:
    """Write `output/train`, `output/validation` and `output/test`; returns their manifests. See `write_task`."""
    sources = settings.source.open()
    height, width, _ = sources.images[TRAIN].shape
    size = settings.patch_size
    if size < 1 or height % size or width % size:
        raise UserError(f"--patch-size is {size}, but must divide the images' {height} rows and {width} columns")
    parts = sources.split(settings.seed, settings.samples)
    given = {}
    for name, (images, indices) in parts.items():
        rule = SPLIT_RULES[name] if settings.samples is None else f"{SPLIT_RULES[name]}; a part of it, drawn by seed"
        given[name] = Split(lambda images=images, indices=indices: _samples(images, indices, settings.gray), rule)
    mean, scale = statistics(sample["values"] for sample in kept_in(TRAIN, given))

    def as_patches(images: Split) -> Iterator[Mapping[str, Any]]:
        for image in images.samples():
            sample = {**image, "values": cut((image["values"] - mean) / scale, size)}
            if settings.coordinates:
                sample["coordinates"] = grid(height // size, width // size)
            yield sample

    splits = {name: Split(lambda images=images: as_patches(images), images.rule) for name, images in given.items()}
    features = size * size * len(mean)
    columns = {"values": {"dtype": "float32", "shape": [None, features]}, "labels": SCALAR_INT64}
    if settings.coordinates:
        columns["coordinates"] = {"dtype": "float32", "shape": [None, 2]}
    return write_task(
        output,
        {
            "name": "patches",
            "format": _FORMAT,
            "patch_size": size,
            "coordinates": settings.coordinates,
            "gray": settings.gray,
            "samples": settings.samples,
            "seed": settings.seed,
            "mean": mean.tolist(),
            "scale": scale.tolist(),
            "files": sources.fingerprints(),
        },
        columns,
        splits,
        sequence_length=(height // size) * (width // size),
        num_labels=sources.num_labels,
        label_names=sources.label_names,
    )


# -----------------------------------------------------------------------------
# From pixels to patches: sums of whole numbers are exact, so the scale does not depend on the order of the images.


def statistics(images: Iterator[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel, (C,), over whole-valued images (H, W, C): exact, whatever the order.

    A channel that never varies has the standard deviation 1.
    """
    count, total, squares = 0, 0, 0
    for image in images:
        pixels = image.reshape(-1, image.shape[-1]).astype(np.int64)
        count += len(pixels)
        total = total + pixels.sum(axis=0)
        squares = squares + (pixels * pixels).sum(axis=0)
    mean = total / count
    scale = np.sqrt(np.maximum(squares / count - mean * mean, 0))
    return mean, np.where(scale > 0, scale, 1)


def cut(image: np.ndarray, size: int) -> np.ndarray:
    """(H, W, C) -> (N, size * size * C) float32: patches row by row, in each its pixels row by row, channels last."""
    height, width, channels = image.shape
    blocks = image.reshape(height // size, size, width // size, size, channels).swapaxes(1, 2)
    return blocks.reshape(-1, size * size * channels).astype(np.float32)


def grid(rows: int, columns: int) -> np.ndarray:
    """(rows * columns, 2) float32: the row and the column of each patch."""
    return np.stack(np.divmod(np.arange(rows * columns), columns), axis=1).astype(np.float32)


def _samples(images: Images, indices: np.ndarray, gray: bool) -> Iterator[Mapping[str, Any]]:
    """Pixels, (H, W, C) uint8 each, C 1 if gray, as `values`, and `labels`."""
    for index in indices:
        image = images[int(index)]
        yield {"values": to_gray(image)[..., None] if gray else image, "labels": int(images.labels[index])}


# -----------------------------------------------------------------------------
# The command line: an option for each field of the settings.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare patches`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add = parser.add_argument
    add_source_arguments(add)
    add("--patch-size", type=int, default=4, metavar="P", help="pixels of a patch's side (default: 4)")
    add("--coordinates", action="store_true", help="write each patch's row and column (default: indices only)")
    add("--gray", action="store_true", help="turn colours into gray first")
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    source = ImageSource(**given_options(arguments, ImageSource))
    settings = PatchesSettings(source=source, **given_options(arguments, PatchesSettings))
    return describe(prepare_patches(settings, arguments.output), arguments.output)
