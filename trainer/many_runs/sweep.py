"""Many runs by one command: each run file with each seed, one process for each device.

A run is `run.dir/seed-N`, with its console output in `run.dir/seed-N.log`. Finished runs stay, interrupted ones
resume, and a run that another process trains is left to it. A run that fails leaves `failure.json` in its folder until
it is started again, and does not stop the others. `run.dir/sweep.json` holds the number of seeds planned.
"""

import argparse
import copy
import json
import os
import re
import shlex
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import make_folder, write_json
from longmix.data_prep.made_files import refuse_other_json
from longmix.data_prep.manifest import Manifest, fingerprint

from ..models.field_check import field_mistakes
from ..run.folder import is_in_work, refuse_changes, refuse_unusable
from ..run.own_files import is_run
from ..settings import reading
from ..settings.changes import is_free
from ..settings.configuration import RunConfiguration
from ..settings.exit_codes import FINISHED, INTERRUPTED, OURS, USER_MISTAKE
from ..settings.mistakes import say
from . import pool
from .read import FAILURE, MOST_SEEDS, PLAN, is_finished, read_run

# Keys that the sweep gives to each run.
OWN_KEYS = ("run.dir", "run.seed")


@dataclass(frozen=True)
class Job:
    """One run: `longmix train CONFIG CHANGES... run.dir=FOLDER run.seed=SEED`, which ends at `last_step`."""

    config: str
    changes: tuple[str, ...]
    seed: int
    folder: Path
    last_step: int

    @property
    def arguments(self) -> list[str]:
        # A name between quotes, lest YAML reads a number or a map in it.
        own = [f"run.dir={json.dumps(str(self.folder), ensure_ascii=False)}", f"run.seed={self.seed}"]
        return ["train", self.config, *self.changes, *own, "--processes", "1"]

    def is_finished(self) -> bool:
        return is_finished(self.folder, self.last_step)


# -----------------------------------------------------------------------------
# Planning. Every mistake is found before the first run begins, for the last may begin days later.


def plan(configs: list[str], changes: list[str], seeds: int) -> list[Job]:
    """The runs in their order: all of the first seed, then all of the next, so that a sweep cut short compares all.

    Raises:
        UserError: a run file is wrong, two have one run.dir, a run folder holds another configuration, or a finished
            run was made with other data.
    """
    for change in changes:
        if change.split("=")[0] in OWN_KEYS:
            raise UserError(f"{change!r}: run.dir stands in each run file, and --seeds gives the seeds of a sweep")
    folders: dict[str, str] = {}
    jobs = []
    loaded = [reading.load([config], changes, field_mistakes) for config in configs]
    for config, checked in zip(configs, loaded, strict=True):
        place = os.path.realpath(checked.run.dir)
        if place in folders:
            raise UserError(
                f"{config} and {folders[place]} have the same run.dir, {checked.run.dir}: give each its own"
            )
        folders[place] = config
        refuse_other_json(Path(checked.run.dir) / PLAN, "seeds")
        for seed in range(seeds):
            folder = Path(checked.run.dir) / f"seed-{seed}"
            run = copy.deepcopy(checked)
            run.run.dir, run.run.seed = str(folder), seed
            refuse_unusable(folder)
            refuse_changes(folder, run)
            _refuse_other_data(folder, run)
            _refuse_foreign_log(folder)
            jobs.append(Job(config, tuple(changes), seed, folder, checked.optim.max_steps))
    return sorted(jobs, key=lambda job: job.seed)


def _refuse_other_data(folder: Path, now: RunConfiguration) -> None:
    """Raise UserError if a finished run was made with other data than the run file's paths hold now.

    One that is to resume sees to that itself. Data that are no longer there, which no run needs any more, and runs of
    earlier versions, which noted no fingerprints, say nothing.
    """
    if not is_finished(folder, now.optim.max_steps):
        return
    noted = read_run(folder).fingerprints
    for key, paths in now.data.paths().items():
        before = noted.get(key) if isinstance(noted, dict) else None
        if not isinstance(before, list) or is_free(key, now.run.allow_changes):
            continue
        for path, known in zip(paths, before, strict=False):
            found = _fingerprint(path)
            if found not in (None, known):
                raise UserError(
                    f"{folder} is finished, but {path} holds other data than it was made with (its fingerprint is "
                    f"{found[:8]}, not {str(known)[:8]}): bring back what was there, choose another run.dir, or allow "
                    f"it with 'run.allow_changes=[{key}]'"
                )


def refuse_mistakes(jobs: list[Job]) -> None:
    """Check the first of the new runs of each run file as `longmix train --check` does: against its data, too.

    All seeds of a run file would tell of the same mistake, one after the other.

    Raises:
        UserError: with the name of the run file where there are several.
    """
    import torch

    from ..run.settling import settle
    from ..run.setup import prepare

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    firsts: dict[str, Job] = {}
    for job in jobs:
        if not job.folder.exists():  # what has begun was found to be sound
            firsts.setdefault(job.config, job)
    for config, job in firsts.items():
        try:
            checked = reading.load([config], list(job.changes), field_mistakes)
            checked.run.dir, checked.run.seed = str(job.folder), job.seed
            prepare(settle(checked, device)[0], 1, device)
        except UserError as error:
            raise UserError(f"{config}: {error}" if len(firsts) > 1 else str(error)) from None


def _fingerprint(path: str) -> str | None:
    """That of the data set in a folder; None if there is none."""
    try:
        return fingerprint(Manifest.load(path))
    except UserError:
        return None


def _refuse_foreign_log(folder: Path) -> None:
    """Raise UserError if the file for the console output of a run is there, and neither the run nor a sweep was."""
    log = pool.log_path(folder)
    is_foreign = log.is_symlink() or (log.exists() and log.stat().st_size > 0)
    if is_foreign and not (folder.parent / PLAN).is_file() and not is_run(folder):
        raise UserError(f"{log} is not of a sweep, and would be written to: move it away, or name another run.dir")


def share_of(jobs: list[Job], share: str) -> list[Job]:
    """Part I/N of the runs, I from 0 to N - 1: every N-th. Raises UserError unless I and N are such numbers."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", share)
    if match is None or not int(match[1]) < int(match[2]):
        raise UserError(f"--share is {share!r}, but takes I/N with I from 0 to N - 1, e.g. 0/4 (Slurm: --array=0-3)")
    return jobs[int(match[1]) :: int(match[2])]


# -----------------------------------------------------------------------------
# Running. Sweeps may share a folder: a lock tells who trains in it. A run that has failed is told, never passed over.


def run(jobs: list[Job], parallel: int | None, seeds: int, share: str | None = None) -> int:
    """Run the jobs that are neither finished nor in progress elsewhere. `share`: the part of all runs that they are.

    The exit code: 75 if anything was interrupted or is in progress elsewhere, else 1 or 2 if anything has failed.
    """
    waiting = [job for job in jobs if not job.is_finished()]
    if len(waiting) < len(jobs):
        _say(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are finished")
    refuse_mistakes(waiting)
    for job in jobs:
        _write(job.folder.parent / PLAN, {"seeds": seeds})
    gpus, workers = pool.places(parallel, len(waiting))
    starts: dict[Job, int] = {}
    codes: list[int] = []
    elsewhere: list[Job] = []

    def leave(job: Job) -> None:
        elsewhere.append(job)
        _say(f"{job.folder} is in work elsewhere: another process trains in it")

    def start(job: Job, worker: int) -> subprocess.Popen | None:
        if is_in_work(job.folder):
            leave(job)
            return None
        # Looked at after the lock: another sweep may have finished it since this one began.
        if job.is_finished():
            _say(f"{job.folder} has been finished elsewhere")
            return None
        log = pool.log_path(job.folder)
        _say(f"{job.folder} begins ({waiting.index(job) + 1} of {len(waiting)}); it tells {log} the rest")
        (job.folder / FAILURE).unlink(missing_ok=True)
        starts[job] = log.stat().st_size if log.exists() else 0
        return pool.start(["longmix.trainer", *job.arguments], job.folder, pool.environment(gpus, worker, workers))

    def ended(job: Job, code: int, stopping: bool) -> bool:
        if stopping and code < 0:
            # It had not begun to listen, and has lost nothing.
            code = INTERRUPTED
        if code == USER_MISTAKE and is_in_work(job.folder):
            # Begun at the same moment, and refused: the log has lines of both.
            leave(job)
            return True
        codes.append(code)
        last = pool.last_line(pool.log_path(job.folder), starts[job]) or ""
        if code == FINISHED:
            _say(f"{job.folder} is finished")
        elif code == INTERRUPTED:
            _say(f"{job.folder}: {last}")
        else:
            reason = last if code > 0 else f"killed by {signal.Signals(-code).name}"
            _write(job.folder / FAILURE, {"exit_code": code, "reason": reason})
            _say(f"{job.folder} has failed: {reason}")
        return True

    is_complete = pool.run_side_by_side(waiting, workers, start, ended)
    # Locks first: what is finished in between is no longer missing.
    in_work = [job for job in elsewhere if is_in_work(job.folder)]
    missing = [job for job in elsewhere if not job.is_finished()]
    for job in missing:
        if job not in in_work:
            codes.append(INTERRUPTED)
            _say(f"{job.folder} is not finished: the process that had it in work has ended")
    return _tell(jobs, codes, [job for job in missing if job in in_work], is_complete, share)


def _tell(jobs: list[Job], codes: list[int], elsewhere: list[Job], is_complete: bool, share: str | None) -> int:
    counts = Counter("finished" if code == 0 else "interrupted" if code == INTERRUPTED else "failed" for code in codes)
    failed = [code for code in codes if code not in (FINISHED, INTERRUPTED)]
    if not is_complete or counts["interrupted"]:
        done = sum(job.is_finished() for job in jobs)
        _say(f"interrupted with {done} of {len(jobs)} runs finished; the same command goes on from here")
        return INTERRUPTED
    if elsewhere:
        has_failed = f", {len(failed)} have failed" if failed else ""
        _say(f"{len(elsewhere)} of {len(jobs)} runs are in work elsewhere{has_failed}; the same command goes on")
        return INTERRUPTED
    if failed:
        _say(f"{len(failed)} of {len(jobs)} runs have failed; the same command runs them again, and no others")
        return USER_MISTAKE if set(failed) == {USER_MISTAKE} else OURS
    if share is not None:
        _say(f"all {len(jobs)} runs of share {share} are finished")
    else:
        places = dict.fromkeys(str(job.folder.parent) for job in jobs)
        _say(f"all {len(jobs)} runs are finished: {shlex.join(['longmix', 'report', *places])} --output DIR")
    return FINISHED


def _write(path: Path, value: dict) -> None:
    try:
        make_folder(path.parent)
        write_json(path, value)
    except OSError as error:
        raise refused(f"{path} cannot be written", error) from None


def _say(text: str) -> None:
    say(f"longmix sweep: {text}")


# -----------------------------------------------------------------------------
# The command line. `longmix requeue` reads it, too, to find the runs of a job that has ended.


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    """The runs that the command line names, or its share of them, which may be empty. Raises UserError; see `plan`."""
    for name in ("seeds", "parallel"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}, but must be at least 1")
    if arguments.seeds > MOST_SEEDS:
        raise UserError(f"--seeds is {arguments.seeds}, but must be at most {MOST_SEEDS:,}: each is a run")
    changes = [text for text in arguments.settings if "=" in text and not os.path.exists(text)]
    configs = [text for text in arguments.settings if text not in changes]
    if not configs:
        raise UserError("name at least one run file before the changes; each is run with every seed")
    jobs = plan(configs, changes, arguments.seeds)
    return jobs if arguments.share is None else share_of(jobs, arguments.share)


def run_command(arguments: argparse.Namespace) -> int:
    """The command; see `run`."""
    jobs = jobs_of(arguments)
    if not jobs:
        _say(f"share {arguments.share} has no runs: there are fewer than shares")
        return FINISHED
    return run(jobs, arguments.parallel, arguments.seeds, arguments.share)
