"""A whole data set in one go: its folder appears with shards and manifest, or not at all."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import make_folder, sha256_of_file
from longmix.data_prep.made_folders import DATASET, new_folder, put_in_place, refuse_foreign
from longmix.data_prep.manifest import FILE_NAME, Manifest

LIST_INT32 = {"dtype": "int32", "shape": [None]}
SCALAR_INT64 = {"dtype": "int64", "shape": []}
SCALAR_FLOAT32 = {"dtype": "float32", "shape": []}

# Columns whose entries are a sample's tokens, or positions.
_COUNTED = ("input_ids", "input_ids_b", "values", "values_b")


def write_dataset(
    folder: str | Path,
    samples: Iterable[Mapping[str, Any]],
    columns: Mapping[str, Mapping[str, Any]],
    **manifest_fields: Any,
) -> Manifest:
    """Write a whole data set and return its manifest. The folder appears complete, replacing an older data set.

    `manifest_fields` are `Manifest`'s (`split` and `split_rule` at least); samples, tokens, columns and shards are
    filled in. For data that one process writes in one go: GLUE, small sets, tests.
    Raises `UserError` if `folder` exists and holds anything but a data set as longmix wrote it.
    """
    from longmix.data_prep.shard_writer import ShardWriter  # here: a task's --help needs no pyarrow

    folder = Path(folder)
    refuse_foreign(folder, DATASET, earlier_dataset)
    make_folder(folder.parent)
    with new_folder(folder) as temporary:
        counted = _Counter(samples)
        with ShardWriter(temporary, columns) as writer:
            for sample in counted:
                writer.write(sample)
        manifest = Manifest(
            columns={name: dict(column) for name, column in columns.items()},
            samples=counted.samples,
            tokens=counted.tokens,
            shards=writer.entries,
            **manifest_fields,
        )
        manifest.save(temporary)
        put_in_place(temporary, folder, DATASET, earlier_dataset, hashed=writer.entries)
    return manifest


def earlier_dataset(folder: Path, names: list[str]) -> str | None:
    """The first file that is not of a data set as its manifest describes it (`made_folders.Earlier`)."""
    try:
        entries = Manifest.load(folder).shards
    except UserError:
        return FILE_NAME if FILE_NAME in names else min(names)
    digests = {entry["file"]: entry["sha256"] for entry in entries}
    known = {name for name in names if name in digests and sha256_of_file(folder / name) == digests[name]}
    return next((name for name in names if name != FILE_NAME and name not in known), None)


class _Counter:
    """Passes samples on and counts them and their tokens or, of real values, positions (None without any of these)."""

    def __init__(self, samples: Iterable[Mapping[str, Any]]) -> None:
        self.source = samples
        self.samples = 0
        self.tokens: int | None = None

    def __iter__(self):
        for sample in self.source:
            self.samples += 1
            for name in _COUNTED:
                if name in sample:
                    self.tokens = (self.tokens or 0) + len(sample[name])
            yield sample
