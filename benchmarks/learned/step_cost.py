"""CPU time of a training step: tokens per CPU-second by `benchmarks/training_speed.py --step-cost`.

A step is all that `longmix train` does between two steps of the optimizer: reading and masking the batch, forward,
backward, the gradient norm, AdamW. CPU time is that of the process, all threads: other programs hardly change it.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import record
import tables
from learned.cases import SINGLE, TEXT_LENGTH, TEXT_VOCABULARY, model_file
from samples.random_tokens import write_samples

from longmix.data_prep.files import write_text
from longmix.modeling import MODEL_TYPES
from longmix.trainer.settings.run_file import parse_yaml

BENCHMARK = "step_cost"
FIGURE = "tokens per CPU-second"
ROWS = (8, 32)
PRECISIONS = ("fp32", "bf16")
BEFORE = "before"
BERT = "bert"
WARM_UP_STEPS = 5
# What figures of one session have in common.
SESSION = ("date", "commit", "command", "machine")
_WORKER = Path(__file__).with_name("step_worker.py")


@dataclass(frozen=True)
class Contestant:
    """A model in a precision; `python`: of the environment whose version of longmix trains it."""

    name: str
    precision: str
    python: str

    @property
    def case(self) -> str:
        return f"{self.name}, {self.precision}"


def contestants(models: list[str], before: str | None) -> list[Contestant]:
    """Every model in every precision, transformers' BERT, and with `before` the same models by that environment."""
    found = [Contestant(name, precision, sys.executable) for name in (*models, BERT) for precision in PRECISIONS]
    if before is not None:
        found += [Contestant(f"{name} {BEFORE}", precision, before) for name in models for precision in PRECISIONS]
    return found


def measure(work: Path, models: list[str], before: str | None, steps: int, rounds: int) -> None:
    """Append tokens per CPU-second of every contestant to results.csv: the median step of each round, in turn."""
    found: dict[tuple[str, int], list[float]] = {}
    for rows in ROWS:
        write_samples(work / f"data-{rows}", TEXT_LENGTH, rows * (steps + 2), TEXT_VOCABULARY)
    with Workers(work / "log") as workers:
        for number, rows in itertools.product(range(rounds), ROWS):
            everyone = contestants(models, before)
            # Whoever goes first does so in half of the rounds.
            for contestant in everyone[:: -1 if number % 2 else 1]:
                run = work / "-".join((*contestant.name.split(), contestant.precision, str(rows), str(number)))
                words = _words(contestant, rows, steps, work / f"data-{rows}", run)
                speed = rows * TEXT_LENGTH / workers.seconds(contestant.python, words)
                print(f"{contestant.case}, {rows} rows: {speed:,.0f} {FIGURE}", flush=True)
                found.setdefault((contestant.case, rows), []).append(speed)
    # Where the other environment lies says nothing to others.
    command = record.command_line() if before is None else record.command_line().replace(before, "PYTHON")
    for (case, rows), speeds in found.items():
        record.append(
            BENCHMARK,
            f"{case}, {rows} rows",
            FIGURE,
            speeds,
            "tokens/s",
            device="cpu",
            threads=1,
            dtype=case.rpartition(", ")[2],
            shape=f"B={rows} N={TEXT_LENGTH}",
            command=command,
        )


def _words(contestant: Contestant, rows: int, steps: int, data: Path, run: Path) -> list[str]:
    """Words of `longmix train` for a run of a contestant."""
    return [
        *(*model_words(contestant.name.removesuffix(f" {BEFORE}"), run.parent), "objective.name=mlm", *SINGLE),
        *(f"precision={contestant.precision}", "log.every_steps=1000", f"data.train={data}", f"run.dir={run}"),
        *(f"batch.samples={rows}", f"batch.micro_batch={rows}", f"optim.max_steps={steps}"),
        *("optim.warmup_steps=1", f"checkpoint.every_steps={steps}"),
    ]


class Workers:
    """Context of one process for each environment, which makes its runs one after the other (see step_worker.py)."""

    def __init__(self, log: Path):
        self._log, self._processes = log, {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.stdin.close()
            process.wait()

    def seconds(self, python: str, words: list[str]) -> float:
        """CPU-seconds of the median step of a run. Raises SystemExit if it fails."""
        if python not in self._processes:
            with open(self._log, "ab") as log:
                self._processes[python] = subprocess.Popen(
                    [python, str(_WORKER)],
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        process = self._processes[python]
        print(json.dumps(words), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            told = self._log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise SystemExit(f"longmix train {' '.join(words)} failed: {told}")
        return statistics.median(json.loads(answer)[WARM_UP_STEPS:])


def model_words(name: str, work: Path) -> list[str]:
    """Words of `longmix train` for half the layers of a `tiny` file; for `bert`, a run file of the transformer's size.

    That run file is written to the folder `work`.
    """
    file = model_file("transformer" if name == BERT else name)
    fields = parse_yaml(file.read_text(encoding="utf-8"), str(file))["model"]
    fields["num_hidden_layers"] //= 2
    if name != BERT:
        return [str(file), f"model.num_hidden_layers={fields['num_hidden_layers']}"]
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    write_text(work / f"{BERT}.yaml", json.dumps({"model": {**fields, "model_type": BERT, **dropout}}))  # JSON is YAML.
    return [str(work / f"{BERT}.yaml")]


def table(rows: list[dict[str, str]]) -> str:
    """The newest figure of every case among `rows` of results.csv, with the ratio to fp32 before where that took turns
    with it: figures of two sessions do not compare.
    """
    newest = {row["case"]: row for row in rows}
    columns = [(count, precision) for count in ROWS for precision in PRECISIONS]
    header = ["", *(f"{count} rows, {precision}" for count, precision in columns)]
    lines, shown = [], []
    for name in (*(f"{model}{suffix}" for model in MODEL_TYPES for suffix in (f" {BEFORE}", "")), BERT):
        cells = []
        for count, precision in columns:
            row = newest.get(f"{name}, {precision}, {count} rows")
            base = newest.get(f"{name.removesuffix(f' {BEFORE}')} {BEFORE}, fp32, {count} rows")
            shown += [] if row is None else [row]
            took_turns = None not in (row, base) and all(row[name] == base[name] for name in SESSION)
            ratio = f" ({float(row['value']) / float(base['value']):.2f}x)" if took_turns else ""
            cells.append("" if row is None else f"{float(row['value']):,.0f}{ratio}")
        if any(cells):
            lines.append([f"`{name.removesuffix(f' {BEFORE}')}`{', before' * name.endswith(BEFORE)}", *cells])
    return f"{tables.draw(header, lines)}\n\n{tables.measured(shown)}"
