"""What a GPU is worth to longmix: every kernel proved, blocks and models timed, in one command and one page.

    python benchmarks/gpu.py --work FOLDER [--stages 1,2,3,4] [--minutes 10] [--quick] [--pack FOLDER]

Needs no network. Stages: (1) what is here, and every kernel against the equations; (2) blocks, operations and
attentions by every way that computes the same; (3) whole models in training; (4) learning on an equal budget. Results
are written as they come; the same command goes on where the time ran out, and tries what has failed once more.
FOLDER/page has the page, made anew after each stage. --quick tries the kit with small sizes, on a CPU too. Where
longmix is not installed, --pack names what benchmarks/gpu_pack.py has made: FOLDER/python then becomes an environment.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

STAGES = (1, 2, 3, 4)
ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    arguments = parse()
    if importlib.util.find_spec("longmix") is None:
        code = install(arguments)
        if code:
            return code
        python = str((arguments.work / "python").resolve() / "bin" / "python")
        os.execv(python, [python, __file__, *sys.argv[1:]])
    from gpu_kit import command

    return command.run(arguments)


def install(arguments: argparse.Namespace) -> int:
    """Install longmix from the pack into the folder python of --work; the exit code: 0, or 2 and a line why not."""
    if arguments.pack is None or not (arguments.pack / "install.py").is_file():
        print(
            "error: longmix is not installed for this Python: activate its environment, or name with --pack what "
            "benchmarks/gpu_pack.py has made",
            file=sys.stderr,
        )
        return 2
    folder = arguments.work / "python"
    is_whole = folder / "is-whole"
    if not is_whole.is_file():
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier call that was cut off
        script = [sys.executable, str(arguments.pack / "install.py"), str(folder), "--tree", str(ROOT)]
        if subprocess.run(script).returncode != 0:
            return 2
        is_whole.touch()
    return 0


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The arguments; a mistake ends the process with exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="for everything that is written")
    parser.add_argument("--stages", type=_stages, default=list(STAGES), metavar="1,2,3,4", help="default: all")
    parser.add_argument(
        "--minutes", type=float, default=10.0, metavar="M", help="for all stages together (default: 10)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, for a trial; a CPU will do")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="made by benchmarks/gpu_pack.py")
    arguments = parser.parse_args(words)
    if not arguments.minutes > 0:
        parser.error(f"--minutes is {arguments.minutes}; allowed: more than 0")
    if arguments.pack is not None and not arguments.pack.is_dir():
        parser.error(f"--pack {arguments.pack} is no folder; make one with benchmarks/gpu_pack.py")
    return arguments


def _stages(text: str) -> list[int]:
    numbers = {int(part) if part.isdecimal() else 0 for part in text.split(",")}
    if not numbers <= set(STAGES):
        allowed = ",".join(map(str, STAGES))
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: some of {allowed}, with commas between")
    return sorted(numbers)


if __name__ == "__main__":
    sys.exit(main())
