"""The splits of a data set, and the names that published data sets give to the files of theirs."""

import re
from collections.abc import Sequence
from pathlib import Path

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
