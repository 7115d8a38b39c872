"""The state of a preparation in its folder, `prepare.json`: what it is of, and how far it came."""

import dataclasses
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import LOCK, VOLUMES_OWN, write_json
from longmix.data_prep.made_files import remove_files
from longmix.data_prep.manifest_fields import DOCUMENTS, ONE_PER_ROW
from longmix.data_prep.split_names import SPLITS
from longmix.data_prep.state_files import read_state
from longmix.data_prep.text.documents import Rule, parse_rule
from longmix.data_prep.text.first_look import FirstLook
from longmix.data_prep.text.packing import SMALLEST_LENGTH
from longmix.data_prep.text.sources import FORMATS, Source
from longmix.data_prep.tokenizer import TOKENIZER_FILES, check_vocab_size, remove_unfinished, sha256_of_tokenizer

LONGEST_SEQUENCE = 1 << 20
FILE_NAME = "prepare.json"
BLOCKS = ".blocks"
WINDOWS = "held-out.windows"  # among the blocks, while they are made
_FORMAT = 2
# The names of what is removed: unfinished files, shards of a split without a manifest, blocks that have become shards.
TEMPORARY = re.compile(
    rf"\.(prepare\.json|shard-\d+\.parquet|\w+-\d{{6,}}\.(parquet|json)|{re.escape(WINDOWS)})\.\d+(-\d+)?\.tmp"
)
_SHARDS = re.compile(rf"shard-\d{{5,}}\.parquet|\.manifest\.json\.\d+(-\d+)?\.tmp|{TEMPORARY.pattern}")
_BLOCKS = re.compile(
    rf"({'|'.join(SPLITS)})-\d{{6,}}\.(documents|parquet|json)|{re.escape(WINDOWS)}|{TEMPORARY.pattern}"
)


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The settings that decide the output of `prepare_text`; the number of workers does not.

    `validation` and `test` name texts that are these splits, whole; without `validation` it is cut off `source`.
    `format` is what all files are read as, one of FORMATS; None: each as its name and content tell.
    """

    source: tuple[str, ...]
    column: str = "text"
    tokenizer: str | None = None
    vocab_size: int | None = None
    sequence_length: int = 512
    uncased: bool = False
    documents: str | None = None
    packing: str = DOCUMENTS
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    format: str | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        return SPLITS if self.test else SPLITS[:2]

    def values(self) -> dict[str, Any]:
        """As JSON has them."""
        values = json.loads(json.dumps(dataclasses.asdict(self)))
        for name in ("validation", "test", "format"):
            if not values[name]:
                del values[name]  # as before there was such an option: outputs without it stay what they are
        return values

    def tokenizer_hash(self) -> str | None:
        return None if self.tokenizer is None else sha256_of_tokenizer(self.tokenizer)

    def is_made(self, folder: Path) -> bool:
        """Whether a folder has the manifests of all splits."""
        return all((folder / split / "manifest.json").is_file() for split in self.splits)

    def check(self) -> Rule:
        """Raises `UserError` for a value out of range or a contradiction; returns the rule for documents."""
        if not SMALLEST_LENGTH <= self.sequence_length <= LONGEST_SEQUENCE:
            raise UserError(
                f"--sequence-length is {self.sequence_length}: allowed are {SMALLEST_LENGTH} to {LONGEST_SEQUENCE}"
            )
        if self.packing not in (DOCUMENTS, ONE_PER_ROW):
            raise UserError(f"--packing is {self.packing}: allowed are {DOCUMENTS} and {ONE_PER_ROW}")
        if self.format not in (None, *FORMATS):
            raise UserError(f"--format is {self.format}: allowed are {', '.join(FORMATS)}")
        if self.tokenizer is not None and (self.vocab_size is not None or self.uncased):
            raise UserError("--tokenizer takes a tokenizer as it is: leave --vocab-size and --uncased out")
        if self.vocab_size is not None:
            check_vocab_size(self.vocab_size)
        return parse_rule(self.documents)


@dataclass
class _Look:
    """`FirstLook`'s figures."""

    threshold: int
    documents: int | None
    bytes: int | None


@dataclass
class _File:
    """The contents of prepare.json."""

    format: int
    settings: dict[str, Any]
    sources: list[Any]
    tokenizer: str | None
    look: _Look | None

    def differences(self, wanted: "State") -> list[str]:
        """What is not as in `wanted`, in words."""
        different = [
            f"--{name.replace('_', '-')} was {self.settings.get(name)}, now {wanted.settings.get(name)}"
            for name in {**wanted.settings, **self.settings}
            if self.settings.get(name) != wanted.settings.get(name)
        ]
        if self.sources != wanted.sources:
            different.append("the files of the sources have changed since, or are read as something else")
        same_place = self.settings.get("tokenizer") == wanted.settings["tokenizer"]
        if same_place and self.tokenizer != wanted.tokenizer:
            different.append(f"the tokenizer in {wanted.settings['tokenizer']} has changed since")
        return different


def require_empty(folder: Path) -> None:
    """Raise `UserError` if a folder holds anything of anybody's."""
    names = [path.name for path in folder.iterdir()]
    if not [name for name in names if name not in (LOCK, VOLUMES_OWN) and not name.startswith(f".{FILE_NAME}")]:
        return
    held = [name for name in ("", *SPLITS) if (folder / name / "manifest.json").is_file()]
    what = "another data set" if held else "other files"
    raise UserError(f"--output {folder} already holds {what}: choose another folder, or empty it")


class State:
    """`output/prepare.json`: the settings and sources of the preparation in a folder, and what its first look told."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], sources: list[Any], tokenizer: str | None, look: FirstLook | None
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.sources = sources
        self.tokenizer = tokenizer
        self.look = look

    @classmethod
    def open(cls, folder: Path, settings: TextSettings, sources: list[Source]) -> "State":
        """The state in `folder`, a new one if it is empty. Raises `UserError` if it holds something else."""
        wanted = cls(
            folder,
            settings.values(),
            [[source.name, *(part.fingerprint() for part in source.parts)] for source in sources],
            settings.tokenizer_hash(),
            None,
        )
        if not os.path.lexists(folder / FILE_NAME):
            require_empty(folder)
            wanted.save()
            return wanted
        different = []
        remedy = "choose another --output, or move this file and what was made with it away"
        made_by = read_state(folder / FILE_NAME, dict[str, Any], remedy).get("format")
        if type(made_by) is int and made_by != _FORMAT:
            different = [f"made by another version of longmix (format {made_by}, this one's is {_FORMAT})"]
        else:
            found = read_state(folder / FILE_NAME, _File, remedy)
            if found.look is None:
                wanted.save()  # nothing was made yet: the new settings simply take over
                return wanted
            different = found.differences(wanted)
        if different:
            raise UserError(
                f"--output {folder} already holds another data set ({'; '.join(different)}): "
                "choose another folder, or move this one away"
            )
        wanted.look = FirstLook(**dataclasses.asdict(found.look), sample=[])
        return wanted

    def save(self) -> None:
        values = {"format": _FORMAT, "settings": self.settings, "sources": self.sources}
        values["tokenizer"] = self.tokenizer
        values["look"] = self.look.figures() if self.look else None
        write_json(self.folder / FILE_NAME, values)

    def remove_unfinished(self) -> None:
        """Remove what a killed run left under temporary names, and splits and tokenizer if not complete.

        What else somebody keeps in these folders stays. Raises `UserError` if one of them is no folder of its own.
        """
        for name in (*SPLITS, "tokenizer", BLOCKS):
            path = self.folder / name
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                raise UserError(f"{path} is a link or a file, where longmix prepare makes a folder: move it away")
        remove_files(self.folder, TEMPORARY)
        for split in SPLITS:
            # A split with a manifest is whole, and yet written once more while another one lacks its own.
            is_whole = (self.folder / split / "manifest.json").is_file()
            remove_files(self.folder / split, TEMPORARY if is_whole else _SHARDS)
        if self.look is None:
            self._remove_made()
        (self.folder / BLOCKS).mkdir(exist_ok=True)
        remove_files(self.folder / BLOCKS, TEMPORARY)
        (self.folder / BLOCKS).mkdir(exist_ok=True)

    def remove_blocks(self) -> None:
        """Remove the blocks: they have become shards."""
        remove_files(self.folder / BLOCKS, _BLOCKS)

    def forget(self) -> None:
        """Nothing was made: leave the folder empty, so that a corrected command can use it."""
        self._remove_made()
        (self.folder / FILE_NAME).unlink(missing_ok=True)

    def _remove_made(self) -> None:
        remove_unfinished(self.folder / "tokenizer")
        remove_files(self.folder / "tokenizer", TOKENIZER_FILES)
        self.remove_blocks()
