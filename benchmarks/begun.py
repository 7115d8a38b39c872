"""What a work folder was begun with: what has finished there is not believed for another model, recipe or text."""

import hashlib
import json
from pathlib import Path

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import write_json
from longmix.trainer.settings.run_file import read_settings

# What each part of a thing is: of the models, say, that of a row.
Parts = dict[str, str]


def digest(*paths: Path) -> str:
    """Of the values of run files, of what they extend too, whatever else stands in them."""
    values = json.dumps(read_settings([str(path) for path in paths], []).values, sort_keys=True)
    return hashlib.sha256(values.encode()).hexdigest()


def named(path: Path) -> str:
    """A prepared folder by its manifest, a file by its size; both by their name, wherever they lie."""
    manifest = path / "train" / "manifest.json"
    if path.is_dir() and manifest.is_file():
        return f"{path.name}, {hashlib.sha256(manifest.read_bytes()).hexdigest()[:12]}"
    return f"{path.name}, {path.stat().st_size:,} bytes"


def refuse_others(work: Path, found: dict[str, Parts]) -> None:
    """Note in the work folder what its runs are made from, by things and their parts.

    Raises:
        UserError: they were begun with others.
    """
    path = work / "inputs.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    other = []
    for name in sorted(found.keys() & before.keys()):
        parts = sorted({*before[name], *found[name]})
        different = [part for part in parts if before[name].get(part) != found[name].get(part)]
        other += [f"{name} {', '.join(different)}"] if different else []
    if other:
        raise UserError(f"--work {work} was begun with another {' and another '.join(other)}: choose another folder")
    write_json(path, {**before, **found})
