"""The command: the setting, the stages one after the other, the page after each."""

import argparse
import os
import signal
import sys
import time

from gpu_kit import page
from gpu_kit.prediction import CostModel
from gpu_kit.processes import Outcome, Workers
from gpu_kit.records import ABSENT, DONE, FAILED, Measurement, Records
from gpu_kit.runner import Console, run_stage, share
from gpu_kit.setting import BENCHMARKS, Setting, UserMistakeError, environment

FAILURE, INTERRUPTED = 1, 75
PROBE_SECONDS = 180


def run(arguments: argparse.Namespace) -> int:
    """Measure; returns the exit code: 0, 1 where nothing can be written, 2 for a mistake of the user, 75 when
    interrupted."""
    work = arguments.work
    try:
        work.mkdir(parents=True, exist_ok=True)
        setting = Setting.find(work.resolve(), arguments.quick, arguments.pack and arguments.pack.resolve())
        setting.refuse_another()
        try:
            records = Records(work / "results.jsonl")
        except BlockingIOError:
            raise UserMistakeError(f"--work {work} is in use by another process of the kit: wait for it") from None
    except UserMistakeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: --work {work}: {error}", file=sys.stderr)
        return 2
    return _measure(setting, records, arguments)


def _measure(setting: Setting, records: Records, arguments: argparse.Namespace) -> int:
    for name in ("LONGMIX_KERNELS", "TRITON_INTERPRET"):  # each measurement chooses, and has what a user has
        os.environ.pop(name, None)
    for name, value in environment(setting).items():
        os.environ.setdefault(name, value)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH")]))
    end = time.monotonic() + 60 * arguments.minutes
    console = Console(end)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _stages(setting, records, arguments, end, console)
    except OSError as error:
        print(f"error: --work {setting.work}: {error}; the same command goes on", file=sys.stderr)
        return FAILURE


def _stages(setting: Setting, records: Records, arguments: argparse.Namespace, end: float, console: Console) -> int:
    """The exit code: 0, or 75 when interrupted; OSError where nothing more can be written."""
    code, cost = 0, None
    try:
        workers = _workers(setting, console)
        cost = CostModel(setting)
        for index, number in enumerate(arguments.stages):
            deadline = time.monotonic() + share(end - time.monotonic(), arguments.stages[index:])
            run_stage(number, setting, records, workers, deadline, console)
            folder = page.make(setting, records, cost.answer())
            console.say(f"stage {number} is over; the page: {folder}/report.html")
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the page is made in a second
        answer = None
        if cost is not None:
            answer = cost.answer()
            cost.end()
        folder = page.make(setting, records, answer)
        records.close()
    states = [row["status"] for key, row in records.newest().items() if not key.endswith(("/plan", "/budget"))]
    counts = ", ".join(f"{states.count(state)} {state}" for state in (DONE, ABSENT, FAILED))
    print(f"{'interrupted; ' if code else ''}{counts}; the same command goes on; the page: {folder}/report.html")
    return code


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _workers(setting: Setting, console: Console) -> Workers:
    """Processes forked from a server where those can use the device, else processes that begin from nothing."""
    for method in ("forkserver", "spawn"):
        ended: list[Outcome] = []
        workers = Workers(setting, method)
        probe = Measurement("0/probe", "gpu_kit.proofs:environment", seconds=PROBE_SECONDS)
        deadline = time.monotonic() + 2 * PROBE_SECONDS
        workers.run([probe], 1, deadline, lambda _, outcome, ended=ended: ended.append(outcome))
        if ended[0].status == DONE:
            break
        console.say(f"processes by {method} cannot use the device: {ended[0].answer}")
    return workers
