"""Labelled images from files: CIFAR-10's binary version, or .npy arrays.

The test files are the test split; validation is cut off the training files. Files are mapped, so that memory does not
grow with them.
"""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import sha256_of_file
from longmix.data_prep.split_names import TEST, TRAIN, VALIDATION
from longmix.data_prep.tasks.arrays import read_npy
from longmix.kernels.common.safe_files import read_input

CIFAR_SIDE, CIFAR_CHANNELS = 32, 3
CIFAR_RECORD = 1 + CIFAR_CHANNELS * CIFAR_SIDE**2  # the label, then the red, green and blue plane, row by row
CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_TEST = "test_batch.bin"
CIFAR_NAMES = "batches.meta.txt"
CIFAR_CLASSES = 10
GRAYS = 256
VALIDATION_SHARE = 10  # one of so many training images is held out
LARGEST_SIDE = 1024
LARGEST_LABEL = 1 << 20
SPLIT_RULES = {
    TRAIN: "what validation leaves of the training files",
    VALIDATION: f"1 of {VALIDATION_SHARE} images of the training files, drawn by seed",
    TEST: "the test files",
}
# ITU-R BT.601's luma, with as many digits as the Image task's common conversions have.
_RED, _GREEN, _BLUE = 0.2989, 0.5870, 0.1140


class Images:
    """Images of one size, (H, W, C) uint8 each, with labels.

    Args:
        pieces: arrays (M, H, W, C); they follow one another.
        labels: (sum of M,) int64.
    """

    def __init__(self, pieces: Sequence[np.ndarray], labels: np.ndarray) -> None:
        self.labels = labels
        self._pieces = pieces
        self._ends = list(itertools.accumulate(len(piece) for piece in pieces))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> np.ndarray:
        """Image `index`, (H, W, C) uint8."""
        piece = bisect.bisect_right(self._ends, index)
        return np.asarray(self._pieces[piece][index - self._ends[piece]])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C)."""
        return self._pieces[0].shape[1:]


@dataclass(frozen=True)
class ImageSource:
    """The place of images: the folder of CIFAR-10's binary version, or .npy files of images and labels.

    The images of .npy files are uint8 of shape (M, H, W) or (M, H, W, C), with C 1 or 3; labels are whole numbers (M,).

    Args:
        cifar: the folder, or None.
        train: (file of images, file of labels), unless `cifar` is given.
        test: the same of the test set.
    """

    cifar: str | None = None
    train: tuple[str, str] | None = None
    test: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if (self.cifar is None) == (self.train is None and self.test is None):
            raise UserError("give either --cifar DIR, or --train and --test with their .npy files")
        if self.cifar is None and (self.train is None or self.test is None):
            raise UserError("--train and --test belong together: give the .npy files of both")

    def open(self) -> "Sources":
        """Raises `UserError`: a file is missing, damaged, or of another shape than is allowed; there is one class."""
        sources = self._open_npy_files() if self.cifar is None else _open_cifar(Path(self.cifar))
        labels = sources.images[TRAIN].labels
        if labels.min() == labels.max():
            place = self.train[1] if self.cifar is None else self.cifar
            raise UserError(f"{place}: all images to train on are of the class {labels[0]}: at least two are needed")
        return sources

    def _open_npy_files(self) -> "Sources":
        opened = {name: _open_npy(*files) for name, files in ((TRAIN, self.train), (TEST, self.test))}
        if opened[TRAIN].shape != opened[TEST].shape:
            raise UserError(
                f"{self.test[0]} holds images of shape {opened[TEST].shape}, but {self.train[0]} of "
                f"{opened[TRAIN].shape}: both must be of one size"
            )
        num_labels = int(opened[TRAIN].labels.max()) + 1
        unknown = np.flatnonzero(opened[TEST].labels >= num_labels)
        if len(unknown):
            raise UserError(
                f"{self.test[1]}: label {unknown[0]} (counted from 0) is {opened[TEST].labels[unknown[0]]}, but the "
                f"labels of {self.train[1]} end at {num_labels - 1}"
            )
        return Sources(opened, num_labels, None, [*self.train, *self.test])


@dataclass(frozen=True)
class Sources:
    """The images of `train` and `test`, the number of their classes and perhaps names, and the files read."""

    images: dict[str, Images]
    num_labels: int
    label_names: list[str] | None
    files: list[str | Path]

    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of each file, by its name without folders."""
        return {f"{number} {Path(file).name}": sha256_of_file(file) for number, file in enumerate(self.files)}

    def split(self, seed: int, samples: int | None) -> dict[str, tuple[Images, np.ndarray]]:
        """For each split its images and the sorted indices of those that belong to it.

        `samples` leaves so many to train on, and of the other splits the same share.

        Raises:
            UserError: the files hold fewer than `samples`, or too few for a validation split.
        """
        train, test = self.images[TRAIN], self.images[TEST]
        held_out = len(train) // VALIDATION_SHARE
        if held_out == 0:
            raise UserError(f"--train has {len(train)} images: validation needs at least {VALIDATION_SHARE}")
        most = len(train) - held_out
        if samples is not None and not 1 <= samples <= most:
            raise UserError(f"--samples is {samples}, but must be 1 to {most}: the rest of the files is validation")
        kept = most if samples is None else samples
        order = np.random.default_rng([seed, len(train)]).permutation(len(train))
        test_order = np.random.default_rng([seed, len(test), 1]).permutation(len(test))
        share = [max(1, count * kept // most) for count in (held_out, len(test))]
        return {
            TRAIN: (train, np.sort(order[held_out : held_out + kept])),
            VALIDATION: (train, np.sort(order[: share[0]])),
            TEST: (test, np.sort(test_order[: share[1]])),
        }


# -----------------------------------------------------------------------------
# Gray values and options, the same for every task that reads images.


def to_gray(image: np.ndarray) -> np.ndarray:
    """(H, W, C) uint8, C 1 or 3 -> (H, W) uint8: rint(0.2989 R + 0.5870 G + 0.1140 B)."""
    if image.shape[-1] == 1:
        return image[..., 0]
    # In this order, not as a product of matrices: sums that end in exactly one half would be rounded either way.
    return np.rint(_RED * image[..., 0] + _GREEN * image[..., 1] + _BLUE * image[..., 2]).astype(np.uint8)


def add_source_arguments(add: Any) -> None:
    """The options of `ImageSource`; `add` is a parser's add_argument."""
    add("--cifar", metavar="DIR", help="folder of CIFAR-10's binary version: data_batch_1 to 5.bin, test_batch.bin")
    add("--train", nargs=2, metavar=("IMAGES", "LABELS"), help=".npy files: uint8 (M, H, W) or (M, H, W, 3); labels")
    add("--test", nargs=2, metavar=("IMAGES", "LABELS"), help="the same of the test set")
    add("--samples", type=int, metavar="N", help="train on N images, and keep the same share of the other splits")
    add("--seed", type=int, default=0, metavar="N", help="draws the validation split and the noise (default: 0)")


# -----------------------------------------------------------------------------
# Reading files: they are mapped, and checked before the first sample is written.


def _open_cifar(folder: Path) -> Sources:
    missing = [name for name in (*CIFAR_TRAIN, CIFAR_TEST) if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"--cifar {folder} has no {', '.join(missing)}: name the unpacked folder of CIFAR-10's binary version, "
            "with all six files (the Python version is pickled, and is not read)"
        )
    train, test = [folder / name for name in CIFAR_TRAIN], folder / CIFAR_TEST
    images = {TRAIN: _read_cifar(train), TEST: _read_cifar([test])}
    names = folder / CIFAR_NAMES
    label_names = None
    if names.is_file():
        try:
            label_names = read_input(names, CIFAR_RECORD).decode().split()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{names} cannot be read: {error}") from None
        if len(label_names) != CIFAR_CLASSES:
            raise UserError(f"{names} has {len(label_names)} names, but CIFAR-10 has {CIFAR_CLASSES} classes")
    return Sources(images, CIFAR_CLASSES, label_names, [*train, test])


def _read_cifar(files: list[Path]) -> Images:
    pieces, labels = [], []
    for file in files:
        try:
            size = file.stat().st_size
            if size == 0 or size % CIFAR_RECORD:
                raise UserError(f"{file} has {size} bytes, which is no number of whole records of {CIFAR_RECORD}")
            records = np.memmap(file, dtype=np.uint8, mode="r").reshape(-1, CIFAR_RECORD)
        except OSError as error:
            raise refused(f"{file} cannot be read", error) from None
        wrong = np.flatnonzero(records[:, 0] >= CIFAR_CLASSES)
        if len(wrong):
            raise UserError(
                f"{file}: record {wrong[0]} (counted from 0) has the label {records[wrong[0], 0]}, allowed: 0 to "
                f"{CIFAR_CLASSES - 1}; this is no CIFAR-10, or it is damaged"
            )
        planes = records[:, 1:].reshape(-1, CIFAR_CHANNELS, CIFAR_SIDE, CIFAR_SIDE)
        pieces.append(planes.transpose(0, 2, 3, 1))
        labels.append(records[:, 0].astype(np.int64))
    return Images(pieces, np.concatenate(labels))


def _open_npy(images: str, labels: str) -> Images:
    pixels, classes = read_npy(images), read_npy(labels)
    shape = pixels.shape
    if pixels.dtype != np.uint8 or len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)):
        raise UserError(
            f"{images} holds {pixels.dtype} of shape {shape}, but must hold uint8 of shape (M, H, W), (M, H, W, 1) or "
            "(M, H, W, 3)"
        )
    if not shape[0] or not all(1 <= side <= LARGEST_SIDE for side in shape[1:3]):
        raise UserError(f"{images} has the shape {shape}: it needs an image, and sides of 1 to {LARGEST_SIDE} pixels")
    if classes.dtype.kind not in "iu" or classes.shape != shape[:1]:
        raise UserError(
            f"{labels} holds {classes.dtype} of shape {classes.shape}, but must hold a whole number for each of the "
            f"{shape[0]} images in {images}"
        )
    wrong = np.flatnonzero((classes < 0) | (classes > LARGEST_LABEL))
    if len(wrong):
        raise UserError(
            f"{labels}: label {wrong[0]} (counted from 0) is {classes[wrong[0]]}, allowed: 0 to {LARGEST_LABEL}"
        )
    return Images([pixels if len(shape) == 4 else pixels[..., None]], classes.astype(np.int64))
