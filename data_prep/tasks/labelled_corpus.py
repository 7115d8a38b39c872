"""A task of labelled texts: its files, their classes, and which example belongs to which split.

Splits that the files come with are kept. What is missing is cut off the training examples (off all, where there are no
splits) by a seeded hash of the content: equal texts share a split, the order and the place of the files do not matter,
and neither does the length at which a task cuts its texts.
"""

import argparse
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longmix.data_prep.class_order import class_order
from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import sha256_of_file, sha256_of_folder
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shards import SCALAR_INT64
from longmix.data_prep.split_names import (
    SPLIT_NAMES,
    SPLITS,
    TEST,
    TRAIN,
    VALIDATION,
    find_splits,
    refuse_missing_parts,
)
from longmix.data_prep.tasks.labelled_files import Example, Layout, visible
from longmix.data_prep.tasks.task_folder import LONGEST_SAMPLE, Split, check_seed, write_task

MOST_CLASSES = 1000
_PART_NUMBER = re.compile(r"-\d+-of-\d+(-[0-9a-f]{8,})?$")  # a hash may follow
_RANGE = 1 << 64


@dataclass(frozen=True, kw_only=True)
class CorpusSettings:
    """The files of a corpus, and how they are divided.

    Args:
        source: files or folders; one folder may hold the splits under their usual names.
        train, validation, test: instead of `source`, the files or folder of each split; only train is required.
        validation_share, test_share: of the training examples that become a split which the files do not have.
        share: of the examples of every split that are kept.
        seed: another one divides and chooses otherwise.

    Raises:
        UserError: with the option, its value and what is allowed.
    """

    source: tuple[str, ...] = ()
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    validation_share: float = 0.1
    test_share: float = 0.2
    share: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        named = [name for name in SPLITS if getattr(self, name) is not None]
        if self.source and named:
            raise UserError(f"--source and --{named[0]} exclude each other: give one folder or file, or the splits")
        if not self.source and self.train is None:
            raise UserError("no data given: name them with --source, or with --train and, if there are, --test")
        for name in ("validation_share", "test_share"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise UserError(f"--{name.replace('_', '-')} is {value}, but must lie between 0 and 1")
        if not self.validation_share + self.test_share < 1:
            raise UserError("--validation-share and --test-share add up to 1 or more: nothing is left to train on")
        if not 0 < self.share <= 1:
            raise UserError(f"--share is {self.share}, but must be above 0 and at most 1")
        check_seed(self.seed)

    def find_parts(self) -> dict[str, tuple[Path, ...]]:
        """The files or folders of each split that the data come with; what has no splits is TRAIN alone."""
        if not self.source:
            return {name: (Path(getattr(self, name)),) for name in SPLITS if getattr(self, name) is not None}
        paths = tuple(Path(name) for name in self.source)
        if len(set(paths)) < len(paths):
            raise UserError("--source names the same path twice: name every one once")
        if len(paths) == 1 and paths[0].is_dir():
            found = _find_splits(paths[0]) or _find_published_splits(paths[0])
            return found or _as_a_whole(paths[0])
        return {TRAIN: paths}


class LabelledCorpus:
    """The examples of a task's files, read once when made: what is wrong in them is told before anything is written.

    Args:
        settings: which files, and how they are divided.
        layout: how they are laid out.
        shortest: examples with a shorter text are left out.

    Attributes:
        classes: their names, in the order of the labels: numbers by value, others as text.

    Raises:
        UserError: a file cannot be read or is not laid out so; there are fewer than two classes, too many, or
            one that has no training example.
    """

    def __init__(self, settings: CorpusSettings, layout: Layout, shortest: int = 1):
        self.settings, self._layout, self._shortest = settings, layout, shortest
        self._parts = settings.find_parts()
        self._too_short = dict.fromkeys(self._parts, 0)
        places: dict[str, dict[str, str]] = {}  # {part: {class: where it first stands}}
        for part in self._parts:
            places[part] = {}
            for example in self._read(part):
                if example.size < shortest:
                    self._too_short[part] += 1
                elif example.label not in places[part]:
                    places[part][example.label] = example.place
                    if len(places[part]) > MOST_CLASSES:
                        raise UserError(
                            f"{example.place}: more than {MOST_CLASSES} classes: name the column of the class, or give "
                            "a folder that holds a folder for each class"
                        )
            if not places[part]:
                raise UserError(f"{self._parts[part][0]} holds no example of at least {shortest} characters")
        self.classes = sorted(places[TRAIN], key=class_order)
        self._indices = {name: index for index, name in enumerate(self.classes)}
        for part, found in places.items():
            for name, place in found.items():
                if name not in self._indices:
                    raise UserError(
                        f"{place}: the class {name!r} of the {part} split has no training example; classes there: "
                        f"{', '.join(self.classes[:10])}"
                    )
        if len(self.classes) < 2:
            raise UserError(
                f"{self._parts[TRAIN][0]}: all examples are of the class {self.classes[0]!r}: at least two are needed"
            )

    def examples(self, split: str) -> Iterator[Example]:
        """The examples of a split, in the order of the files."""
        part = split if split in self._parts else TRAIN
        for example in self._read(part):
            if example.size < self._shortest:
                continue
            digest = hashlib.blake2b(example.digest, digest_size=16, key=f"longmix-{self.settings.seed}".encode())
            place = int.from_bytes(digest.digest()[:8], "big") / _RANGE
            chosen = int.from_bytes(digest.digest()[8:], "big") / _RANGE < self.settings.share
            if chosen and (part != TRAIN or self._split_at(place) == split):
                yield example

    def splits(self, encode: Callable[[Example], Mapping[str, Any]]) -> dict[str, Split]:
        """Train, validation and test for `write_task`; `encode` as in `write`."""

        def split(name: str) -> Split:
            return Split(
                lambda: (
                    {**encode(example), "labels": self._indices[example.label]} for example in self.examples(name)
                ),
                self._rule(name),
                self._too_short.get(name, 0),
            )

        return {name: split(name) for name in SPLITS}

    def write(
        self,
        output: str | Path,
        settings: Mapping[str, Any],
        columns: Mapping[str, Mapping[str, Any]],
        encode: Callable[[Example], Mapping[str, Any]],
        **manifest_fields: Any,
    ) -> dict[str, Manifest]:
        """Write train, validation and test; returns their manifests.

        Args:
            settings: the task's own.
            columns: of the inputs.
            encode: an example -> its inputs.
            manifest_fields: of `Manifest`.
        """
        for path in (path for paths in self._parts.values() for path in paths):
            if path.is_dir() and Path(output).resolve().is_relative_to(path.resolve()):
                raise UserError(f"--output {output} lies inside {path}, which is read: choose a folder outside it")
        divided = {key: value for key, value in asdict(self.settings).items() if key not in ("source", *SPLITS)}
        return write_task(
            output,
            {**settings, **divided, "files": self._fingerprint()},
            {**columns, "labels": SCALAR_INT64},
            self.splits(encode),
            num_labels=len(self.classes),
            label_names=self.classes,
            **manifest_fields,
        )

    def _read(self, part: str) -> Iterator[Example]:
        for path in self._parts[part]:
            yield from self._layout.read(path)

    def _missing(self) -> dict[str, float]:
        """{split that the files do not have: its share of the training examples}."""
        shares = {VALIDATION: self.settings.validation_share, TEST: self.settings.test_share}
        return {name: share for name, share in shares.items() if name not in self._parts}

    def _split_at(self, place: float) -> str:
        """The split that a training example with this place in [0, 1) belongs to."""
        for name, share in self._missing().items():
            if place < share:
                return name
            place -= share
        return TRAIN

    def _rule(self, split: str) -> str:
        missing, seed = self._missing(), self.settings.seed
        by_content = f"by a hash of its content with seed {seed} (keyed BLAKE2b)"
        if split in missing:
            rule = f"{missing[split]:g} of the training files' examples, each chosen {by_content}"
        elif split == TRAIN and missing:
            rule = f"the training files without what became {' and '.join(missing)}, {by_content}"
        else:
            rule = "the files' own split"
        if self.settings.share < 1:
            rule += f"; {self.settings.share:g} of it kept, {by_content}"
        too_short = self._too_short[split if split in self._parts else TRAIN]
        if too_short:
            rule += f"; {too_short} examples of these files with a text below {self._shortest} characters left out"
        return rule

    def _fingerprint(self) -> dict[str, list[list[str]]]:
        """{split: [name, SHA-256] of its files and folders}."""
        try:
            return {
                part: [[path.name, (sha256_of_folder if path.is_dir() else sha256_of_file)(path)] for path in paths]
                for part, paths in self._parts.items()
            }
        except OSError as error:
            raise refused(f"{error.filename} cannot be read", error) from None


# -----------------------------------------------------------------------------
# The splits and classes that names tell.


def _find_splits(folder: Path) -> dict[str, tuple[Path, ...]]:
    """The splits in a folder: folders or files whose names, or last parts of them, say so; none without `train`."""
    found: dict[str, tuple[Path, ...]] = {}
    for split, aliases in SPLIT_NAMES.items():
        items = [item for item in visible(folder) if _split_name(item) in aliases]
        if len({(_PART_NUMBER.sub("", item.stem), item.suffix) for item in items}) > 1:
            raise UserError(
                f"{folder} holds more than one {split} split ({', '.join(item.name for item in items)}): name the ones "
                "that are meant with --train, --validation and --test"
            )
        if items:
            refuse_missing_parts(items)
            found[split] = tuple(items)
    return found if TRAIN in found else {}


def _find_published_splits(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Those that names tell otherwise, as reviews_train.tsv and Train do, where there is another one beside train."""
    is_table = {item: item.suffix in (".tsv", ".parquet") and item.is_file() for item in visible(folder)}
    files = [item if is_table[item] else item / "file" for item in is_table if is_table[item] or item.is_dir()]
    found = {split: tuple(paths) for split, paths in find_splits(folder, files).items()}
    taken = {path for paths in found.values() for path in paths}
    others = [item.name for item in is_table if is_table[item] and item not in taken]
    if found and others:
        names = ", ".join(path.name for path in sorted(taken))
        raise UserError(
            f"{folder} holds the splits {names}, and {', '.join(others)}: name the ones that are meant with --train, "
            "--validation and --test"
        )
    return found


def _as_a_whole(folder: Path) -> dict[str, tuple[Path, ...]]:
    """A folder without splits, unless a table in it says that it is another one than the training split."""
    held_out = (*SPLIT_NAMES[VALIDATION], *SPLIT_NAMES[TEST])
    named = [item.name for item in visible(folder) if item.is_file() and _split_name(item).lower() in held_out]
    if named:
        raise UserError(
            f"{folder} holds {', '.join(named)}, and no training split by its name: name the splits with --train, "
            "--validation and --test"
        )
    return {TRAIN: (folder,)}


def _split_name(path: Path) -> str:
    """`NAME.train.tsv`, `train-00000-of-00002.parquet` and a folder `train` are all called train."""
    if path.is_dir():
        return path.name
    return _PART_NUMBER.sub("", path.stem).rpartition(".")[2] if path.suffix in (".tsv", ".parquet") else ""


# -----------------------------------------------------------------------------
# The command line: options of every task of labelled texts.


def add_corpus_options(parser: argparse.ArgumentParser, files: str, validation_share: float, test_share: float) -> None:
    """Add the options of `CorpusSettings`; `files` says in the help what they are."""
    add = parser.add_argument
    add("--source", action="append", default=[], metavar="PATH", help=f"{files}; repeatable where there are no splits")
    add("--train", metavar="PATH", help="instead of --source: the training split's file or folder")
    add("--validation", metavar="PATH", help="with --train: the validation split's")
    add("--test", metavar="PATH", help="with --train: the test split's")
    help_text = "of the training examples, where the files have no {} split (default: {:g})"
    for split, share in ((VALIDATION, validation_share), (TEST, test_share)):
        add(f"--{split}-share", type=float, default=share, metavar="X", help=help_text.format(split, share))
    add("--share", type=float, default=1.0, metavar="X", help="keep only this share of every split (default: 1)")
    add("--seed", type=int, default=0, metavar="N", help="of the splits made here, and of --share (default: 0)")


def check_length(length: int) -> None:
    """Raises UserError for a --length that cannot be."""
    if not 1 <= length <= LONGEST_SAMPLE:
        raise UserError(f"--length is {length}, but must be 1 to {LONGEST_SAMPLE}")
