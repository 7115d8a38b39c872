"""ListOps by rewriting text: innermost lists are replaced by their values until one digit is left.

    longmix prepare listops --train-samples 6000 --output data/listops
    python tests/data_prep/tasks/listops_oracle.py data/listops

evaluates all expressions of a prepared folder this way (10,000 here) and compares them with the labels.
"""

import re
import statistics
import sys
from pathlib import Path

IDS = dict(enumerate([*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]"], start=2))
VALUES = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(statistics.median(values)),
    "SM": lambda values: int(str(sum(values))[-1]),
}
INNERMOST = re.compile(r"\[(MIN|MAX|MED|SM)((?: \d)+) \]")


def text_of(input_ids):
    return " ".join(IDS[token] for token in input_ids)


def value_of(text):
    """The value of an expression in ListOps' notation."""
    while len(text) > 1:
        shorter = INNERMOST.sub(lambda found: str(VALUES[found[1]]([int(digit) for digit in found[2].split()])), text)
        assert shorter != text, f"no expression: {text}"
        text = shorter
    return int(text)


def disagreements(folder):
    """(samples, samples whose label is another value) of a prepared folder."""
    import pyarrow.parquet as pq

    samples = wrong = 0
    for path in sorted(Path(folder).glob("*/*.parquet")):
        rows = pq.read_table(path, columns=["input_ids", "labels"])
        for input_ids, label in zip(rows["input_ids"], rows["labels"], strict=True):
            samples += 1
            wrong += value_of(text_of(input_ids.as_py())) != label.as_py()
    return samples, wrong


if __name__ == "__main__":
    samples, wrong = disagreements(sys.argv[1])
    print(f"{samples:,} answers, {wrong:,} wrong")
    sys.exit(1 if wrong or not samples else 0)
