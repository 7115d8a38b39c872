"""The decision whether a job that ended before its run, or before the runs of its share of a sweep, starts again.

A run that fails where it failed before would do so for ever, and so would one whose time limit is too short for a first
step. How the starts of a job have ended since the newest checkpoint stands in RUN/requeue.json, of a sweep's job in its
first run: no two jobs share one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import refused
from longmix.data_prep.files import make_folder, write_json
from longmix.data_prep.made_files import refuse_other_json
from longmix.data_prep.state_files import parse, read_or_none

from ..checkpoints.folders import steps
from ..settings.exit_codes import OURS

RECORD = "requeue.json"
MOST_FAILURES_AT_A_STEP = 2
MOST_ENDINGS_WITHOUT_CHECKPOINT = 5
# Bytes at the end of metrics.jsonl that surely hold its last record.
TAIL = 2**16


@dataclass
class _Record:
    """The contents of requeue.json; `endings`: [exit code, step] of each start since `checkpoint`."""

    job: str
    checkpoint: int
    endings: list[list[int]]


def reason_against(runs: Sequence[str | Path], job: str, code: int) -> str | None:
    """Note that a start of `job` ended with `code`. The reason against another start; None if it may get further.

    Args:
        runs: the folders of the job's runs, at least one; it has come as far as the sum of their steps.

    Raises:
        UserError: the first run's folder cannot be written to, or holds a file of that name that is another's.
    """
    saved, step = (sum(values) for values in zip(*(_progress(Path(run)) for run in runs), strict=True))
    record = Path(runs[0]) / RECORD
    _refuse_foreign(record)
    endings = [*_endings_since(saved, record, job), [code, step]]
    try:
        make_folder(record.parent)
        write_json(record, {"job": job, "checkpoint": saved, "endings": endings})
    except OSError as error:
        raise refused(f"{record} cannot be written", error) from None
    of_all = f" of its {len(runs)} runs together" if len(runs) > 1 else ""
    if endings.count([OURS, step]) >= MOST_FAILURES_AT_A_STEP:
        return f"it failed {MOST_FAILURES_AT_A_STEP} times at step {step}{of_all}"
    if len(endings) >= MOST_ENDINGS_WITHOUT_CHECKPOINT:
        return f"it ended {len(endings)} times without a checkpoint after step {saved}{of_all}"
    return None


def _refuse_foreign(record: Path) -> None:
    # What was damaged is no map, or lacks keys, and counts for nothing.
    if read_or_none(record, list[Any]) != []:
        refuse_other_json(record, "job", "checkpoint", "endings")


def _progress(run: Path) -> tuple[int, int]:
    """The newest checkpoint's step, and the last step that is known of."""
    saved = max(steps(run), default=0)
    return saved, max(saved, _last_recorded_step(run / "metrics.jsonl"))


def _endings_since(saved: int, record: Path, job: str) -> list[list[int]]:
    """[exit code, step] of the earlier starts of this job after which the newest checkpoint was the same."""
    found = read_or_none(record, _Record)
    # There is none, or it is damaged: then counting begins here.
    return found.endings if found is not None and (found.job, found.checkpoint) == (job, saved) else []


def _last_recorded_step(metrics: Path) -> int:
    if not metrics.is_file():
        return 0  # never begun; or a named pipe, which would be waited for
    try:
        with open(metrics, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return int(parse(line)["step"])
        except (ValueError, KeyError, TypeError):
            # Cut short by a kill.
            continue
    return 0
