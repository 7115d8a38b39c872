"""Checkpoints: written under a temporary name, hashed, renamed; the newest whole one wins.

`RUN/checkpoints/step-00000200/` holds `engine*` and `random.json` (to resume), `model/` (a Hugging Face folder),
`state.json` (step, samples, counters) and, written last, `manifest.json` (size and SHA-256 of every file).
`RUN/checkpoints/latest` names the newest for people; nothing reads it.
"""

import contextlib
import logging
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError, printable
from longmix.data_prep.files import flush_to_disk, sha256_of_file, write_json
from longmix.data_prep.state_files import read_json

from ..settings.configuration import CheckpointSection
from . import contents, hashed_files
from .state import STATE, RunState, name_of, read_state

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
LATEST = "latest"
# A checkpoint that is not finished, is being deleted, or gives way to another of its step.
_UNFINISHED = re.compile(r"\.step-\d{8,}\.(tmp|old)")


# Writing: under a temporary name until all files are flushed, so that a kill at any moment leaves whole checkpoints.


def path_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / name_of(step)


def begin(run: Path, step: int) -> Path:
    """Make an empty folder to write a checkpoint into; it counts for nothing before `finish`.

    Folders of checkpoints that were never finished are deleted.

    Raises:
        OSError: e.g. the run folder has gone. It is not made anew, for that might be on another disk.
    """
    folder = path_of(run, step).with_name(f".step-{step:08d}.tmp")
    folder.parent.mkdir(exist_ok=True)
    remove_unfinished(run)
    folder.mkdir()
    return folder


def remove_unfinished(run: Path) -> None:
    """Delete folders of checkpoints that were never finished, or not wholly deleted."""
    _put_back(run)
    for unfinished in (run / "checkpoints").iterdir():
        if _UNFINISHED.fullmatch(unfinished.name):
            shutil.rmtree(unfinished, ignore_errors=True)


def finish(folder: Path, run: Path, state: RunState, entries: list[dict[str, Any]] | None = None) -> Path:
    """Write state and manifest, flush, rename: from here on the checkpoint exists.

    `entries`: of the manifest, for files that are written, flushed and verified; by default they are made here.
    An older checkpoint of the same step gives way only now.
    """
    write_json(folder / STATE, asdict(state))
    if entries is None:
        entries = hashed_files.entries(folder, folder)
    else:
        entries = sorted([*entries, hashed_files.entry(folder / STATE, folder)], key=lambda entry: entry["file"])
    for path in [path for path in folder.rglob("*") if path.is_dir()]:
        flush_to_disk(path)
    write_json(folder / MANIFEST, {"step": state.step, "files": entries})
    final, aside = path_of(run, state.step), _aside(run, state.step)
    if final.exists():
        os.replace(final, aside)
    os.replace(folder, final)
    flush_to_disk(final.parent)
    shutil.rmtree(aside, ignore_errors=True)
    return final


def _aside(run: Path, step: int) -> Path:
    """The path of a checkpoint for the moment in which another of its step takes its place."""
    return path_of(run, step).with_name(f".step-{step:08d}.old")


def _put_back(run: Path) -> None:
    """Give back their names to checkpoints that a kill in that moment has left aside."""
    for aside in (run / "checkpoints").glob(".step-*.old"):
        final = aside.with_name(aside.name[1:-4])
        if not final.exists():
            # A process that may only read (longmix export) passes it over.
            with contextlib.suppress(OSError):
                os.replace(aside, final)


def point_to(run: Path, step: int) -> list[str]:
    """Let `checkpoints/latest` name this step's checkpoint, for people. Raises OSError.

    What is no link stays as it is, and is told in a line of what is returned: a copy of a run may have made it one.
    """
    final = path_of(run, step)
    latest, temporary = final.with_name(LATEST), final.with_name(f".{LATEST}.tmp")
    for path in (latest, temporary):
        if os.path.lexists(path) and not path.is_symlink():
            return [f"note: {path} is no link, and does not name the newest checkpoint: nothing reads it, move it away"]
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(final.name, target_is_directory=True)
    os.replace(temporary, latest)
    return []


# Finding: a checkpoint is believed only when every byte of it is what was written.


def defect(folder: Path) -> str | None:
    """The defect of a checkpoint, naming the file; None for a whole one.

    The manifest vouches for the bytes of the files that it lists. What the state says, and which files are not listed,
    is checked as well.
    """
    try:
        entries = _listed(folder)
    except UserError as error:
        return str(error)
    for path, size, digest in entries:
        found = _difference(folder, path, size, digest)
        if found is not None:
            return found
    listed = {path for path, _, _ in entries}
    if folder / STATE not in listed:
        return f"{folder / MANIFEST} is damaged (it does not list {STATE})"
    try:
        read_state(folder)
        contents.refuse_incomplete(folder, listed)
    except UserError as error:
        return str(error)
    return None


def has_whole(folder: Path, name: str) -> bool:
    """Whether a file of a checkpoint, or all in a folder of it, are what was written; to read all takes longer."""
    try:
        entries = [entry for entry in _listed(folder) if entry[0].is_relative_to(folder / name)]
    except UserError:
        return False
    return bool(entries) and all(_difference(folder, *entry) is None for entry in entries)


def _listed(folder: Path) -> list[tuple[Path, int, str]]:
    """(path, bytes, SHA-256) of the files that a checkpoint's manifest lists. Raises UserError if it cannot be read."""
    try:
        manifest = read_json(folder / MANIFEST)
        return [(folder / entry["file"], entry["bytes"], entry["sha256"]) for entry in manifest["files"]]
    except FileNotFoundError:
        raise UserError(f"{folder / MANIFEST} is missing") from None
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise UserError(f"{folder / MANIFEST} is damaged ({error})") from None


def _difference(folder: Path, path: Path, size: int, digest: str) -> str | None:
    """How a file differs from what the manifest says of it; None if it does not."""
    if not Path(os.path.normpath(path)).is_relative_to(os.path.normpath(folder)):
        return f"{folder / MANIFEST} is damaged (it lists {path}, which is not of this checkpoint)"
    try:
        if not path.is_file():
            return f"{path} is missing"
        if path.stat().st_size != size:
            return f"{path} has {path.stat().st_size} bytes instead of {size}"
        if sha256_of_file(path) != digest:
            return f"{path} does not have the contents that were written (SHA-256 differs)"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return None


def steps(run: Path) -> list[int]:
    """The steps of a run's checkpoints, oldest first, whole or not."""
    names = [path.name for path in (run / "checkpoints").glob("step-*") if path.is_dir()]
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d{8,}", name))


def newest(run: Path) -> Path | None:
    """The newest whole checkpoint; incomplete or damaged ones are named in a warning and passed over."""
    _put_back(run)
    for step in reversed(steps(run)):
        folder = path_of(run, step)
        reason = defect(folder)
        if reason is None:
            return folder
        logger.warning("checkpoint passed over: %s", printable(reason))
    return None


# Deleting: at any moment, a checkpoint that is listed is whole.


def prune(run: Path, section: CheckpointSection, state: RunState) -> list[str]:
    """Delete what `keep`, `keep_every` and `best` do not hold; call it when the checkpoint of `state` is whole.

    Checkpoints beyond `state` were damaged when the run resumed from an older one: they are not kept, nor counted. One
    to which somebody has added files stays, and is told in a line of what is returned.
    """
    present = steps(run)
    reached = [step for step in present if step <= state.step]
    kept = set(reached[-section.keep :])
    if section.keep_every is not None:
        kept |= {step for step in reached if step % section.keep_every == 0}
    if state.best_step is not None:
        kept.add(state.best_step)
    notes = []
    for step in sorted(set(present) - kept):
        folder = path_of(run, step)
        foreign = _added(folder)
        if foreign is not None:
            notes.append(f"{folder} is not deleted: it holds {foreign}, which is not of the checkpoint")
            continue
        _remove(folder)
    return notes


def remove_all(run: Path) -> None:
    """Delete all checkpoints of a run that needs them no more; what somebody has added to them stays."""
    folder = run / "checkpoints"
    if folder.is_symlink() or not folder.is_dir():
        return
    for step in steps(run):
        if _added(path_of(run, step)) is None:
            with contextlib.suppress(OSError):
                _remove(path_of(run, step))
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name in (LATEST, f".{LATEST}.tmp") and path.is_symlink():
            path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _remove(folder: Path) -> None:
    # Renamed first: whoever reads it meanwhile, or after a kill, finds all of it or nothing.
    removed = folder.with_name(f".{folder.name}.tmp")
    os.replace(folder, removed)
    shutil.rmtree(removed)


def _added(folder: Path) -> str | None:
    """The first file of a checkpoint that its manifest does not list; None, too, where that cannot be told.

    What is damaged beyond that was passed over when the run resumed, with a warning.
    """
    try:
        manifest = read_json(folder / MANIFEST)
        listed = {entry["file"] for entry in manifest["files"]} | {MANIFEST}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    below = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}
    return min(below - listed, default=None)
