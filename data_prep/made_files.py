"""Single files that longmix writes into a folder of the user's (a report, results): replaced only as it wrote them.

The folder gets a record, `.longmix-files.json`, with the SHA-256 of each of these files. Whatever else lies there is
nobody's business.
"""

import fcntl
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import flush_to_disk, folder_lock, sha256_of_file, sha256_of_text, write_json, write_text
from longmix.data_prep.state_files import read_json

RECORD = ".longmix-files.json"
# earlier(path): whether a file that no record lists is one that an earlier version wrote there.
Earlier = Callable[[Path], bool]


def refuse_foreign_files(folder: Path, names: Iterable[str], earlier: Earlier, option: str = "--output") -> None:
    """Raise `UserError` if one of these files is there and is not as longmix wrote it. Changes nothing."""
    listed = _listed(folder)
    for name in names:
        path = folder / name
        if not path.is_symlink() and not path.exists():
            continue
        is_plain = path.is_file() and not path.is_symlink()
        if is_plain and (sha256_of_file(path) in listed[name] if name in listed else earlier(path)):
            continue
        what = "has changed since longmix wrote it" if is_plain and name in listed else "is not longmix's"
        raise UserError(f"{path} {what}, and would be written over: move it away, or choose another {option}")


def write_files(folder: Path, files: Mapping[str, str] | Callable[[], Mapping[str, str]], earlier: Earlier) -> None:
    """Write texts under their names into a folder; all or none, but for a kill in between.

    Args:
        files: the texts by their names, or what makes them while no other command writes there.

    Raises:
        UserError: see `refuse_foreign_files`.
    """
    with folder_lock(folder, fcntl.LOCK_EX):
        texts = files() if callable(files) else files
        refuse_foreign_files(folder, texts, earlier)
        before = _listed(folder)
        now = {name: [sha256_of_text(text)] for name, text in texts.items()}
        # Both until all are written: after a kill in between each file is still known.
        there = {name: [*before.get(name, _hash_of(folder / name)), *now[name]] for name in now}
        write_json(folder / RECORD, {"files": {**before, **there}})
        for name, text in texts.items():
            write_text(folder / name, text)
        write_json(folder / RECORD, {"files": {**before, **now}})


def put_file(made: Path, target: Path, earlier: Earlier) -> None:
    """Flush a finished file, and give it its name in a folder of the user's, on the same file system.

    Raises:
        UserError: see `refuse_foreign_files`.
    """
    folder, name = target.parent, target.name
    now = sha256_of_file(made)
    flush_to_disk(made)
    with folder_lock(folder, fcntl.LOCK_EX):
        refuse_foreign_files(folder, [name], earlier)
        before = _listed(folder)
        # Both until it has its name: after a kill in between the file is still known.
        there = [*before.get(name, _hash_of(target)), now]
        write_json(folder / RECORD, {"files": {**before, name: there}})
        made.replace(target)
        flush_to_disk(folder)
        write_json(folder / RECORD, {"files": {**before, name: [now]}})


def _hash_of(path: Path) -> list[str]:
    return [sha256_of_file(path)] if path.is_file() else []


def _listed(folder: Path) -> dict[str, list[str]]:
    """The SHA-256 of each file as longmix has written it; of several, one of them. Raises `UserError` if damaged."""
    path = folder / RECORD
    try:
        files = read_json(path)["files"]
        return {str(name): [str(digest) for digest in digests] for name, digests in files.items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} does not say which files longmix wrote there: move it away") from None


def refuse_other_json(path: Path, *keys: str) -> None:
    """Raise `UserError` if there is a file and it is no JSON map of these keys, as longmix writes under its name."""
    try:
        values = {} if path.is_file() and path.stat().st_size == 0 else read_json(path)
        is_own = not path.is_symlink() and isinstance(values, dict) and set(values) <= set(keys)
    except (FileNotFoundError, NotADirectoryError):
        is_own = not path.is_symlink()
    except (OSError, ValueError):
        is_own = False
    if not is_own:
        raise UserError(f"{path} is not longmix's, and would be written over: move it away")


def remove_files(folder: Path, names: re.Pattern) -> None:
    """Remove the plain files of a folder whose whole names match, then the folder, if it is empty; the rest stays."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.iterdir():
        if names.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
