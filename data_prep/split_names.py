"""What published data sets call the files of their splits."""

import re
from collections.abc import Sequence
from pathlib import Path

TRAIN, VALIDATION, TEST = "train", "validation", "test"
SPLIT_NAMES = {
    TRAIN: ("train",),
    VALIDATION: ("validation", "valid", "val", "dev", "eval"),
    TEST: ("test",),
}
_SPLITS = {word: split for split, words in SPLIT_NAMES.items() for word in words}
_WORD = f"(?P<word>{'|'.join(_SPLITS)})"
# wiki.train.tokens; train.txt, wiki_test.txt, train-00000-of-00002.parquet. Not train.py: programs are called so.
_FORMS = (
    re.compile(rf"(?P<before>.+)\.{_WORD}(?P<after>\..+)", re.IGNORECASE),
    re.compile(
        rf"(?P<before>(?:.+[._-])?){_WORD}(?:[._-]?\d+(?:-of-\d+)?)?"
        r"(?P<after>(?:\.(?:txt|text|tokens|raw|jsonl?|ndjson|parquet))*)",
        re.IGNORECASE,
    ),
)


def find_splits(folder: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """The splits of a data set, by their names, among the `files` below `folder` or the folders in it.

    A training split and another one must lie side by side, and be called alike but for the split; otherwise none is
    found. Where they are there in several forms (.tokens, .raw), one is returned.
    """
    inside = sorted({file.relative_to(folder).parts[0] for file in files if file.parent != folder})
    places: dict[tuple[Path, str], dict[str, list[tuple[str, Path]]]] = {}
    for name in inside:
        if name.lower() in _SPLITS:
            places.setdefault((folder, "/"), {}).setdefault(_SPLITS[name.lower()], []).append(("", folder / name))
    for file in files:
        found = next((match for form in _FORMS if (match := form.fullmatch(file.name))), None)
        if found is not None:
            place = places.setdefault((file.parent, found["before"].rstrip("._-")), {})
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
