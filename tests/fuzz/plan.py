"""Which cases make a run, and the table of how they ended."""

import json
from collections import Counter
from pathlib import Path

from .all_kinds import KINDS
from .running import Verdict


def cases(count: int, seed: int, kinds: list[str] | None = None, real: int | None = None) -> list[tuple[str, bool]]:
    """`count` cases, of each kind alike many: (KIND:SEED:INDEX, whether as a real command), of which `real` are (by
    default a tenth), spread over all of them and all kinds."""
    names = kinds or list(KINDS)
    real = count // 10 if real is None else min(real, count)
    found = []
    for number in range(count):
        row, column = divmod(number, len(names))
        # The kinds in another order in each row, lest each real command be of the same kind.
        name = names[(column + row) % len(names)]
        found.append((f"{name}:{seed}:{row}", (number + 1) * real // count > number * real // count))
    return found


def read(record: Path | None) -> list[Verdict]:
    """The verdicts of an earlier run; a last line that was cut off is left out."""
    found = []
    if record is not None and record.is_file():
        for line in record.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                found.append(Verdict(**json.loads(line)))
    return found


def table(verdicts: list[Verdict]) -> str:
    """How the cases of each kind ended, and each failure as the command that shows it."""
    rows = {}
    for verdict in verdicts:
        kind = verdict.case.partition(":")[0]
        row = rows.setdefault(kind, Counter())
        row["cases"] += 1
        row["real"] += verdict.is_real
        row["failed" if verdict.failure else str(verdict.code)] += 1
    columns = ("cases", "real", "0", "2", "75", "1", "failed")
    lines = [f"{'kind':<16}" + "".join(f"{name:>8}" for name in columns)]
    total = Counter()
    for kind, row in rows.items():
        total += row
        lines.append(f"{kind:<16}" + "".join(f"{row[name]:>8}" for name in columns))
    lines.append(f"{'all':<16}" + "".join(f"{total[name]:>8}" for name in columns))
    for verdict in verdicts:
        if verdict.failure:
            lines.append(f"python -m tests.fuzz {verdict.line()}: {verdict.last_line}")
    return "\n".join(lines)
