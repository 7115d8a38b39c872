"""The Image task of Long Range Arena: an image as the sequence of its gray pixels, row by row.

CIFAR-10 gives 1024 tokens of 256 gray values. Noise as in S3Attention, table 5 (section IV-E): it is added to every
position when the samples are made, those to train on included; here it is one draw for each image, the same in every
epoch. Whether an image stands in two splits is decided by its pixels without noise.
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
from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64
from longmix.data_prep.split_names import TEST, TRAIN
from longmix.data_prep.tasks.images.image_sources import (
    GRAYS,
    SPLIT_RULES,
    Images,
    ImageSource,
    add_source_arguments,
    to_gray,
)
from longmix.data_prep.tasks.task_folder import (
    COMPARED,
    FIRST_VALUE,
    TOKEN_FIELDS,
    Split,
    check_seed,
    describe,
    write_task,
)

ALL, TEST_ONLY = "all", "test"
_FORMAT = 2  # raise it when the same settings are to give other samples
_FILES = (TRAIN, TEST)

_DESCRIPTION = """\
Make the Image task of Long Range Arena: classify images given as sequences of gray pixels (CIFAR-10: 1024 tokens).

DIR gets train/, validation/ (a tenth of the training images, drawn by seed) and test/ (the official test images), for
runs with objective.name=classification. Colours become gray by rint(0.2989 R + 0.5870 G + 0.1140 B).
"""
_EXAMPLES = """\
examples:
  longmix prepare image --cifar cifar-10-batches-bin --output data/image
  longmix prepare image --cifar cifar-10-batches-bin --noise 8 --output data/image-noise-8
  longmix prepare image --train train.npy train_labels.npy --test test.npy test_labels.npy --output data/image
"""


@dataclass(frozen=True)
class ImageSettings:
    """The settings that decide every sample.

    Args:
        source: the images.
        noise: K: to each pixel a whole number from -K to K is added, all as likely, and the sum clipped to 0 .. 255.
        noise_splits: all (S3Attention) | test (trained on clean images).
        size: None, or pixels of a side to which blocks are averaged; it divides both sides.
        samples: None, or images to train on; the other splits keep the same share.
        seed: draws the validation split and the noise.

    Raises:
        UserError: with the option, its value and what is allowed.
    """

    source: ImageSource
    noise: int = 0
    noise_splits: str = ALL
    size: int | None = None
    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.noise < GRAYS:
            raise UserError(f"--noise is {self.noise}, but must be 0 to {GRAYS - 1}")
        if self.noise_splits not in (ALL, TEST_ONLY):
            raise UserError(f"--noise-splits is {self.noise_splits!r}, but must be {ALL} or {TEST_ONLY}")
        check_seed(self.seed)


def prepare_image(settings: ImageSettings, output: str | Path) -> dict[str, Manifest]:
    """Write `output/train`, `output/validation` and `output/test`; returns their manifests. See `write_task`."""
    sources = settings.source.open()
    height, width, _ = sources.images[TRAIN].shape
    side = settings.size
    if side is not None and (side < 1 or height % side or width % side):
        raise UserError(f"--size is {side}, but must divide the images' {height} rows and {width} columns")
    splits = {}
    for name, (images, indices) in sources.split(settings.seed, settings.samples).items():
        file = TEST if name == TEST else TRAIN
        noise = 0 if settings.noise_splits == TEST_ONLY and name != TEST else settings.noise

        def samples(images=images, indices=indices, file=file, noise=noise) -> Iterator[Mapping[str, Any]]:
            for index in indices:
                yield make_sample(images, int(index), file, settings, noise)

        rule = SPLIT_RULES[name] if settings.samples is None else f"{SPLIT_RULES[name]}; a part of it, drawn by seed"
        splits[name] = Split(samples, rule)
    return write_task(
        output,
        {
            "name": "image",
            "format": _FORMAT,
            "noise": settings.noise,
            "noise_splits": settings.noise_splits,
            "size": side,
            "samples": settings.samples,
            "seed": settings.seed,
            "files": sources.fingerprints(),
        },
        {"input_ids": LIST_INT32, "labels": SCALAR_INT64},
        splits,
        vocab_size=FIRST_VALUE + GRAYS,
        **TOKEN_FIELDS,
        sequence_length=height * width if side is None else side * side,
        num_labels=sources.num_labels,
        label_names=sources.label_names,
    )


def make_sample(images: Images, index: int, file: str, settings: ImageSettings, noise: int) -> dict[str, Any]:
    """Image `index` of `file` (train | test) as `input_ids` (N,), gray values from FIRST_VALUE on, and `labels`.

    COMPARED holds the gray values without noise. The noise is a function of (settings.seed, file, index): it does not
    depend on the split that the image is in.
    """
    clean = pixels = shrink(to_gray(images[index]), settings.size).reshape(-1).astype(np.int64)
    if noise:
        generator = np.random.default_rng([_FORMAT, settings.seed, _FILES.index(file), index])
        pixels = np.clip(pixels + generator.integers(-noise, noise + 1, len(pixels)), 0, GRAYS - 1)
    return {"input_ids": FIRST_VALUE + pixels, "labels": int(images.labels[index]), COMPARED: clean}


def shrink(gray: np.ndarray, side: int | None) -> np.ndarray:
    """(H, W) -> (side, side): rounded means of blocks; None leaves it as it is."""
    if side is None:
        return gray
    height, width = gray.shape
    blocks = gray.reshape(side, height // side, side, width // side)
    return np.rint(blocks.mean(axis=(1, 3))).astype(np.uint8)


# -----------------------------------------------------------------------------
# The command line: an option for each field of the settings.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare image`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add = parser.add_argument
    add_source_arguments(add)
    add("--noise", type=int, default=0, metavar="K", help="add -K to K to each pixel (default: 0; paper: 2, 4, 8)")
    add("--noise-splits", choices=(ALL, TEST_ONLY), default=ALL, help="which splits have noise (default: all)")
    add("--size", type=int, metavar="N", help="average blocks of pixels to N x N (default: as they are)")
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    source = ImageSource(**given_options(arguments, ImageSource))
    settings = ImageSettings(source=source, **given_options(arguments, ImageSettings))
    return describe(prepare_image(settings, arguments.output), arguments.output)
