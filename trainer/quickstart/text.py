"""The text of a quickstart: the embedded one, or the first megabytes of the user's own."""

import json
from dataclasses import dataclass
from pathlib import Path

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import make_folder, write_json
from longmix.data_prep.made_folders import TEXT, new_folder, put_in_place, refuse_foreign
from longmix.data_prep.state_files import read_state
from longmix.data_prep.text.parts import HubDataset
from longmix.data_prep.text.sources import Source, find_sources

MEGABYTE = 10**6


@dataclass(frozen=True)
class Text:
    """The sources for `longmix prepare text --source`, and their size; `note` tells what was left out, or is empty.

    Attributes:
        is_copy: whether they are files of ours, text and records with the key `text`, however the source is read.
    """

    sources: list[Path | str]
    bytes: int
    note: str = ""
    is_copy: bool = True


@dataclass
class _Part:
    """The contents of part.json."""

    source: str
    files: list[str]
    bytes: int
    note: str


def take_text(name: str, limit: int, folder: Path, column: str = "text", file_format: str | None = None) -> Text:
    """The text at `name` (a path, or `hub:NAME...`) if it has at most `limit` bytes; else its first `limit` bytes,
    whole lines or records, written to `folder`, where a later call finds them. `column` and `file_format` are those of
    `find_sources`.

    Raises UserError for a text that is missing, empty or cannot be read.
    """
    done = folder / "part.json"
    if done.is_file():
        part = read_state(done, _Part, f"move {folder} away")
        return Text([folder / file for file in part.files], part.bytes, part.note)
    source = find_sources([name], column, option="--text", file_format=file_format)[0]
    has_size = not any(isinstance(part, HubDataset) or part.compressed for part in source.parts)
    size = sum(part.path.stat().st_size for part in source.parts) if has_size else None
    if size is not None and size <= limit:
        return Text([name], size, is_copy=False)
    refuse_foreign(folder, TEXT)
    make_folder(folder.parent)
    with new_folder(folder) as temporary:
        files, taken = _copy(source, limit, temporary)
        if taken == 0:
            raise UserError(f"--text {name} holds no text")
        whole = "it" if size is None else f"{size / MEGABYTE:,.0f} MB"
        note = f"the first {taken / MEGABYTE:,.1f} MB of {whole} (--megabytes)" if taken >= limit else ""
        write_json(temporary / done.name, {"source": name, "files": files, "bytes": taken, "note": note})
        put_in_place(temporary, folder, TEXT)
    return Text([folder / file for file in files], taken, note)


def _copy(source: Source, limit: int, folder: Path) -> tuple[list[str], int]:
    """Lines of text files into one file, records of all others into another; (names, bytes of text)."""
    taken = 0
    files: list[str] = []
    for part in source.parts:
        name = "part.jsonl" if part.is_records else "part.txt"
        if name not in files:
            files.append(name)
        with open(folder / name, "a", encoding="utf-8") as stream:
            for unit in part.units():
                stream.write((json.dumps({"text": unit}, ensure_ascii=False) if part.is_records else unit) + "\n")
                taken += len(unit.encode()) + 1
                if taken >= limit:
                    return files, taken
            if not part.is_records:
                stream.write("\n")
    return files, taken
