"""Stage 4: the table of benchmarks/glue.py at the kit's size: every row pre-trained on the same tokens, with the same
search, and fine-tuned beside controls."""

import math
from dataclasses import replace
from pathlib import Path

import commands
from glue_table import data, spread
from glue_table.budget import RECIPE, Budget
from glue_table.cases import STARTS, Table
from glue_table.rows import ROWS
from glue_table.stages import Part, Runner
from gpu_kit.processes import NotHereError
from gpu_kit.records import DONE, Measurement, Records
from gpu_kit.setting import Setting

from longmix.data_prep.tasks.embedded import write_embedded

# Of the time of the stage, what pre-training may take, its search included.
PRETRAINING = 0.6
# Seconds that a row's commands take before they compute, and all that a row may take: what the stage cuts off goes on
# at its checkpoint.
STARTING, LIMIT = 60.0, 3600.0
# Tokens per second where stage 3 has not measured them: of a GPU, and of a CPU.
SLOW, SLOW_CPU = 20000.0, 500.0
# Of a row, below which it has learnt nothing that tells it from others: some hundred steps.
FEWEST_TOKENS = 5_000_000
TASKS = ("cola", "sst2")  # of those that a pack may hold


def plan(setting: Setting, records: Records, seconds: float) -> list[Measurement]:
    """Every row, for an equal number of tokens: as many as the time holds at the slowest one's speed. All are
    pre-trained before the first is fine-tuned: should the time run out, there is a loss of each."""
    speeds = [
        row["answer"]["tokens_per_second"]
        for key, row in records.newest().items()
        if key.startswith("3/speed/") and row["status"] == DONE
    ]
    # Stage 3 has timed models of twice this one's size, or more.
    speed = min(speeds, default=SLOW if setting.device == "cuda" else SLOW_CPU)
    each = max(1.0, seconds / len(ROWS))
    earlier = [row["answer"] for row in records.rows if row["key"] == "4/budget" and _is_enough(setting, row["answer"])]
    # Decided once, so that those of a later call had the same.
    tokens = earlier[0] if earlier else int(PRETRAINING * max(1.0, each - STARTING) * speed)
    if not _is_enough(setting, tokens):
        needed = 2 + math.ceil(1.05 * len(ROWS) * (STARTING + FEWEST_TOKENS / PRETRAINING / speed) / 60)
        print(f"stage 4 has too little time to say anything: give it --stages 4 --minutes {needed}", flush=True)
        return []
    if not earlier:
        records.append("4/budget", DONE, answer=tokens)
    made = [Measurement("4/corpus", "gpu_kit.learning:corpus", seconds=300, alone=False)]
    for kind, job in (("learning", "learn"), ("tasks", "fine_tune")):
        arguments = [{"model": row, "tokens": tokens} for row in ROWS]
        made += [
            Measurement(f"4/{kind}/{one['model']}", f"gpu_kit.learning:{job}", one, seconds=LIMIT) for one in arguments
        ]
    return made


def _is_enough(setting: Setting, tokens: int) -> bool:
    return setting.quick or tokens >= FEWEST_TOKENS


def corpus(setting: Setting) -> dict[str, object]:
    """The corpus and the tasks of the pack, or those made of Python's documentation."""
    if setting.pack is not None and (setting.pack / "corpus" / "train").is_dir():
        return {"corpus": "the pack's", "folder": str(setting.pack / "corpus"), "glue": str(setting.pack / "glue")}
    made = write_embedded(setting.work / "embedded")
    folder = data.corpus(_work(setting), [Path(made.text)], None, setting.together)
    return {"corpus": "the documentation that Python carries", "folder": str(folder), "glue": str(made.glue)}


def learn(setting: Setting, model: str, tokens: int) -> dict[str, object]:
    """Pre-train on `tokens` with the best rate: held-out loss before and after."""
    about, table = corpus(setting), _table(setting, tokens)
    _advance(setting, table, Part((model,), (0,), ()))
    found = table.pretraining(model, 0).record()
    kept = ("tokens", "masked_accuracy")
    losses = [found["curve"][0][2], found["loss"]]
    return {
        "corpus": about["corpus"],
        "rate": table.rate(model),
        "loss": losses,
        **{name: found[name] for name in kept},
    }


def fine_tune(setting: Setting, model: str, tokens: int) -> dict[str, object]:
    """Fine-tune what `learn` has made, and the controls, on those of TASKS that there are.

    Raises:
        NotHereError: no task is there.
        RuntimeError: the model has not been pre-trained, or cannot be fine-tuned.
    """
    table = _table(setting, tokens)
    if not table.tasks:
        raise NotHereError("there are no tasks")
    case = table.pretraining(model, 0)
    if case is None or case.record() is None:
        raise RuntimeError("it has not been pre-trained")
    _advance(setting, table, Part((model,), (0,), tuple(table.tasks)))
    return {
        "scores": {
            task: {
                start: spread.score([table.tuning(model, start, task, 0).record()["scores"]]).mean for start in STARTS
            }
            for task in table.tasks
        }
    }


def _work(setting: Setting) -> Path:
    return setting.work / "glue"


def _middle(rates: tuple[float, ...]) -> tuple[float, ...]:
    return rates[(len(rates) - 1) // 2 :][:1]


def _table(setting: Setting, tokens: int) -> Table:
    """The table of glue.py with one seed of pre-training and few of fine-tuning; quick, with a single rate."""
    about = corpus(setting)
    budget = Budget.of("small" if setting.device == "cuda" else "tiny", tokens, None, RECIPE)
    budget = replace(budget, pretraining_seeds=1, tuning_seeds=3)
    if setting.quick:
        budget = replace(budget, rates=_middle(budget.rates), tuning_rates=_middle(budget.tuning_rates))
        budget = replace(budget, evaluations=1, tuning_seeds=1, control_seeds=1)
    elif setting.half != "bfloat16":
        budget = replace(budget, overrides=("precision=fp16", *budget.overrides[1:]))
    made = data.tasks(_work(setting), budget, Path(about["glue"]), None)
    return Table(_work(setting), budget, Path(about["folder"]), {name: made[name] for name in TASKS if name in made})


def _advance(setting: Setting, table: Table, part: Part) -> None:
    """Raises RuntimeError where a run fails."""
    runner = Runner(1, setting.together)
    runner.advance(table, part)
    for case, log in runner.failed:
        raise RuntimeError(f"{case.name}: {commands.last_line(log)}")
