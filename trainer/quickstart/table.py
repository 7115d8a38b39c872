"""The closing table of a quickstart: what came out, told apart from chance, and where everything lies."""

import itertools
import json
from pathlib import Path
from typing import Any

import yaml

from longmix.data_prep.manifest import Manifest

from .plan import Plan
from .stages import records

_METRIC_NAMES = {"matthews": "Matthews", "f1": "F1", "pearson": "Pearson", "spearman": "Spearman", "score": "mean"}


def closing_table(plan: Plan, corpus: str, task: str) -> str:
    """The table as text."""
    data, run = plan.output / "data", plan.output / "pretrain"
    train, validation = Manifest.load(data / "train"), Manifest.load(data / "validation")
    settings = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    steps, last = settings["optim"]["max_steps"], records(run, "train")[-1]
    before, after = records(run, "eval")[0], records(run, "eval")[-1]
    splits = train.report["splits"]
    documents = sum(split["documents"] for split in splits.values())
    size = sum(split["bytes"] for split in splits.values())
    rows = [
        ("corpus", corpus),
        ("", f"{documents:,} documents, {size / 1e6:,.1f} MB"),
        ("tokens", f"{train.tokens:,} to train on, {validation.tokens:,} held out; vocabulary {train.vocab_size:,}"),
        ("model", _model(settings)),
        ("pre-training", f"{steps:,} steps, {last['tokens_seen']:,} tokens, {_speed(run):,.0f} tokens/s"),
        ("held-out loss", f"{before['loss']:.3f} before, {after['loss']:.3f} after"),
        (
            "masked accuracy",
            f"{100 * before['masked_accuracy']:.1f} % before, {100 * after['masked_accuracy']:.1f} % after",
        ),
        *task_rows(task, json.loads((plan.output / "finetune" / "results.json").read_text(encoding="utf-8"))),
    ]
    places = [
        ("data, tokenizer", data),
        ("run file", plan.output / "pretrain.yaml"),
        ("run", f"{run} (metrics.jsonl, tensorboard/, checkpoints/)"),
        ("checkpoint", run / "model"),
        ("results", f"{plan.output / 'finetune' / 'results.md'}"),
    ]
    return f"{_lines(rows)}\n\nwhere it lies\n{_lines(places)}"


def _lines(rows: list[tuple[str, Any]]) -> str:
    return "\n".join(f"  {name:<17}{value}" for name, value in rows)


def _model(settings: dict[str, Any]) -> str:
    model = settings["model"]
    return f"{model['model_type']}, {model['num_hidden_layers']} layers of width {model['hidden_size']}"


def _speed(run: Path) -> float:
    """Tokens per second of training alone: the mean over the records' stretches, each weighted by its tokens."""
    found = records(run, "train")
    seen = [0, *(record["tokens_seen"] for record in found)]
    tokens = [now - before for before, now in itertools.pairwise(seen)]
    return sum(tokens) / sum(count / record["tokens_per_second"] for count, record in zip(tokens, found, strict=True))


def task_rows(name: str, results: dict[str, Any]) -> list[tuple[str, str]]:
    """What fine-tuning's results.json says about its one task, each score with its interval and the baseline."""
    rows = [("task", name)]
    for split in results["tasks"][0]["splits"]:
        figures = split["figures"]
        if len(figures) == 2:  # one metric, and the score that equals it
            figures = {metric: figure for metric, figure in figures.items() if metric != "score"}
        for metric, figure in figures.items():
            low, high = figure["interval"]
            rows.append(
                (
                    _METRIC_NAMES.get(metric, metric),
                    f"{100 * figure['mean']:.1f}, 95 % interval {100 * low:.1f} to {100 * high:.1f} "
                    f"({split['samples']:,} examples of {split['split']})",
                )
            )
            rows.append(("", f"always the most frequent class: {100 * figure['baseline']:.1f}. {_verdict(figure)}"))
    return rows


def _verdict(figure: dict[str, Any]) -> str:
    return {
        "above": "The score lies above it.",
        "below": "The score lies BELOW it.",
        "contains": "The interval CONTAINS it: nothing is shown to have been learned for this task.",
    }[figure["verdict"]]
