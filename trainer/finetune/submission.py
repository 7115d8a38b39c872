"""Predictions of the test files as GLUE's server takes them: `index<TAB>prediction`, one file per test set."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longmix.data_prep.files import make_folder
from longmix.data_prep.made_files import refuse_foreign_files, write_files

from ..samples.label_scale import DIGITS, LabelScale
from ..tables.text import csv_cell
from .tasks import TASKS, Task

# The files that GLUE's server takes, all of them or none.
SUBMISSIONS = tuple(split.submission for task in TASKS.values() for split in task.test)
_HEADER = "index\tprediction"


def format_prediction(task: Task, value: float | int, scale: LabelScale | None = None) -> str:
    """A class as the server spells it, a value with three decimals within the task's range (STS-B: 0 to 5), one of a
    user's own task, whose labels may have any unit, with the digits that `longmix predict` gives it by their `scale`.
    """
    if not task.regression:
        return task.submission_labels[int(value)]
    if task.value_range is None:
        return f"{float(value):.{DIGITS}g}" if scale is None else str(scale.rounded(float(value)))
    low, high = task.value_range
    # A prediction that is not a number counts as the lowest value: the server takes numbers only.
    return f"{min(max(float(value), low), high) if np.isfinite(value) else low:.3f}"


def write_submission(
    task: Task, indices: Sequence[str], predictions: np.ndarray, path: Path, scale: LabelScale | None = None
) -> None:
    """Write predictions (n,), class indices or values, under the test file's own indices; `scale` is that of labels
    which were standardised.

    GLUE's own are numbers and its words. What a user's files hold is written as a cell that no spreadsheet runs.
    """
    if len(indices) != len(predictions):
        raise ValueError(f"{len(indices)} indices and {len(predictions)} predictions")
    lines = [
        f"{csv_cell(index)}\t{csv_cell(format_prediction(task, value, scale))}"
        for index, value in zip(indices, predictions, strict=True)
    ]
    make_folder(path.parent)
    write_files(path.parent, {path.name: "\n".join([_HEADER, *lines]) + "\n"}, _is_earlier)


def missing_submissions(folder: Path) -> list[str]:
    """The files of GLUE's server that a folder of submissions does not hold."""
    return [name for name in SUBMISSIONS if not (folder / name).is_file()]


def refuse_foreign_submissions(task: Task, folder: Path) -> None:
    """Raise UserError if the folder of submissions holds files of somebody else under the names of this task's."""
    refuse_foreign_files(folder, [split.submission for split in task.test if split.submission is not None], _is_earlier)


def _is_earlier(path: Path) -> bool:
    """Whether an earlier version, which kept no record of its files, has written this one."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(len(_HEADER) + 1) == f"{_HEADER}\n"
