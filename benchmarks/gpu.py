"""What a GPU is worth to longmix: every kernel proved, blocks and models timed, in one command and one page.

    python benchmarks/gpu.py --work FOLDER [--stages 1,2,3,4] [--minutes 10] [--quick] [--pack FOLDER]

Needs no network. Stages: (1) what is here, and every kernel against the equations; (2) blocks, operations and
attentions by every way that computes the same; (3) whole models in training; (4) learning on an equal budget. Results
are written as they come; the same command goes on where the time ran out, and tries what has failed once more.
FOLDER/page has the page, made anew after each stage. --quick tries the kit with small sizes, on a CPU too.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpu_kit import page
from gpu_kit.processes import Outcome, Workers
from gpu_kit.records import DONE, Measurement, Records
from gpu_kit.runner import STAGES, Console, run_stage, share
from gpu_kit.setting import BENCHMARKS, Setting, UserMistakeError, environment

INTERRUPTED = 75
COST = BENCHMARKS / "gpu_cost.py"


def main() -> int:
    arguments = _parse()
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
    """The stages, and the page after each."""
    for name, value in environment(setting).items():
        os.environ.setdefault(name, value)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH")]))
    _take_caches(setting)
    end = time.monotonic() + 60 * arguments.minutes
    console = Console(end)
    signal.signal(signal.SIGTERM, _interrupt)
    workers = _workers(setting, console)
    code = 0
    cost = _begin_cost(setting)
    try:
        for index, number in enumerate(arguments.stages):
            deadline = time.monotonic() + share(end - time.monotonic(), arguments.stages[index:])
            run_stage(number, setting, records, workers, deadline, console)
            folder = page.make(setting, records, _prediction(setting))
            console.say(f"stage {number} is over; the page: {folder}/report.html")
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        if cost is not None:
            cost.kill()
            cost.wait()
        folder = page.make(setting, records, _prediction(setting))
        records.close()
    if code:
        print(f"interrupted; the same command goes on; the page of what there is: {folder}/report.html", flush=True)
    return code


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _workers(setting: Setting, console: Console) -> Workers:
    """Processes forked from a server where such a process can use the GPU, else processes that begin from nothing."""
    for method in ("forkserver", "spawn"):
        ended: list[Outcome] = []
        workers = Workers(setting, method)
        probe = Measurement("0/probe", "gpu_kit.proofs:environment", seconds=180)
        workers.run([probe], 1, time.monotonic() + 180, lambda _, outcome, ended=ended: ended.append(outcome))
        if ended and ended[0].status == DONE:
            break
        console.say(f"processes by {method} cannot use the device ({ended[0].answer if ended else 'no answer'})")
    return workers


def _take_caches(setting: Setting) -> None:
    """The compiled kernels of the pack, where there are none yet."""
    target = Path(os.environ["TRITON_CACHE_DIR"])
    if setting.pack is not None and (setting.pack / "triton-cache").is_dir() and not target.exists():
        shutil.copytree(setting.pack / "triton-cache", target)


def _begin_cost(setting: Setting) -> subprocess.Popen | None:
    """The model's prediction, computed beside the first stage; None: there is none, or it is there already."""
    target = setting.work / "prediction.json"
    if not COST.is_file() or target.is_file() or setting.device == "cpu":
        return None
    temporary = setting.work / "new-prediction.json"
    script = f'"$0" "$1" --json "$2" && mv "$2" "{target}"'
    with open(setting.work / "logs" / "prediction.log", "wb") as log:
        return subprocess.Popen(
            ["nice", "sh", "-c", script, sys.executable, str(COST), str(temporary)],
            stdout=log,
            stderr=log,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )


def _prediction(setting: Setting) -> dict | None:
    """gpu_cost's answer; None: not there (yet), or not readable."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((setting.work / "prediction.json").read_text(encoding="utf-8"))
    return None


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="for everything that is written")
    parser.add_argument("--stages", type=_stages, default=sorted(STAGES), metavar="1,2,3,4", help="default: all")
    parser.add_argument(
        "--minutes", type=float, default=10.0, metavar="M", help="for all stages together (default: 10)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, for a trial; a CPU will do")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="made by benchmarks/gpu_pack.py")
    arguments = parser.parse_args()
    if not arguments.minutes > 0:
        parser.error(f"--minutes is {arguments.minutes}; allowed: more than 0")
    if arguments.pack is not None and not arguments.pack.is_dir():
        parser.error(f"--pack {arguments.pack} is no folder; make one with benchmarks/gpu_pack.py")
    return arguments


def _stages(text: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not set(found) <= STAGES.keys():
        raise argparse.ArgumentTypeError(
            f"{text!r}; allowed: some of {','.join(map(str, STAGES))}, with commas between"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
