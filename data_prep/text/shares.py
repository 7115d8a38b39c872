"""What the shares of one preparation, on many hosts, leave for each other in its folder, and how they wait.

`OUTPUT/.shares/order.json` is the first share's word on what is prepared; each share has a folder beside it, writes to
no other, and puts a record there when it has finished a stage. No share needs to see a lock or a clock of another host.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import Unfinished, UserError, in_one_line, reason_of
from longmix.data_prep.files import flush_to_disk, locked, make_folder, write_json
from longmix.data_prep.made_files import remove_files
from longmix.data_prep.state_files import read_state
from longmix.kernels.common.safe_files import new_beside

FOLDER = ".shares"
MOST_SHARES = 4096
QUIET_SECONDS = 600.0  # without a sign of life of a share, the others wait no longer for it
_BEAT_SECONDS = 20.0
_POLL_SECONDS = 2.0
_ORDER, _FAILED, _ALIVE = "order.json", "failed.json", "alive"
_FORMAT = 1
ANEW = "move its folder away, or choose another --output, and start all shares anew"
_OWN_FILES = re.compile(
    r"(counted|plan|packed|written|failed)\.json|sample|alive|\.lock|\w+-\d{6,}\.(documents|parquet|json)"
    r"|\.((counted|plan|packed|written|failed)\.json|sample|\w+-\d{6,}\.(parquet|json))\.\d+(-\d+)?\.tmp"
    r"|held-out\.windows|\.held-out\.windows\.\d+(-\d+)?\.tmp"
)
_UNFINISHED_FILES = re.compile(r"\..+\.\d+(-\d+)?\.tmp|\w+-\d{6,}\.documents|failed\.json")
_COMMON_FILES = re.compile(r"order\.json|\.order\.json\.\d+(-\d+)?\.tmp")


@dataclass(frozen=True)
class Share:
    """Part `index` of `count`, counted from 0."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """From I/N. Raises `UserError`."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if match is None or not int(match[1]) < int(match[2]) <= MOST_SHARES:
            raise UserError(
                f"--share is {text!r}, but takes I/N with I from 0 to N - 1, N at most {MOST_SHARES}, "
                "e.g. 0/4 (Slurm: --array=0-3)"
            )
        return cls(int(match[1]), int(match[2]))

    def range(self, total: int) -> range:
        """This share's of `total` things in a row."""
        return range(total * self.index // self.count, total * (self.index + 1) // self.count)

    def all(self) -> list["Share"]:
        return [Share(index, self.count) for index in range(self.count)]

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass
class _Order:
    """The contents of order.json: what all shares must agree on. `files`: [name, bytes] of each."""

    format: int
    shares: int
    settings: dict[str, Any]
    tokenizer: str | None
    files: list[list[Any]]


@dataclass
class _Failure:
    """The contents of failed.json: which share has failed first, and why."""

    share: str
    reason: str


class _Elsewhere(UserError):
    """Another share has failed."""

    def __init__(self, failure: _Failure, share: Share) -> None:
        super().__init__(
            f"--share {share} cannot go on, for share {failure.share} has failed ({failure.reason}): mend that, and "
            "start all shares again"
        )
        self.failure = failure


class ShareFolder:
    """`output/.shares` as one share sees it."""

    def __init__(self, output: Path, share: Share, notify: Callable[[str], None]) -> None:
        self.share = share
        self.output = output
        self.root = output / FOLDER
        self.own = self.of(share)
        self.notify = notify
        self._known_failures: dict[int, float | None] = {}

    def of(self, share: Share) -> Path:
        """The folder of a share."""
        return self.root / f"{share.index:05d}"

    def agree(self, settings: dict[str, Any], tokenizer: str | None, files: list[list[Any]]) -> None:
        """Write what is prepared, if this share is the first. Raises `UserError` if another has said otherwise."""
        make_folder(self.root)
        path = self.root / _ORDER
        order = _Order(_FORMAT, self.share.count, settings, tokenizer, files)
        if not os.path.lexists(path):
            temporary = new_beside(path)
            try:
                temporary.write_text(json.dumps(vars(order)), encoding="utf-8")
                flush_to_disk(temporary)
                # Unlike a rename it fails if another share was faster.
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        found = read_state(path, _Order, ANEW)
        if found.format != _FORMAT:
            raise UserError(f"{self.root} was made by another version of longmix: {ANEW}")
        if found.shares != self.share.count:
            raise UserError(
                f"--share {self.share}: {self.output} was begun with {found.shares} shares: give --share "
                f"I/{found.shares}, or {ANEW}"
            )
        different = [
            f"--{name.replace('_', '-')} is {settings.get(name)}, of another share {found.settings.get(name)}"
            for name in {**settings, **found.settings}
            if settings.get(name) != found.settings.get(name)
        ]
        if found.tokenizer != tokenizer and not different:
            different.append(f"the tokenizer in {settings['tokenizer']} is not as another share found it")
        if not different:
            different = [_first_difference(files, found.files)] if files != found.files else []
        if different:
            raise UserError(f"--share {self.share}: {'; '.join(different)}: give all shares the same, or {ANEW}")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold this share's folder, show that it is at work, and leave a note for the others if it fails.

        Raises `UserError` if another process works at the same share.
        """
        with locked(self.own):
            self._known_failures = {share.index: _time_of(self.of(share) / _FAILED) for share in self.share.all()}
            remove_files(self.own, _UNFINISHED_FILES)
            ended = threading.Event()
            make_folder(self.own)
            (self.own / _ALIVE).touch()
            threading.Thread(target=self._beat, args=(ended,), name="longmix-share", daemon=True).start()
            try:
                yield
            except Unfinished:
                raise
            except Exception as error:
                failure = _Failure(str(self.share), reason_of(in_one_line(error) or error))
                write_json(self.own / _FAILED, vars(error.failure if isinstance(error, _Elsewhere) else failure))
                raise
            finally:
                ended.set()
        # Empty, if the preparation is finished: whoever leaves last.
        with contextlib.suppress(OSError):
            self.root.rmdir()

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(_BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.own / _ALIVE)

    def wait_for(self, shares: list[Share], record: Path, stage: str) -> None:
        """Return when each of these shares has `record` in its folder: when it has done `stage`.

        Raises:
            UserError: one of them has failed since this one began.
            Unfinished: nothing has been heard of one for QUIET_SECONDS.
        """
        # One after the other: a disk is asked for a few files a second, however many shares there are.
        for share in shares:
            self._wait_for(share, record, stage)

    def _wait_for(self, share: Share, record: Path, stage: str) -> None:
        folder, seen, heard, is_told = self.of(share), None, time.monotonic(), False
        while not (folder / record).is_file():
            failed = _time_of(folder / _FAILED)
            if failed is not None and failed != self._known_failures[share.index]:
                raise _Elsewhere(read_state(folder / _FAILED, _Failure, ANEW), self.share)
            beat = _time_of(folder / _ALIVE)
            if beat != seen:
                seen, heard = beat, time.monotonic()
            if time.monotonic() - heard >= QUIET_SECONDS:
                raise Unfinished(
                    f"--share {self.share} waits for share {share} to have {stage}, and nothing is heard of that one: "
                    "start all shares; the same command goes on from here"
                )
            if not is_told:
                self.notify(f"waiting for share {share} to have {stage}")
                is_told = True
            time.sleep(_POLL_SECONDS)

    def remove(self) -> None:
        """The preparation is finished: remove what the shares left, also the locks of those that were killed.

        What somebody else keeps there stays.
        """
        for share in self.share.all():
            remove_files(self.of(share), _OWN_FILES)
        remove_files(self.root, _COMMON_FILES)


def _first_difference(files: list[list[Any]], others: list[list[Any]]) -> str:
    for mine, other in zip(files, others, strict=False):
        if mine[0] != other[0]:
            return f"it reads {mine[0]} where another share reads {other[0]}"
        if mine != other:
            return f"{mine[0]} has {mine[1]} bytes, another share found {other[1]}"
    return f"the sources have {len(files)} files, another share found {len(others)}"


def _time_of(path: Path) -> float | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
