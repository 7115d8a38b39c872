"""Answers in parts of n rows: each is written and renamed, so that a killed command goes on where it was.

The parts lie in `.NAME.parts` beside the output, with a record of what they are answers of: parts of another model,
other data or other options are thrown away. A part depends on its rows alone, so that the joined output has the same
bytes however often the command was killed.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import LOCK, locked, write_json, write_text
from longmix.data_prep.made_files import refuse_other_json
from longmix.data_prep.state_files import read_or_none

from .progress import Progress

RECORD, JOINED = "parts.json", "joined"
_PARTS = re.compile(rf"part-\d{{8}}\.jsonl|{JOINED}")
# What a kill leaves of a file that was being written (see data_prep.files.atomic_path).
_UNFINISHED = re.compile(rf"\.({re.escape(RECORD)}|{_PARTS.pattern})\.\d+(-\d+)?\.tmp")

Answers = list[dict[str, Any]]


def parts_folder(output: Path) -> Path:
    """The folder of an output's parts."""
    return output.with_name(f".{output.name}.parts")


def in_parts(
    rows: Iterator[Any],
    answer: Callable[[int, list[Any], Callable[[int], None]], Answers],
    size: int,
    folder: Path,
    identity: str,
    progress: Progress,
    finish: Callable[[list[Path]], None],
    pass_over: Callable[[list[Any]], None],
) -> int:
    """Answer all rows, part by part, have `finish` join the parts, and remove them.

    Args:
        answer: (number of the first row, rows, what it tells how many more are answered) -> their answers.
        size: rows in a part.
        identity: of all that the answers depend on; parts of another one are thrown away.
        progress: is told of each row.
        pass_over: is told the rows that were answered before.

    Returns:
        How many rows there are.

    Raises:
        UserError: another command writes these parts, or the folder holds what longmix did not write.
    """
    with locked(folder):
        paths, count = [], 0
        try:
            refuse_other_json(folder / RECORD, "identity")
            known = (folder / RECORD).is_file()
            if not known and any(path.name != LOCK and not _is_unfinished(path) for path in folder.iterdir()):
                raise UserError(f"{folder} holds what longmix did not write there: move it away")
            if read_or_none(folder / RECORD, dict[str, str]) != {"identity": identity}:
                _remove(folder)
                write_json(folder / RECORD, {"identity": identity})
            while part := list(itertools.islice(rows, size)):
                path = folder / f"part-{len(paths):08d}.jsonl"
                if path.is_file():
                    progress.skip(len(part))
                    pass_over(part)
                else:
                    lines = (json.dumps(one, ensure_ascii=False) for one in answer(count, part, progress.note))
                    write_text(path, "".join(f"{line}\n" for line in lines))
                paths.append(path)
                count += len(part)
            finish(paths)
            _remove(folder)
        except OSError as error:
            raise refused(f"{folder} cannot be written", error) from None
    return count


def read_part(path: Path) -> Answers:
    """The answers in a part."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _is_unfinished(path: Path) -> bool:
    return _UNFINISHED.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def _remove(folder: Path) -> None:
    """Remove the parts, and at last the record, by which they are known."""
    for path in folder.iterdir():
        if _is_unfinished(path) or (_PARTS.fullmatch(path.name) and path.is_file() and not path.is_symlink()):
            path.unlink()
    (folder / RECORD).unlink(missing_ok=True)
