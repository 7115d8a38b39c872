"""The worth of the kernels to training: the same small run with plain PyTorch and with the kernels.

    python benchmarks/training_speed.py [--models NAME ...] [--steps 10] [--rounds 1] [--threads 2]

Trains every model type of `configs/model/NAME_tiny.yaml` by `longmix train` on rows of 512 and of 2048 random tokens,
with LONGMIX_KERNELS=portable and =auto in turn. Both runs have to begin with the same loss and the same gradient, or
there are no figures. Appends tokens per second, the median
over the steps behind the first ones, to benchmarks/results.csv, and draws the table of docs/learning.md from that file.

    python benchmarks/training_speed.py --step-cost [--before PYTHON] [--models NAME ...] [--steps 40] [--rounds 3]

measures instead the tokens per CPU-second of training steps in fp32 and bf16, beside transformers' BERT (see
learned/step_cost.py). `PYTHON` is that of an environment with an earlier version of longmix, to compare with.
"""

import argparse
import math
import os
import tempfile
from pathlib import Path

import commands
import record
import tables
import torch
from learned import step_cost
from learned.cases import ROOT, SINGLE, model_file
from samples.random_tokens import write_samples

from longmix.data_prep.files import write_text
from longmix.kernels import selection
from longmix.modeling import MODEL_TYPES

BENCHMARK = "training_speed"
DOCUMENT = ROOT / "docs" / "learning.md"
LENGTHS = (512, 2048)
CHOICES = ("portable", "auto")
TOKENS_OF_A_STEP = 4096
WARM_UP_STEPS = 3
# Of two runs with the same weights and the same batch: fp32 rounding, summed in another order.
TOLERANCE = 1e-3


def main() -> None:
    arguments = _parse()
    if arguments.step_cost:
        with tempfile.TemporaryDirectory() as temporary:
            step_cost.measure(Path(temporary), arguments.models, arguments.before, arguments.steps, arguments.rounds)
        _draw("step cost", step_cost.table(record.rows(step_cost.BENCHMARK)))
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ[selection.ENVIRONMENT_VARIABLE] = "auto"
    if selection.implementation("givens_mix", device) == "portable":
        raise SystemExit(f"nothing to compare: on {device}, plain PyTorch is what auto takes here")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for length in LENGTHS:
            write_samples(work / f"data-{length}", length, arguments.steps * TOKENS_OF_A_STEP // length)
        for model_type in arguments.models:
            for length in LENGTHS:
                for choice, speeds in measure(work, model_type, length, arguments).items():
                    record.append(
                        BENCHMARK,
                        case(model_type, length, choice),
                        "tokens per second",
                        speeds,
                        "tokens/s",
                        device=device,
                        threads=arguments.threads,
                        dtype="float32",
                        shape=f"B={TOKENS_OF_A_STEP // length} N={length}",
                    )
    _draw("speed", table(record.rows(BENCHMARK)))


def _draw(name: str, drawn: str) -> None:
    write_text(DOCUMENT, tables.replace(DOCUMENT.read_text(encoding="utf-8"), name, drawn))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODEL_TYPES), choices=MODEL_TYPES, metavar="NAME")
    parser.add_argument("--steps", type=int, default=10, help="steps of a run (default: 10)")
    parser.add_argument("--rounds", type=int, default=1, help="runs with each choice, in turn (default: 1)")
    parser.add_argument("--threads", type=int, default=2, help="threads of a run (default: 2)")
    parser.add_argument("--step-cost", action="store_true", help="tokens per CPU-second of steps instead")
    parser.add_argument("--before", metavar="PYTHON", help="with --step-cost: compare with that environment's version")
    arguments = parser.parse_args()
    if arguments.before is not None and not arguments.step_cost:
        parser.error("--before goes with --step-cost alone")
    if arguments.steps <= WARM_UP_STEPS:
        parser.error(f"--steps is {arguments.steps}; allowed: more than {WARM_UP_STEPS}, which are not counted")
    return arguments


def case(model_type: str, length: int, choice: str) -> str:
    """The name of a measurement in results.csv."""
    return f"{model_type}, N={length}, {choice}"


def measure(work: Path, model_type: str, length: int, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Tokens per second of every counted step, for each of CHOICES, whose runs take turns.

    Raises:
        SystemExit: a run fails, or the runs compute different things.
    """
    speeds = {choice: [] for choice in CHOICES}
    first_steps = []
    for number in range(arguments.rounds):
        # Whoever goes first does so in half of the rounds.
        for choice in CHOICES[:: -1 if number % 2 else 1]:
            run = work / f"{model_type}-{length}-{choice}-{number}"
            words = ["train", *run_arguments(model_type, length, arguments.steps, work / f"data-{length}", run)]
            commands.longmix(words, work / "log", threads=arguments.threads, LONGMIX_KERNELS=choice)
            steps = commands.records(run, "train")
            speeds[choice] += [step["tokens_per_second"] for step in steps[WARM_UP_STEPS:]]
            first_steps.append(steps[0])
    for figure in ("loss", "grad_norm"):
        found = [step[figure] for step in first_steps]
        if not all(math.isclose(value, found[0], rel_tol=TOLERANCE) for value in found):
            raise SystemExit(f"{model_type}, N={length}: {', '.join(CHOICES)} begin with different {figure}: {found}")
    return speeds


def run_arguments(model_type: str, length: int, steps: int, data: Path, run: Path) -> list[str]:
    """Arguments of `longmix train`: masked language modelling by a small model, every step noted."""
    samples = TOKENS_OF_A_STEP // length
    return [
        *(str(model_file(model_type)), "objective.name=mlm", "precision=fp32", *SINGLE, "log.every_steps=1"),
        *(f"data.train={data}", f"run.dir={run}", f"batch.samples={samples}", f"batch.micro_batch={samples}"),
        *(f"optim.max_steps={steps}", "optim.warmup_steps=1", f"checkpoint.every_steps={steps}"),
    ]


def table(rows: list[dict[str, str]]) -> str:
    """The table of the newest figure of every case among `rows` of results.csv."""
    newest = {row["case"]: row for row in rows}
    header = ["", *(f"N = {length}, {choice}" for length in LENGTHS for choice in (*CHOICES, "ratio"))]
    lines, shown = [], []
    for model_type in MODEL_TYPES:
        cells = []
        for length in LENGTHS:
            found = [newest.get(case(model_type, length, choice)) for choice in CHOICES]
            shown += [row for row in found if row is not None]
            cells += ["" if row is None else f"{float(row['value']):,.0f}" for row in found]
            cells.append("" if None in found else f"{float(found[1]['value']) / float(found[0]['value']):.1f}x")
        if any(cells):
            lines.append([f"`{model_type}`", *cells])
    return f"{tables.draw(header, lines)}\n\n{tables.measured(shown)}"


if __name__ == "__main__":
    main()
