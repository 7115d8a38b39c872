"""What `longmix finetune` leaves beside its runs: the name of the user's data, and the figures of the dev splits.

A run is OUTPUT/TASK/seed-K or OUTPUT/TASK/lr-X/seed-K, the data OUTPUT/TASK/data, the figures OUTPUT/results.json.
"""

from pathlib import Path
from typing import Any

from longmix.data_prep.state_files import read_json

JOB, RESULTS, DATA = "job.json", "results.json", "data"
SELECTION = "selection"
ACCURACY = "accuracy"
# Before the name of a metric of the dev split; other dev splits (MNLI has two) have their name there.
DEV = "dev"
TEST = "test"  # of a user's own task: beside the dev split, or in place of it


def is_finetuned(run: Path) -> bool:
    """Tell whether a run is one of `longmix finetune`."""
    return (run / JOB).is_file()


def source(run: Path) -> Path | None:
    """The folder of the user's data, as it was named, or the data set of the hub; None if it is not to be found."""
    report = _read(_task_folder(run) / DATA / SELECTION / "manifest.json").get("report")
    named = report.get("source") if isinstance(report, dict) else None
    return Path(named) if isinstance(named, str) and Path(named).name else None


def dev_figures(run: Path, task: str, seed: int, learning_rate: float | None) -> dict[str, float]:
    """Metric of a dev split, e.g. "dev_accuracy" -> its figure with this seed; empty for a rate that was not chosen."""
    tasks = _read(_task_folder(run).parent / RESULTS).get("tasks")
    for found in tasks if isinstance(tasks, list) else []:
        try:
            if found["task"] != task or found["settings"].get("learning_rate", learning_rate) != learning_rate:
                continue
            place = found["seeds"].index(seed)
            return {
                f"{split['split'].replace('-', '_')}_{metric}": float(figure["values"][place])
                for split in found["splits"]
                for metric, figure in split["figures"].items()
                if metric != "score"
            }
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            continue  # a damaged table has no figures
    return {}


def dev_chances(run: Path, task: str) -> dict[str, float]:
    """Accuracy of a dev split, e.g. "dev_accuracy" -> what always answering the most frequent class of it reaches."""
    tasks = _read(_task_folder(run).parent / RESULTS).get("tasks")
    for found in tasks if isinstance(tasks, list) else []:
        try:
            if found["task"] == task:
                return {
                    f"{split['split'].replace('-', '_')}_{ACCURACY}": float(split["figures"][ACCURACY]["baseline"])
                    for split in found["splits"]
                    if split["figures"].get(ACCURACY, {}).get("baseline") is not None
                }
        except (AttributeError, KeyError, TypeError, ValueError):
            continue  # a damaged table has none
    return {}


def _task_folder(run: Path) -> Path:
    parent = run.absolute().parent
    return parent.parent if parent.name.startswith("lr-") else parent


def _read(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
