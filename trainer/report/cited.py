"""Figures that the papers report, from cited.yaml, each with its paper and table."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..many_runs.read import Run
from ..settings.run_file import parse_yaml

FILE = Path(__file__).with_name("cited.yaml")


@dataclass(frozen=True)
class Cited:
    """A figure of a paper, as printed there (accuracy and alike in percent).

    Attributes:
        model: what the paper calls the model.
        note: why it must be compared with care; may be empty.
    """

    metric: str
    value: float
    model: str
    paper: str
    table: str
    note: str

    @property
    def source(self) -> str:
        return f"{self.model}: {self.paper}, {self.table}"


def citations(run: Run) -> list[Cited]:
    """The papers' figures for the model and the task of a run."""
    found = []
    for paper, table in _tables():
        for row in table["rows"]:
            if not _is_model(run, row):
                continue
            for column, value in zip(table["columns"], row["values"], strict=True):
                if value is not None and _is_task(run, column):
                    note = " ".join(filter(None, [table.get("note"), paper.get("note")]))
                    metric = column.get("metric", table.get("metric"))
                    found.append(Cited(metric, value, row["name"], paper["cite"], table["table"], note))
    return found


@functools.cache
def _tables() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(paper, table of it) of the file."""
    values = parse_yaml(FILE.read_text(encoding="utf-8"), str(FILE))
    return [(values["papers"][table["paper"]], table) for table in values["tables"]]


def _is_model(run: Run, row: dict[str, Any]) -> bool:
    """A row names a model type, and may name fields of it, and others that are off, or that a run of before had not."""
    fields, found = row.get("fields", {}), run.model_fields
    return (
        run.model_type == row["model"]
        and all(found.get(key) == value for key, value in fields.items())
        and not any(found.get(key) for key in row.get("without", ()))
    )


def _is_task(run: Run, column: dict[str, Any]) -> bool:
    """A column names a task, and may name a data set (as the file or folder begins), settings of the task, a horizon,
    and a length or [least, most] of lengths.

    Figures are those of the task's labels, unless the column names another objective. A setting that is not noted is
    another.
    """
    dataset = column.get("dataset", "").lower()
    return (
        run.task == column["task"]
        and (run.objective == column["objective"] if "objective" in column else not run.predicts_tokens)
        and (run.dataset.lower().startswith(dataset) or run.data_name.lower().startswith(dataset))
        and _is_of_length(run.length, column.get("length"))
        and column.get("settings", {}).items() <= run.task_settings.items()
        and column.get("horizon") in (None, run.horizon)
    )


def _is_of_length(length: int | None, expected: int | list[int] | None) -> bool:
    if isinstance(expected, list):
        least, most = expected
        return length is not None and least <= length <= most
    return expected in (None, length)
