"""The stages of a quickstart. Each does nothing again that an earlier call has finished."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from longmix.data_prep.errors import UserError, printable
from longmix.data_prep.files import write_text
from longmix.data_prep.made_folders import new_folder
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tasks.embedded import SENTENCE, TASK_NAME, TASK_QUESTION, write_embedded
from longmix.data_prep.tokenizer import sensible_vocabulary

from ..finetune.sources import MissingTask, load_task
from ..finetune.tasks import CUSTOM, TASKS
from ..many_runs.read import is_finished, read_run
from .commands import longmix, longmix_quietly
from .plan import Plan
from .text import MEGABYTE, take_text

MEASURED_STEPS = 30
_EVALUATIONS = 5
_EXAMPLE_TOKENS = 40  # to judge how long a pass over a task takes; its padding counts
_EPOCHS = 5


# -----------------------------------------------------------------------------
# Text: the user's, or one that every Python carries, so that nothing need be downloaded.


def prepare_text(plan: Plan) -> str:
    """Tokenizer and shards; returns how the corpus is called in the closing table."""
    reading: tuple[str, ...] = ()
    if plan.settings["text"] is None:
        embedded = write_embedded(plan.output / "embedded")
        sources, size, name = [embedded.text], embedded.bytes, "the documentation that Python carries"
    else:
        column, file_format = plan.settings.get("column") or "text", plan.settings.get("format")
        limit = int(plan.settings["megabytes"] * MEGABYTE)
        text = take_text(plan.settings["text"], limit, plan.output / "text", column, file_format)
        if not text.is_copy:
            reading = ("--column", column, *(() if file_format is None else ("--format", file_format)))
        sources, size, name = text.sources, text.bytes, plan.settings["text"]
        if text.note:
            print(printable(f"taking {text.note}"))
            name = f"{name}, {text.note}"
    longmix(
        *("prepare", "text"),
        *(word for source in sources for word in ("--source", source)),
        *reading,
        *("--output", plan.output / "data"),
        *("--vocab-size", str(sensible_vocabulary(size, plan.recipe.vocab_size))),
        *("--sequence-length", str(plan.recipe.sequence_length)),
        *("--packing", "one-per-row"),
    )
    return name


# -----------------------------------------------------------------------------
# Pre-training on a fixed number of tokens, so that the result does not depend on what else the machine does. Whether
# they fit into the time is measured first, with the same model on the same data.


def pretrain(plan: Plan) -> None:
    """Measure the speed, write the run file, train."""
    run_file, run = plan.output / "pretrain.yaml", plan.output / "pretrain"
    if plan.speed is None:
        print(f"measuring the speed of this machine ({MEASURED_STEPS} steps)", flush=True)
        plan.speed = _measure(plan)
        plan.save()
    if not run_file.is_file():
        values = run_values(plan)
        why = time_limit(plan) or f"{plan.recipe.tokens:,} tokens."
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        write_text(run_file, f"# Written by ./quickstart; optim.max_steps: {why}\n{text}")
    max_steps = yaml.safe_load(run_file.read_text(encoding="utf-8"))["optim"]["max_steps"]
    if is_finished(run, max_steps):
        print(f"{run} is finished; nothing to do")
        return
    longmix("train", run_file)


def run_values(plan: Plan) -> dict[str, Any]:
    """The run file of the pre-training: as many steps as make the recipe's tokens, or as the time holds."""
    train = Manifest.load(plan.output / "data" / "train")
    recipe = plan.recipe
    tokens = plan.affordable_tokens if time_limit(plan) else recipe.tokens
    steps = max(1, round(tokens * train.samples / (recipe.samples * train.tokens)))
    return {
        **_common_values(plan, plan.output / "pretrain"),
        "optim": {"lr": recipe.lr, **recipe.optim, "max_steps": steps},
        "eval": {"every_steps": -(-steps // _EVALUATIONS), "samples": 500},
        "checkpoint": {"every_steps": -(-steps // _EVALUATIONS), "keep": 1},
        "log": {"every_steps": max(1, steps // 25)},
    }


def time_limit(plan: Plan) -> str | None:
    """Why the pre-training is shorter than its recipe; None: it is not."""
    wanted = plan.recipe.tokens
    if wanted is not None and plan.affordable_tokens >= wanted:
        return None
    instead = "" if wanted is None else f" in place of {wanted:,} tokens"
    return (
        f"what {plan.pretraining_seconds:,.0f} seconds hold at the {plan.speed:,.0f} tokens/s measured "
        f"beforehand{instead}: with more --minutes the figures are others"
    )


def _common_values(plan: Plan, run: Path) -> dict[str, Any]:
    data, recipe = plan.output / "data", plan.recipe
    return {
        "run": {"dir": str(run)},
        "model": {"model_type": "s3attention", **recipe.model},
        "data": {"train": str(data / "train"), "eval": str(data / "validation")},
        "objective": {"name": "mlm", "mask_probability": recipe.mask_probability},
        "batch": {"samples": recipe.samples, "micro_batch": recipe.micro_batch},
        "precision": recipe.precision,
        "deepspeed": "zero1",
    }


def _measure(plan: Plan) -> float:
    """Tokens per second over all devices, from a few steps of the same model on the same data."""
    with new_folder(plan.output / "speed") as folder:
        # Below it: a new folder is locked, and the run locks the one that it makes its model in.
        run = folder / "run"
        values = {
            **_common_values(plan, run),
            "data": {"train": _common_values(plan, run)["data"]["train"]},
            "optim": {"lr": plan.recipe.lr, **plan.recipe.optim, "max_steps": MEASURED_STEPS},
            "log": {"every_steps": MEASURED_STEPS // 3, "tensorboard": False},
        }
        write_text(folder / "speed.yaml", yaml.safe_dump(values))
        longmix_quietly("train", folder / "speed.yaml")
        # The first third warms up.
        speeds = [record["tokens_per_second"] for record in read_run(run).training][1:]
    return sum(speeds) / len(speeds)


# -----------------------------------------------------------------------------
# Fine-tuning: one seed, and as many epochs as a quarter of the time holds.


@dataclass(frozen=True)
class Tuned:
    """The task that was fine-tuned: its name in the results table, and what the closing table says of it."""

    name: str
    described: str


def finetune(plan: Plan) -> Tuned:
    """Fine-tune on one task: GLUE's, or one that every Python carries."""
    if plan.settings["glue"] is None:
        embedded = write_embedded(plan.output / "embedded")
        task, data, columns, examples = CUSTOM, embedded.task, ("--text-columns", SENTENCE), embedded.sentences["train"]
        described = f"{TASK_NAME}: {TASK_QUESTION}"
        print(f"the task is {described}")
    else:
        data, columns = plan.settings["glue"], ()
        task, examples = find_task(data)
        described = f"GLUE's {task}"
    epoch_seconds = examples * _EXAMPLE_TOKENS / (plan.speed or 1)
    epochs = min(_EPOCHS, max(1, int(plan.finetuning_seconds / epoch_seconds)))
    if epoch_seconds > max(60, 2 * plan.finetuning_seconds):
        print(f"{task} is large: one pass over it takes about {epoch_seconds / 60:,.0f} minutes here")
    longmix(
        *("finetune", "--model", plan.output / "pretrain" / "model"),
        *("--task", task, "--data", data, *columns, "--output", plan.output / "finetune"),
        *("--seeds", "1", "--epochs", str(epochs), "--lr", f"{plan.recipe.finetune_lr:g}"),
        *("--precision", plan.recipe.precision),
    )
    limited = f"; {epochs} of {_EPOCHS} passes, for time" if epochs < _EPOCHS else ""
    return Tuned(task, described + limited)


def find_task(data: str) -> tuple[str, int]:
    """CoLA, else the first of GLUE's tasks that `data` holds, and the number of its training examples.

    Raises UserError if it holds none.
    """
    for name, task in TASKS.items():
        try:
            return name, len(load_task(data, task).train)
        except MissingTask:
            continue
    raise UserError(f"--glue {data} holds none of GLUE's tasks ({', '.join(task.folder for task in TASKS.values())})")
