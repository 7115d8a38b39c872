"""The manifest of a data set: what its shards hold and how they were made. It is written last."""

import dataclasses
import hashlib
import json
import reprlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, reason_of, refused
from longmix.data_prep.files import write_json
from longmix.data_prep.manifest_fields import first_mistake
from longmix.data_prep.remote import LARGEST_MANIFEST, RemoteFolder, is_remote
from longmix.data_prep.state_files import parse
from longmix.kernels.common.safe_files import read_input

FILE_NAME = "manifest.json"
SCHEMA_VERSION = 1


@dataclass(kw_only=True)
class Manifest:
    """The contents of `manifest.json`.

    `columns` names each Parquet column, which has the name of the model's forward argument: `{"dtype": "int32",
    "shape": [null]}` is a ragged list, `"shape": []` a scalar; shapes leave out the batch axis. `tokens` counts the
    valid tokens of all samples, special tokens included, or their positions where they hold real values; `words` those
    of the text that the tokens were made of, between white space. `tokenizer` is `{"path", "sha256"}` with the folder
    relative to the manifest, or None. `shards` is a list of `{"file", "samples", "bytes", "sha256"}` in the order of
    the sample index. `tolerance` is how near an answer of a regression must come to the label to count as right, where
    the task has such a measure. `trained_places` goes with a column `label_places`, the place of each label in a chain,
    from 0: how many of the first places have labels in training. Fields that make no sense for a data set are None.

    `series` is there where the rows of the shards are the time steps of one series, standardised, from which runs cut
    windows (forecasting.py): `{"names", "mean", "scale", "lookback", "season"}`, the variables, what was subtracted
    from each and what it was then divided by, how many of the first steps are there for inputs alone, and the steps
    after which the series may repeat itself, or None. `samples` counts time steps then.
    """

    split: str
    split_rule: str
    columns: dict[str, dict[str, Any]]
    samples: int | None = None
    tokens: int | None = None
    words: int | None = None
    vocab_size: int | None = None
    pad_token_id: int | None = None
    mask_token_id: int | None = None
    special_token_ids: list[int] = field(default_factory=list)
    tokenizer: dict[str, str] | None = None
    sequence_length: int | None = None
    packing: str | None = None
    num_labels: int | None = None
    label_names: list[str] | None = None
    tolerance: float | None = None
    trained_places: int | None = None
    series: dict[str, Any] | None = None
    shards: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def save(self, folder: str | Path) -> None:
        """Write `folder/manifest.json` atomically; call it when every shard is on the disk."""
        write_json(Path(folder) / FILE_NAME, dataclasses.asdict(self))

    @classmethod
    def load(cls, folder: str | Path) -> "Manifest":
        """Read and check the manifest of a folder, or of a URL; in a folder, every shard must be there with its size.

        Raises `UserError` if the folder or its manifest is missing, if the manifest is damaged, of another schema or
        contradicts itself, or if a shard is missing or was cut short.
        """
        if is_remote(folder):
            remote = RemoteFolder(str(folder))
            try:
                return cls.parse(remote.read(FILE_NAME), f"{remote.url}/{FILE_NAME}")
            except FileNotFoundError:
                raise UserError(f"{remote.url} holds no {FILE_NAME}: it is no data set, or the URL is wrong") from None
        folder = Path(folder)
        path = folder / FILE_NAME
        try:
            text = read_input(path, LARGEST_MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(_missing(folder)) from None
        except OSError as error:
            raise refused(f"{path} cannot be read", error) from None
        except ValueError as error:
            raise UserError(f"{path} cannot be read: {reason_of(error)}") from None
        manifest = cls.parse(text, str(path))
        for shard in manifest.shards:
            shard_path = folder / shard["file"]
            size = _size(shard_path)
            if size != shard["bytes"]:
                found = "is missing" if size is None else f"has {size} bytes"
                raise UserError(f"{shard_path} {found}, {path} says {shard['bytes']} bytes: copy or prepare it again")
        return manifest

    @classmethod
    def parse(cls, text: bytes, origin: str) -> "Manifest":
        """The manifest in `text`, checked; `origin` says in messages where it is from. Raises `UserError`."""
        try:
            values = parse(text, allows_nan=True)  # the report is anybody's
            json.dumps(values, ensure_ascii=False).encode()  # half a surrogate pair could not be written anywhere
        except (ValueError, RecursionError) as error:
            reason = reason_of(error)
            raise UserError(f"{origin} is not valid JSON ({reason}): prepare the data set again") from None
        version = values.get("schema_version") if isinstance(values, dict) else None
        if type(version) is not int or version != SCHEMA_VERSION:
            raise UserError(
                f"{origin}: schema_version is {reprlib.repr(version)}, this longmix reads {SCHEMA_VERSION}: "
                "prepare the data set again, or use the longmix that made it"
            )
        names = {item.name: item for item in dataclasses.fields(cls)}
        unknown = reprlib.repr(sorted(set(values) - set(names)))
        absent = sorted(name for name, item in names.items() if _is_required(item) and name not in values)
        if unknown != "[]" or absent:
            raise UserError(f"{origin}: unknown fields {unknown}, missing fields {absent}: prepare the data set again")
        mistake = first_mistake(values)
        if mistake is not None:
            raise UserError(f"{origin}: {mistake}: prepare or copy the data set again")
        return cls(**values)


# -----------------------------------------------------------------------------
# The fingerprint: checkpoints and reports keep it, and tell by it whether data are still the same.


def fingerprint(manifest: Manifest) -> str:
    """SHA-256 of the contents that a manifest describes: the same wherever they lie, and however they were made."""
    values = dataclasses.asdict(manifest)
    values["tokenizer"] = (manifest.tokenizer or {}).get("sha256")
    for name in ("report", "words"):  # how it was made, not what it is
        del values[name]
    for name in ("series", "tolerance", "trained_places"):
        if values[name] is None:
            del values[name]  # as before there was such a field: checkpoints tell of data without it
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _size(path: Path) -> int | None:
    """Bytes of a file; None if there is none that this user can see."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def _is_required(item: dataclasses.Field) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _missing(folder: Path) -> str:
    if not folder.is_dir():
        return f"data set folder {folder} does not exist: make it with longmix prepare, or correct the path"
    splits = sorted(path.parent.name for path in folder.glob(f"*/{FILE_NAME}"))
    if splits:
        inside = ", ".join(str(folder / name) for name in splits)
        return f"{folder} is not a data set itself, it holds: {inside}; name one of these"
    return (
        f"{folder} holds no {FILE_NAME}: it is no data set, or preparing it was interrupted (the same command goes on)"
    )
