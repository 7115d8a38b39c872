"""One case: a folder with sound input, of which something is broken, and a command that reads it."""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .mutations import EXECUTED, remove


@dataclass
class Ended:
    """How a command ended. `code` is negative for a signal."""

    code: int
    stdout: str
    stderr: str
    argv: list[str] = field(default_factory=list)


@dataclass
class Attack:
    """A command on input that is not what it should be.

    Attributes:
        argv: the words behind `longmix` (or `./quickstart`, see `program`).
        what: what was done to the input, in words.
        check: (Workshop, Ended) -> what is wrong with the result of a command that ended with 0, None if nothing is.
        writes: places below the working folder where the command may write and remove. "*": it may make what is new
            anywhere there, and change nothing that was there before. "**": among the canaries, too, which somebody
            has named as the output.
        codes: the exit codes that may come of it; 0 and 2 always may.
        faults: what the one line of exit code 1 must hold, a regular expression.
    """

    argv: list[str]
    what: str
    check: Callable[["Workshop", Ended], str | None]
    writes: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    faults: str = ""
    environment: dict[str, str | None] = field(default_factory=dict)
    program: str = "trainer"


class Workshop:
    """The folder of one case.

    `work` is the working folder of the command, `canaries` stand beside it, among its input and in its output; `sound`
    holds what no case may change.
    """

    def __init__(self, folder: Path, sound: Path, draw: random.Random):
        self.folder, self.sound, self.draw = folder, sound, draw
        self.work, self.canaries, self.home = folder / "work", folder / "canaries", folder / "home"
        for path in (self.work, self.canaries, self.home, folder / "tmp"):
            path.mkdir(parents=True)
        plant(self.canaries)
        plant(self.work / "mine")

    def take(self, *names: str) -> None:
        """Copy sound input into the working folder."""
        for name in names:
            source, target = self.sound / name, self.work / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True)
            else:
                shutil.copy2(source, target)

    def replace(self, old: str, new: str) -> None:
        """Move a place of the working folder in the place of another."""
        remove(self.work / new)
        (self.work / old).rename(self.work / new)

    def files(self, *names: str, suffix: str = "") -> list[Path]:
        """Every file below these places, in order."""
        found = []
        for name in names:
            path = self.work / name
            found += [path] if path.is_file() else [file for file in sorted(path.rglob(f"*{suffix}")) if file.is_file()]
        return found


def plant(folder: Path) -> None:
    """Files of somebody's own, of names that longmix, too, gives to its files."""
    (folder / "folder" / "model").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "precious.txt").write_text("irreplaceable\n")
    (folder / "config.json").write_text('{"model_type": "mine"}\n')
    (folder / "folder" / "thesis.tex").write_text("\\documentclass{thesis}\n")
    (folder / "folder" / "model" / "notes.md").write_text("# Notes\n")
    (folder / "link").symlink_to("precious.txt")


def look(folder: Path) -> dict[str, tuple]:
    """Everything below a folder, by its path: kind, place and time of the last change; of folders, that they are the
    same. A file that was rewritten with the same content has changed."""
    seen = {}
    waiting = [folder]
    while waiting:
        inner = waiting.pop()
        try:
            entries = list(os.scandir(inner))
        except OSError as error:
            # A path longer than the system takes.
            seen[_name(inner, folder)] = (error.errno,)
            continue
        for entry in entries:
            name, found = _name(entry.path, folder), entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                seen[name] = (found.st_mode, found.st_ino)
                waiting.append(Path(entry.path))
            elif entry.is_symlink():
                seen[name] = (found.st_mode, found.st_ino, os.readlink(entry.path))
            else:
                seen[name] = (found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return seen


def _name(path: str | Path, folder: Path) -> str:
    return os.fsencode(os.path.relpath(path, folder)).decode("utf-8", "backslashreplace")


def harm(before: dict[str, tuple], after: dict[str, tuple], writes: tuple[str, ...]) -> list[str]:
    """What was changed, made or removed between two looks at a case's folder, where nothing may be."""

    def is_allowed(name: str, is_new: bool) -> bool:
        if name.split("/")[0] in ("tmp", "home"):
            # Caches, and what a killed command leaves there.
            return is_new or name.startswith("home/.cache")
        if is_new and "**" in writes:
            return EXECUTED not in name
        if name == "work" or not name.startswith("work/"):
            return False
        inner = name.removeprefix("work/")
        if is_new and {"*", "**"} & set(writes):
            return True
        return any(inner == place or inner.startswith(f"{place}/") for place in writes if place != "*")

    told = [f"made {name}" for name in after if name not in before and not is_allowed(name, True)]
    for name, found in before.items():
        if after.get(name) != found and not is_allowed(name, False):
            told.append(f"{'changed' if name in after else 'removed'} {name}")
    return sorted(told)
