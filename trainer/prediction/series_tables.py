"""Time series in tables from outside: their values as a model was trained on them, and their dates."""

import itertools
from collections import defaultdict
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.tasks import series_quality
from longmix.data_prep.tasks.series_files import (
    DATE,
    Series,
    Written,
    in_thousands,
    interval_of,
    moment_of,
    refuse_both_marks,
)

from ..finetune.records import Row, Table
from ..models.folder import Inputs
from ..settings.mistakes import say
from .dates_ahead import dates_ahead

_FAR = 20  # standard deviations: measured values that far from all of training are rarer than codes for missing ones


class Dated(NamedTuple):
    """The rows of a table with their dates.

    Attributes:
        columns: of the date.
        rows: of them, with their places.
        moments: of the rows.
        series: the same without values, for series_quality.
    """

    columns: list[str]
    rows: list[Row]
    moments: list[datetime]
    series: Series


class Dates(NamedTuple):
    """Of the steps of a forecast, with the name of their column."""

    column: str
    ahead: list[str]


def series_of(inputs: Inputs, model: str) -> dict[str, Any]:
    """Names, means and scales of the series that a model was trained on. Raises UserError if its folder has none."""
    if inputs.series is None:
        raise UserError(
            f"{model} does not say by which means and scales its series was standardised (an earlier version wrote "
            "it): name the folder of a prepared split as --data, whose manifest does"
        )
    return inputs.series


def standardised(table: Table, rows: list[Row], series: dict[str, Any]) -> np.ndarray:
    """The values of rows of a table, read with the names of the variables, as in training: (rows, C) float32.

    Lines tell commas that may be of thousands, and the value that is farthest from those of training, if it is far.

    Raises:
        UserError: a value is missing or no number.
    """
    names = series["names"]
    if table.has_decimal_commas:
        _look_at_commas(table.source, rows, names)
    values = [
        [_number(text, name, row.place, table.has_decimal_commas) for text, name in zip(row.texts, names, strict=True)]
        for row in rows
    ]
    made = (np.asarray(values) - np.asarray(series["mean"])) / np.asarray(series["scale"])
    _warn_of_outliers(made, rows, names)
    return made.astype(np.float32)


def dated(table: Table, series: dict[str, Any]) -> Dated | None:
    """A table's dates; None where it has none that can be read.

    Raises:
        UserError: most of its rows go back, as where the newest one is the first.
    """
    columns = series.get("date_columns", [DATE])
    try:
        rows = list(table.rows(columns))
        moments = [moment_of(row.texts, row.place) for row in rows]
    except UserError:
        return None  # they are not needed
    if len(rows) < 2:
        return None
    seconds = np.array([(later - before).total_seconds() for before, later in itertools.pairwise(moments)])
    if 2 * np.count_nonzero(seconds == 0) >= len(seconds):
        return None  # a part of the date, beside its time
    texts = [" ".join(row.texts) for row in rows]
    if 2 * np.count_nonzero(seconds < 0) > len(seconds):
        row, shown = np.flatnonzero(seconds < 0)[0] + 1, " ".join(map(repr, columns))
        raise UserError(f"{rows[row].place}: {shown} goes back to {texts[row]!r}: sort the rows by it, the newest last")
    return Dated(columns, rows, moments, Series([], texts, interval_of(seconds), np.empty((len(rows), 0)), seconds))


def dates_after(table: Table, series: dict[str, Any], input_length: int, horizon: int) -> Dates | None:
    """The dates of the steps that follow a table; None where it has none that can be read, or that follow no rule
    within the window. A line tells the latter, and another where time does not go on evenly there.

    Raises:
        UserError: as `dated`.
    """
    found = dated(table, series)
    if found is None or len(found.rows) < input_length:
        return None  # a table that is too short is refused elsewhere
    texts, columns = found.series.dates, found.columns
    uneven = [row for row in series_quality.gaps(found.series) if row > len(texts) - input_length]
    if uneven:
        first, what = uneven[0], series_quality.describe_step(found.series.seconds[uneven[0] - 1])
        more = f", and {len(uneven) - 1} more" if len(uneven) > 1 else ""
        say(
            "warning: the steps before the forecast do not follow each other evenly: "
            f"{found.rows[first].place} ({texts[first]}) {what}{more}"
        )
    written = texts if len(columns) == 1 else [moment.isoformat(" ") for moment in found.moments]
    ahead = dates_ahead(written[-input_length:], horizon)
    if ahead is None:
        say(
            f"the forecast has no dates, for the last {input_length} of {table.source} follow no rule: the same time "
            "from one to the next, whole months, or working days"
        )
        return None
    name = columns[0] if len(columns) == 1 else DATE
    return Dates(DATE if name == "row" else name, ahead)


def _look_at_commas(source: str, rows: list[Row], names: list[str]) -> None:
    """A line where commas seem to be of thousands: they are read as those of decimals, for the model may know better.

    Raises:
        UserError: a number has a comma and another one a point.
    """
    written: dict[str, Written] = defaultdict(Written)
    marked: dict[str, str] = {}
    for row in rows:
        for text, name in zip(row.texts, names, strict=True):
            written[name].note(text.strip())
            marks = {mark for mark in ",." if mark in text}
            if len(marks) == 1:  # one with both is no number at all
                marked.setdefault(marks.pop(), text)
    refuse_both_marks(source, marked.get(","), marked.get("."))
    told = in_thousands(written)
    if told is not None:
        say(f"warning: {source}: {told}: commas are read as those of decimals; write thousands without")


def _warn_of_outliers(standardised: np.ndarray, rows: list[Row], names: list[str]) -> None:
    """A line about the value that is farthest from those of training: a code such as -9999 ruins a forecast."""
    step, variable = np.unravel_index(np.abs(standardised).argmax(), standardised.shape)
    distance = abs(standardised[step, variable])
    if distance > _FAR:
        shown = f"{rows[step].place}: {names[variable]!r} is {rows[step].texts[variable]}"
        say(
            f"warning: {shown}, {distance:.0f} standard deviations from the mean of training: if that stands for a "
            "missing value, fill it first"
        )


def _number(text: str, name: str, place: str, has_decimal_commas: bool) -> float:
    # A point beside a comma would be one of thousands: what stands for what is not guessed.
    is_decimal = has_decimal_commas and text.count(",") == 1 and "." not in text
    try:
        value = float(text.replace(",", ".") if is_decimal else text) if "_" not in text else np.nan
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise UserError(f"{place}: {name!r} is {text!r}, expected a number: fill it first")
    return value
