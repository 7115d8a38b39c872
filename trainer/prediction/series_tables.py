"""Time series in tables from outside: their values as a model was trained on them, and their dates."""

import itertools
from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from longmix.data_prep.errors import UserError
from longmix.data_prep.tasks import series_quality
from longmix.data_prep.tasks.series_files import (
    CLOCK_CHANGE,
    DATE,
    LARGEST,
    Series,
    Written,
    date_of,
    in_thousands,
    interval_of,
    moment_of,
    refuse_both_marks,
)

from ..finetune.records import Row, Table
from ..models.folder import Inputs
from ..settings.mistakes import say
from .dates_ahead import dates_ahead

_YEAR = timedelta(days=365)
_MOST_DIGITS = 10**6  # of a number that is shown whole
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


def answers_of(series: dict[str, Any]) -> list[str]:
    """The columns of a forecast of each variable."""
    return [f"forecast_{name}" for name in series["names"]]


def standardised(table: Table, rows: list[Row], series: dict[str, Any]) -> np.ndarray:
    """The values of rows of a table, read with the names of the variables, as in training: (rows, C) float32.

    Lines tell commas that may be of thousands, and the value that is farthest from those of training, if it is far.

    Raises:
        UserError: a value is missing, no number, or too large.
    """
    names = series["names"]
    if table.has_decimal_commas:
        _look_at_commas(table.source, rows, names)
    values = [
        [_number(text, name, row.place, table.has_decimal_commas) for text, name in zip(row.texts, names, strict=True)]
        for row in rows
    ]
    made = (np.asarray(values) - np.asarray(series["mean"])) / np.asarray(series["scale"])
    too_large = np.argwhere(np.maximum(np.abs(values), np.abs(made)) > LARGEST)
    if len(too_large):
        step, variable = too_large[0]
        shown = f"{names[variable]!r} is {rows[step].texts[variable]}"
        raise UserError(f"{rows[step].place}: {shown}, which no model can read: correct it")
    _warn_of_outliers(made, rows, names)
    return made.astype(np.float32)


def dated(table: Table, series: dict[str, Any], without: str = "") -> Dated | None:
    """A table's dates; None where it has none that can be read, which a line tells if their columns are there.

    Args:
        without: what follows from that; told also where the columns are not there.

    Raises:
        UserError: rows go back, but for clocks that were set back, by an hour at most and once a year.
    """
    columns = series.get("date_columns", [DATE])
    is_there = all(table.columns.count(name) == 1 for name in columns)
    if not is_there and not without:
        return None
    try:
        rows = list(table.rows(columns))
        moments = [moment_of(row.texts, f"{row.place}: {' '.join(columns)}") for row in rows]
    except UserError as error:
        say(f"note: no dates are read{without}: {error}")
        return None
    if len(rows) < 2:
        return None
    seconds = np.array([(later - before).total_seconds() for before, later in itertools.pairwise(moments)])
    if 2 * np.count_nonzero(seconds == 0) >= len(seconds):
        # As of a part of the date, beside its time.
        say(f"note: no dates are read{without}: most rows of {table.source} have the date of the row before")
        return None
    texts = [" ".join(part.strip() for part in row.texts) for row in rows]
    back = np.flatnonzero(seconds < 0)
    are_clocks = len(back) <= 1 + (moments[-1] - moments[0]) / _YEAR and seconds.min() >= -CLOCK_CHANGE.total_seconds()
    if len(back) and not are_clocks:
        row, shown = back[0] + 1, " ".join(map(repr, columns))
        raise UserError(f"{rows[row].place}: {shown} goes back to {texts[row]!r}: sort the rows by it, the newest last")
    return Dated(columns, rows, moments, Series([], texts, interval_of(seconds), np.empty((len(rows), 0)), seconds))


def dates_after(table: Table, series: dict[str, Any], input_length: int, horizon: int) -> Dates | None:
    """The dates of the steps that follow a table; None where it has none that can be read, or that follow no rule
    within the window. A line tells either, and another where time does not go on evenly there.

    Raises:
        UserError: as `dated`.
    """
    found = dated(table, series)
    if found is None:
        return None
    texts, columns = found.series.dates, found.columns
    uneven = [row for row in series_quality.gaps(found.series) if row > len(texts) - input_length]
    if uneven:
        first, what = uneven[0], series_quality.describe_step(found.series.seconds[uneven[0] - 1])
        more = f", and {len(uneven) - 1} more" if len(uneven) > 1 else ""
        say(
            "warning: the steps before the forecast do not follow each other evenly: "
            f"{found.rows[first].place} ({texts[first]}) {what}{more}"
        )
    ahead = dates_ahead(_as_one_text(found), input_length, horizon)
    if ahead is None:
        say(
            f"note: the forecast has no dates, for those of {table.source} follow no rule: whole months, the same time "
            f"from one to the next without nights or weekends, working days; in the last {input_length} rows with one "
            "offset from UTC"
        )
        return None
    is_taken = columns[0] in ("row", *answers_of(series))
    return Dates(DATE if len(columns) > 1 or is_taken else columns[0], ahead)


def _as_one_text(found: Dated) -> list[str]:
    """Dates as they are written or, where several columns hold their numbers, as ISO 8601 has them."""
    try:
        for text in found.series.dates:
            date_of(text.strip())
    except ValueError:
        return [moment.isoformat(" ") for moment in found.moments]
    return found.series.dates


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
        size = f"{distance:.0f}" if distance < _MOST_DIGITS else f"{distance:.1e}"
        say(
            f"warning: {shown}, {size} standard deviations from the mean of training: if that stands for a "
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
