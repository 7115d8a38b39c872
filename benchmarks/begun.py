"""What a work folder was begun with: what has finished there is not believed for another model, recipe or text."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import write_json
from longmix.trainer.settings.run_file import read_settings

# What something is made from -> which one it is.
Inputs = dict[str, str]


def digest(*paths: Path) -> str:
    """Of the values of run files, of what they extend too, whatever else stands in them."""
    values = json.dumps(read_settings([str(path) for path in paths], []).values, sort_keys=True)
    return hashlib.sha256(values.encode()).hexdigest()


def content(*paths: Path) -> str:
    """Of files, and of prepared folders by their manifests; wherever they lie."""
    found = hashlib.sha256()
    for path in paths:
        with open(path / "train" / "manifest.json" if path.is_dir() else path, "rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def refuse_others(work: Path, found: Inputs) -> None:
    """Raise UserError if the runs of the work folder are made from other inputs; those that it lacks are none."""
    before = _noted(work)
    other = [name for name in found if before.get(name, found[name]) != found[name]]
    if other:
        raise UserError(f"--work {work} was begun with another {' and another '.join(other)}: choose another folder")


def note(work: Path, found: Inputs) -> None:
    """Note in the work folder what its runs are made from."""
    write_json(_path(work), {**_noted(work), **found})


@contextlib.contextmanager
def making(work: Path, found: Inputs, data: Path) -> Iterator[None]:
    """Context that fills `data` from inputs: they are noted before, so that a killed command leaves none that others
    take for theirs; where they turn out to be of no use, it is as if they had not been given. Everything directly in
    `data` is a folder that one input makes.
    """
    before = _noted(work)
    there = {path.name for path in data.iterdir()} if data.is_dir() else None
    note(work, found)
    try:
        yield
    except (UserError, SystemExit):  # the latter where a command of longmix failed
        if there is None:
            shutil.rmtree(data, ignore_errors=True)
        else:
            for path in data.iterdir():
                if path.is_dir() and path.name not in there:
                    shutil.rmtree(path)
        write_json(_path(work), before)
        raise


def _noted(work: Path) -> Inputs:
    path = _path(work)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _path(work: Path) -> Path:
    return work / "inputs.json"
