"""Run folders as `longmix train` leaves them, and the report of some."""

import json

import pytest
import yaml

from longmix.trainer.many_runs.read import find_runs
from longmix.trainer.report.summary import summarize

FIELDS = {"model_type": "wavspa", "space": "adaptive", "attention": "softmax"}
STEPS = 40


def _write_run(folder, seed=0, test=0.5, evaluations=(0.1, 0.4, 0.3), is_whole=True, **changes):
    """A run folder of ListOps whose validation accuracy is `evaluations` at the steps 0, 20 and 40."""
    values = {
        "run": {"dir": str(folder), "seed": seed},
        "model": {"model_type": "wavspa"},
        "data": {"train": "data/listops/train", "eval": "data/listops/validation", "test": "data/listops/test"},
        "objective": {"name": "classification"},
        "optim": {"lr": 1e-3, "max_steps": STEPS},
        "checkpoint": {"every_steps": 20, "best": {"metric": "accuracy", "mode": "max"}},
        "provenance": {
            "git_commit": "0123456789abcdef",
            "git_diff": "",
            "device": "a processor",
            "processes": 1,
            "parameters": 1500,
            "data": {"task": {"name": "listops"}, "sequence_length": 64, "fingerprints": {"data.train": ["x"]}},
        },
    }
    for key, value in changes.items():
        section = values
        *parents, last = key.split("__")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    records = []
    for number, accuracy in enumerate(evaluations):
        records.append({"kind": "eval", "step": 20 * number, "loss": 1.0, "accuracy": accuracy, "items": 9})
        if number:
            speed = {"tokens_seen": 3600 * number, "tokens_per_second": 2.0}
            records.append({"kind": "train", "step": 20 * number, "loss": 1.0, **speed})
    if values["data"]["test"] is not None and is_whole:
        records.append({"kind": "test", "step": STEPS, "loss": 0.9, "accuracy": test, "items": 9})
    (folder / "model").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if is_whole:
        (folder / "model" / "config.json").write_text(json.dumps({**FIELDS, **values["model"]}))
    return folder


def _write_classes(folder, labels):
    from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64, write_dataset

    samples = ({"input_ids": [2 + label], "labels": label} for label in labels)
    columns = {"input_ids": LIST_INT32, "labels": SCALAR_INT64}
    return write_dataset(folder, samples, columns, split="test", split_rule="all", num_labels=3)


def _report_of(*paths):
    return summarize(find_runs([str(path) for path in paths]))


@pytest.fixture
def write_run():
    return _write_run


@pytest.fixture
def write_classes():
    return _write_classes


@pytest.fixture
def report_of():
    return _report_of
