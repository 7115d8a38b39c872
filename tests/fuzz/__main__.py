"""`python -m tests.fuzz CASE ...` runs cases again; with --cases N it runs N new ones, and prints a table.

A case is KIND:SEED:INDEX, as the table names it. Exit code 1 if one ends as none may.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from . import plan, running
from .mutations import remove


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CASE", help="cases to run again, each in a process of its own")
    parser.add_argument("--real", action="store_true", help="as the command that a user types, not forked")
    parser.add_argument("--keep", metavar="DIR", help="a new folder for the cases, which stays: the last is in case-0")
    parser.add_argument(
        "--cases", type=int, default=0, metavar="N", help="run N cases, a tenth of them as real commands"
    )
    parser.add_argument("--real-cases", type=int, metavar="N", help="of these, N as real commands instead of a tenth")
    parser.add_argument("--kinds", nargs="+", choices=list(running.KINDS), help="of these kinds alone")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the cases (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time (default: 1)")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="what is done, a line each: given again, it goes on"
    )
    arguments = parser.parse_args()
    cases = [(name, arguments.real) for name in arguments.names]
    cases += plan.cases(arguments.cases, arguments.seed, arguments.kinds, arguments.real_cases)
    verdicts = plan.read(arguments.record)
    done = {(verdict.case, verdict.is_real) for verdict in verdicts}
    wanted = [case for case in cases if case not in done]
    verdicts = [verdict for verdict in verdicts if (verdict.case, verdict.is_real) in set(cases)]
    running.import_once()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        # Below the folder that a case may look for by "..", nothing is of anybody else.
        place = Path(arguments.keep or folder).resolve() / "cases"
        place.mkdir(parents=True, exist_ok=True)
        try:
            for verdict in running.run_all(wanted, place, arguments.jobs):
                verdicts.append(verdict)
                if arguments.record:
                    with open(arguments.record, "a", encoding="utf-8") as file:
                        file.write(json.dumps(verdict.values()) + "\n")
                if arguments.names:
                    print(f"{verdict.case}: {verdict.what}\n$ longmix {verdict.command}")
                    print(f"exit code {verdict.code}: {verdict.last_line}")
        finally:
            if not arguments.keep:
                remove(place)
    print(plan.table(verdicts))
    usage = os.times()
    print(f"{usage.user + usage.system + usage.children_user + usage.children_system:.0f} CPU seconds")
    return int(any(verdict.failure for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
