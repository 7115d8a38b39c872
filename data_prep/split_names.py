"""The splits of a data set, and the names that published data sets give to the files of theirs."""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from longmix.data_prep.errors import UserError

SPLITS = TRAIN, VALIDATION, TEST = "train", "validation", "test"
SPLIT_NAMES = {
    TRAIN: ("train", "training", "trainset"),
    VALIDATION: ("validation", "valid", "val", "dev", "eval"),
    TEST: ("test", "testing", "testset"),
}
_SPLITS = {word: split for split, words in SPLIT_NAMES.items() for word in words}
_WORD = f"(?P<word>{'|'.join(_SPLITS)})"
# wiki.train.tokens, train.csv, wiki_test.txt, train_en.txt, train-00000-of-00002.parquet (a hash may follow).
_FORM = re.compile(
    rf"(?P<before>(?:.+[._-])?){_WORD}(?P<between>(?:[_-][^.]*?)??)(?:[._-]?\d+(?:-of-\d+(?:-[0-9a-f]{{8,}})?)?)?"
    r"(?P<after>(?:\..*)?)",
    re.IGNORECASE,
)
# One of so many files, as the hub numbers them (a hash may follow).
_PART = re.compile(
    r"(?P<name>.+)-(?P<number>\d{1,9})-of-(?P<count>\d{1,9})(?:-[0-9a-f]{8,})?(?P<suffix>\..*)?", re.DOTALL
)
# Programs are called train and test, too.
_PROGRAM = re.compile(
    r"\.(?:bat|bash|c|cc|cmake|cpp|cs|cu|cuh|cxx|dart|f90|go|h|hh|hpp|hs|ipynb|java|jl|js|jsx|kt|lua|m|ml|mojo|php|pl|pm"
    r"|ps1|py|pyi|pyx|r|rb|rs|s|scala|sh|sql|swift|ts|tsx|vue|zig)",
    re.IGNORECASE,
)


def without_split(data: Path) -> Path:
    """The folder of a data set, given that of one of its splits."""
    return data.parent if data.name in SPLITS and data.parent.name else data


def find_splits(folder: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """The splits of a data set, by their names, among the `files` below `folder` and the folders that hold them.

    A training split and another one must lie side by side, at any depth, and be called alike but for the split, shard
    and suffix; otherwise none is found. Of several data sets the first is returned, folders before files, the least
    deep first; where its files are there in several forms (.tokens, .raw), one of these.
    """
    inside = {parent for file in files for parent in file.parents if folder in parent.parents}
    places: dict[tuple[Path, str, str], dict[str, list[tuple[str, Path]]]] = {}
    for path in sorted(inside, key=lambda path: (len(path.parts), path)):
        if path.name.lower() in _SPLITS:
            place = places.setdefault((path.parent, "/", ""), {})
            place.setdefault(_SPLITS[path.name.lower()], []).append(("", path))
    for file in files:
        found = _FORM.fullmatch(file.name)
        if found is not None and _PROGRAM.fullmatch(file.suffix) is None:
            place = places.setdefault((file.parent, found["before"].rstrip("._-"), found["between"]), {})
            place.setdefault(_SPLITS[found["word"].lower()], []).append((found["after"], file))
    for place in places.values():
        if TRAIN in place and len(place) > 1:
            form = place[TRAIN][0][0]
            return {
                split: [path for after, path in place[split] if after == form] or [path for _, path in place[split]]
                for split in SPLIT_NAMES
                if split in place
            }
    return {}


def refuse_missing_parts(paths: Iterable[Path]) -> None:
    """Raise `UserError` where a file that is one of so many, train-00000-of-00003.parquet, is there without the others,
    or beside those of another number.
    """
    parts: dict[tuple[Path, str], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for path in paths:
        if (found := _PART.fullmatch(path.name)) is not None:
            named = f"{found['name']}-*{found['suffix'] or ''}"
            parts[path.parent, named][int(found["count"])].add(int(found["number"]))
    for (folder, named), counts in parts.items():
        if len(counts) > 1:
            told = " and ".join(str(count) for count in sorted(counts))
            raise UserError(f"{folder} holds parts of {told} of {named}: leave those of one number there")
        ((count, numbers),) = counts.items()
        if len(numbers) < count:
            first = 1 if count in numbers else 0
            missing = next(number for number in itertools.count(first) if number not in numbers)
            raise UserError(
                f"{folder} holds {len(numbers)} of the {count} parts of {named} ({missing:05d} is missing): bring back "
                "what was there, or give those that are meant other names"
            )
