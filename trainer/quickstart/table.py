"""The closing table of a quickstart: what came out, told apart from chance, and where everything lies."""

from typing import Any

from longmix.data_prep.errors import printable
from longmix.data_prep.manifest import Manifest

from ..finetune.results import Results, SplitResult, TaskResult
from ..many_runs.read import Run, read_run
from ..report.counted import counted_losses
from ..tables.figures import Figure, interval, percent
from .plan import Plan
from .stages import Tuned, time_limit

_METRIC_NAMES = {"matthews": "Matthews", "f1": "F1", "pearson": "Pearson", "spearman": "Spearman", "score": "mean"}
_VERDICTS = {
    "above": "The score lies above it.",
    "below": "The score lies BELOW it.",
    "contains": "The interval CONTAINS it: nothing is shown to have been learned for this task.",
}


def closing_table(plan: Plan, corpus: str, tuned: Tuned) -> str:
    """The table as text."""
    data, run = plan.output / "data", read_run(plan.output / "pretrain")
    train, validation = Manifest.load(data / "train"), Manifest.load(data / "validation")
    before, after = run.evaluations[0], run.evaluations[-1]
    splits = train.report["splits"]
    documents = sum(split["documents"] for split in splits.values())
    size = sum(split["bytes"] for split in splits.values())
    rows = [
        ("corpus", corpus),
        ("", f"{documents:,} documents, {size / 1e6:,.1f} MB"),
        ("tokens", f"{train.tokens:,} to train on, {validation.tokens:,} held out; vocabulary {train.vocab_size:,}"),
        ("model", _model(run)),
        ("pre-training", _training(run)),
        *([("", f"LIMITED: {limit}")] if (limit := time_limit(plan)) is not None else []),
        ("held-out loss", f"{before['loss']:.3f} before, {after['loss']:.3f} after"),
        *counting_rows(run),
        (
            "masked accuracy",
            f"{percent(before['masked_accuracy'])} % before, {percent(after['masked_accuracy'])} % after, "
            f"with {100 * run.evaluation_mask_probability:g} % masked",
        ),
        *task_rows(tuned.described, _result(plan, tuned.name)),
    ]
    places = [
        ("data, tokenizer", data),
        ("run file", plan.output / "pretrain.yaml"),
        ("run", f"{run.folder} (metrics.jsonl, tensorboard/, checkpoints/)"),
        ("checkpoint", run.folder / "model"),
        ("results", f"{plan.output / 'finetune' / 'results.md'}"),
    ]
    return f"{_lines(rows)}\n\nwhere it lies\n{_lines(places)}"


def counting_rows(run: Run) -> list[tuple[str, str]]:
    """What counting reaches at the same tokens; nothing where the data are no longer at hand."""
    losses = counted_losses(run)
    if losses is None:
        return []
    unigram, bigram, _ = losses
    return [("", f"counting reaches {unigram:.3f} by single pieces, {bigram:.3f} by pairs of neighbours")]


def _result(plan: Plan, task: str) -> TaskResult:
    """The task's figures; the table may have others, of an earlier version's call."""
    return next(result for result in Results.load(plan.output / "finetune").tasks if result.task == task)


def _lines(rows: list[tuple[str, Any]]) -> str:
    return "\n".join(printable(f"  {name:<17}{value}") for name, value in rows)


def _model(run: Run) -> str:
    return f"{run.model_type}, {run.value('model.num_hidden_layers')} layers of width {run.value('model.hidden_size')}"


def _training(run: Run) -> str:
    """Steps, tokens and speed: the mean over the time that training itself took."""
    tokens = run.training[-1]["tokens_seen"]
    speed = tokens / (3600 * run.hours)
    return f"{run.value('optim.max_steps'):,} steps, {tokens:,} tokens, {speed:,.0f} tokens/s"


def task_rows(name: str, task: TaskResult) -> list[tuple[str, str]]:
    """The figures of the fine-tuned task, each score with its interval and the baseline."""
    rows = [("task", name)]
    for split in task.splits:
        # The score of one metric equals it.
        for metric in task.metrics if len(task.metrics) == 1 else (*task.metrics, "score"):
            figure = split.figures[metric]
            rows.append((_METRIC_NAMES.get(metric, metric), _score(figure, split)))
            rows.append(("", f"the best constant answer: {percent(figure.baseline)}. {_VERDICTS[figure.verdict]}"))
    return rows


def _score(figure: Figure, split: SplitResult) -> str:
    examples = f"{split.samples:,} examples of {split.split}"
    return f"{percent(figure.mean)}, 95 % interval {interval(figure.interval)} ({examples})"
