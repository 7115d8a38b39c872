"""The Pathfinder task of Long Range Arena: an image as the sequence of its gray pixels, joined discs or not.

The images are generated (pathfinder_images.py), or read from the release: a folder curv_baseline (paths of 6 dashes),
curv_contour_length_9 or curv_contour_length_14 with metadata/*.npy, which are lines of text in spite of their name
(folder, file, number, label, and what else the generator was given), and the images in imgs/*/sample_*.png.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError, reason_of
from longmix.data_prep.files import require_input, sha256_of_folder
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64
from longmix.data_prep.split_names import TEST, TRAIN, VALIDATION
from longmix.data_prep.tasks.images.image_sources import GRAYS
from longmix.data_prep.tasks.images.pathfinder_images import PATH_LENGTHS, SIDE, make_image
from longmix.data_prep.tasks.task_folder import FIRST_VALUE, TOKEN_FIELDS, Split, check_seed, describe, write_task
from longmix.kernels.common.safe_files import read_input

FOLDERS = dict(zip(PATH_LENGTHS, ("curv_baseline", "curv_contour_length_9", "curv_contour_length_14"), strict=True))
LABEL_NAMES = ["not joined", "joined"]
DEFAULT_SAMPLES = 160000  # of the release's 200000
PARTS = 10  # of them, one each is validation and test
LARGEST_SIDE = 512
_LARGEST_METADATA = 2**28
_FORMAT = 1  # raise it when the same settings are to give other samples

_DESCRIPTION = """\
Make the Pathfinder task of Long Range Arena: two discs, and among many dashed paths one joins them, or none does.

DIR gets train/, validation/ and test/ (80, 10 and 10 %), for runs with objective.name=classification. Images of 32 x 32
pixels are generated, both classes alike often; --source reads the release's instead, cut by seed (its own split is an
order of files that it does not contain).
"""
_EXAMPLES = """\
examples:
  longmix prepare pathfinder --output data/pathfinder
  longmix prepare pathfinder --path-length 6 --samples 20000 --output data/pathfinder-easy
  longmix prepare pathfinder --source lra_release/pathfinder32 --output data/pathfinder-official
"""


@dataclass(frozen=True)
class PathfinderSettings:
    """The settings that decide every sample.

    Args:
        path_length: dashes of a path: 6 (easy), 9 (intermediate) or 14 (hard, Long Range Arena's).
        source: the release's folder, which holds FOLDERS, or one of these itself; None: images are generated.
        samples: images to train on; validation and test get an eighth as many each. None: all of a release, or
            DEFAULT_SAMPLES.
        seed: another one gives other images, or another split of the release.

    Raises:
        UserError: with the option, its value and what is allowed.
    """

    path_length: int = 14
    source: str | None = None
    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.path_length not in PATH_LENGTHS:
            allowed = ", ".join(map(str, PATH_LENGTHS))
            raise UserError(f"--path-length is {self.path_length}, but must be one of {allowed}")
        if self.samples is not None and self.samples < 1:
            raise UserError(f"--samples is {self.samples}, but must be at least 1")
        check_seed(self.seed)


def prepare_pathfinder(settings: PathfinderSettings, output: str | Path) -> dict[str, Manifest]:
    """Write `output/train`, `output/validation` and `output/test`; returns their manifests. See `write_task`."""
    task: dict[str, Any] = {"name": "pathfinder", "format": _FORMAT, "path_length": settings.path_length}
    if settings.source is None:
        count = DEFAULT_SAMPLES if settings.samples is None else settings.samples
        counts = {TRAIN: count, VALIDATION: _share(count), TEST: _share(count)}
        splits = {
            name: Split(
                lambda name=name, count=count: _generated(settings, name, count),
                "images of their own, drawn by split, seed and number; balanced classes",
            )
            for name, count in counts.items()
        }
        task |= {"samples": count}
        side = SIDE
    else:
        release = Release(settings.source, settings.path_length)
        order = np.random.default_rng([settings.seed, len(release)]).permutation(len(release))
        tenth = len(release) // PARTS
        most = len(release) - 2 * tenth
        count = most if settings.samples is None else settings.samples
        if tenth == 0 or count > most:
            raise UserError(f"{release.folder} has {len(release)} images: too few for {max(1, count)} to train on")
        held_out = max(1, tenth * count // most)
        parts = {
            TRAIN: order[2 * tenth : 2 * tenth + count],
            VALIDATION: order[:held_out],
            TEST: order[tenth : tenth + held_out],
        }
        rule = "80 / 10 / 10 % of the release, drawn by seed" + ("" if count == most else "; a part of each")
        splits = {
            name: Split(lambda part=part: (_sample(*release.read(int(index))) for index in np.sort(part)), rule)
            for name, part in parts.items()
        }
        task |= {"samples": settings.samples, "source": sha256_of_folder(release.folder), "empty": release.empty}
        side = release.side
    return write_task(
        output,
        task | {"seed": settings.seed},
        {"input_ids": LIST_INT32, "labels": SCALAR_INT64},
        splits,
        vocab_size=FIRST_VALUE + GRAYS,
        **TOKEN_FIELDS,
        sequence_length=side * side,
        num_labels=len(LABEL_NAMES),
        label_names=LABEL_NAMES,
    )


# -----------------------------------------------------------------------------
# The official release: lists of files from outside, so no path in them is trusted.


class Release:
    """The images of one difficulty of the official release.

    Args:
        source: the release's folder, or the one of the difficulty.
        path_length: chooses the folder in it.

    Attributes:
        folder: that of the difficulty.
        side: rows and columns of the images.
        empty: listed images whose files have no bytes (the release has one); they are left out.

    Raises:
        UserError: a folder or file is missing, or a line of the metadata is not what it should be.
    """

    def __init__(self, source: str | Path, path_length: int) -> None:
        self.folder = Path(source)
        if not (self.folder / "metadata").is_dir():
            self.folder = self.folder / FOLDERS[path_length]
        elif self.folder.name in FOLDERS.values() and self.folder.name != FOLDERS[path_length]:
            raise UserError(f"--source {source} has no paths of --path-length {path_length}: give the other number")
        metadata = self.folder / "metadata"
        files = sorted((*metadata.glob("*.npy"), *metadata.glob("*.txt")), key=_by_number)
        if not files:
            raise UserError(
                f"--source {source} holds no {FOLDERS[path_length]}/metadata/*.npy: name the release's folder that "
                "holds it (pathfinder32), or that folder itself"
            )
        self._images: list[tuple[str, int]] = []
        self.empty = 0
        for file in files:
            for name, label in _metadata(file):
                try:
                    size = (self.folder / name).stat().st_size
                except (OSError, ValueError) as error:
                    raise UserError(f"{file} lists {name}, which cannot be read: {error}") from None
                if size:
                    self._images.append((name, label))
                else:
                    self.empty += 1
        if not self._images:
            raise UserError(f"{metadata} lists no images: the release is not complete")
        self.side = len(_read_png(self.folder / self._images[0][0]))

    def __len__(self) -> int:
        return len(self._images)

    def read(self, index: int) -> tuple[np.ndarray, int]:
        """Image `index`, (side, side) uint8, and its label. Raises `UserError` if it is damaged or of another size."""
        name, label = self._images[index]
        image = _read_png(self.folder / name)
        if image.shape != (self.side, self.side):
            raise UserError(f"{self.folder / name} has {image.shape} pixels, the first image {self.side} x {self.side}")
        return image, label


def _metadata(file: Path) -> Iterator[tuple[str, int]]:
    """(path in the folder, label) of each line."""
    try:
        lines = read_input(file, _LARGEST_METADATA).decode().splitlines()
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{file} is not the text that the release has there: download it again") from None
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) < 4 or fields[3] not in ("0", "1"):
            raise UserError(f"{file}, line {number}: {line[:80]!r} should be a folder, a file, a number, 0 or 1, ...")
        path = PurePosixPath(fields[0], fields[1])
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{file}, line {number}: {str(path)[:80]!r} leads out of the release")
        yield str(path), int(fields[3])


def _by_number(path: Path) -> tuple[int, str]:
    digits = re.sub(r"\D", "", path.stem)
    return int(digits[:9] or 0), path.name


def _read_png(path: Path) -> np.ndarray:
    """(H, W) uint8 of a PNG of bounded size."""
    from PIL import Image  # tensorboard and matplotlib bring it: no other reader of PNG is there

    require_input(path)
    try:
        with Image.open(path, formats=["PNG"]) as image:
            if max(image.size) > LARGEST_SIDE:
                raise UserError(f"{path} has {image.size} pixels: at most {LARGEST_SIDE} a side are read")
            return np.asarray(image.convert("L"))
    except UserError:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is no PNG image, or a damaged one: {reason_of(error)}") from None


# -----------------------------------------------------------------------------
# Samples, generated or read: gray values are the ids that follow those of padding and mask.


def _generated(settings: PathfinderSettings, split: str, count: int) -> Iterator[Mapping[str, Any]]:
    for index in range(count):
        yield _sample(*make_image(settings.path_length, settings.seed, split, index))


def _sample(image: np.ndarray, label: int) -> Mapping[str, Any]:
    return {"input_ids": FIRST_VALUE + image.reshape(-1).astype(np.int64), "labels": label}


def _share(samples: int) -> int:
    return -(-samples // (PARTS - 2))


# -----------------------------------------------------------------------------
# The command line: an option for each field of the settings.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare pathfinder`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add = parser.add_argument
    add("--path-length", type=int, default=14, metavar="N", help="6 (easy), 9, or 14 dashes a path (default: 14, hard)")
    add("--source", metavar="DIR", help="the official release's folder (pathfinder32) instead of generated images")
    add(
        "--samples",
        type=int,
        metavar="N",
        help=f"images to train on, and an eighth as many for each other split (default: {DEFAULT_SAMPLES}, or "
        "all of the release)",
    )
    add("--seed", type=int, default=0, metavar="N", help="another one gives other images or another split (default: 0)")
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    settings = PathfinderSettings(**given_options(arguments, PathfinderSettings))
    return describe(prepare_pathfinder(settings, arguments.output), arguments.output)
