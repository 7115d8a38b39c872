"""Forecasts in the data's own units: of what follows a table, or of a prepared split, one horizon after the other."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest_fields import SERIES
from longmix.data_prep.tasks import series_quality
from longmix.data_prep.tasks.series_files import (
    DATE,
    Series,
    Written,
    in_thousands,
    moment_of,
    refuse_both_marks,
)

from ..finetune.records import Row, Table
from ..models.folder import Inputs
from ..models.loading import load_model
from ..objectives.model_inputs import accepted
from ..samples.collate import VALUES
from ..samples.dataset import ShardedDataset
from ..samples.windows import pieces
from ..settings.mistakes import say
from .dates_ahead import dates_ahead
from .parts import Answers
from .progress import nobody
from .texts import rounded

_FAR = 20  # standard deviations: measured values that far from all of training are rarer than codes for missing ones


class Dates(NamedTuple):
    """Of the steps of a forecast, with the name of their column."""

    column: str
    ahead: list[str]


# (the standardised past of one forecast (input_length, C), the row of the first step ahead, steps of it to leave out).
Window = tuple[np.ndarray, int, int]


class Forecasts:
    """The horizon of each window, step by step, in the units that the series was standardised from.

    Attributes:
        columns: of an answer, with the type of each: `row` counts the steps of the series from 0; their date follows it
            where it is known.
        unit: what an answer is given to, one of them, for the console.
    """

    unit = "window"

    def __init__(
        self, source: str, series: dict[str, Any], device: torch.device, batch: int, dates: Dates | None = None
    ):
        """`dates`: of the steps of the one window that there is."""
        self.device, self.batch, self.dates = device, batch, dates
        self.mean, self.scale = np.asarray(series["mean"]), np.asarray(series["scale"])
        self.names = [f"forecast_{name}" for name in series["names"]]
        dated = {} if dates is None else {dates.column: str}
        self.columns = {"row": int, **dated, **dict.fromkeys(self.names, float)}
        self.model = load_model(source, transformers.AutoModelForTimeSeriesPrediction).eval().to(device)

    @torch.inference_mode()
    def __call__(self, first: int, rows: list[Window], note: Callable[[int], None] = nobody) -> Answers:
        """The forecasts of windows; `note` is told how many more there are."""
        answers: Answers = []
        for start in range(0, len(rows), self.batch):
            part = rows[start : start + self.batch]
            values = torch.from_numpy(np.stack([past for past, _, _ in part])).to(self.device)
            logits = self.model(**accepted(self.model, {VALUES: values})).logits.double().cpu().numpy()
            for (_, row, skipped), steps in zip(part, logits * self.scale + self.mean, strict=True):
                for ahead, step in enumerate(steps.tolist()[skipped:], start=skipped):
                    date = {} if self.dates is None else {self.dates.column: self.dates.ahead[ahead]}
                    answers.append({"row": row + ahead, **date, **dict(zip(self.names, rounded(step), strict=True))})
            note(len(part))
        return answers

    def pass_over(self, rows: list[Window]) -> None:
        """See SampleAnswers."""


def series_of(inputs: Inputs, model: str) -> dict[str, Any]:
    """Names, means and scales of the series that a model was trained on. Raises UserError if its folder has none."""
    if inputs.series is None:
        raise UserError(
            f"{model} does not say by which means and scales its series was standardised (an earlier version wrote "
            "it): name the folder of a prepared split as --data, whose manifest does"
        )
    return inputs.series


def window_after(table: Table, series: dict[str, Any], input_length: int) -> Iterator[Window]:
    """The one window that ends with the last row of a table, whose columns have the names of the variables."""
    names = series["names"]
    rows = list(table.rows(names))
    if len(rows) < input_length:
        raise UserError(f"{table.source} has {len(rows)} rows, the model reads {input_length}: give more of the past")
    if table.has_decimal_commas:
        _look_at_commas(table.source, rows[-input_length:], names)
    past = [
        [_number(text, name, row.place, table.has_decimal_commas) for text, name in zip(row.texts, names, strict=True)]
        for row in rows[-input_length:]
    ]
    standardised = (np.asarray(past) - np.asarray(series["mean"])) / np.asarray(series["scale"])
    _warn_of_outliers(standardised, rows[-input_length:], names)
    yield standardised.astype(np.float32), len(rows), 0


def dates_after(table: Table, series: dict[str, Any], input_length: int, horizon: int) -> Dates | None:
    """The dates of the steps that follow a table; None where it has none that can be read, or that follow no rule
    within the window. A line tells the latter, and another where time does not go on evenly there.

    Raises:
        UserError: most of its rows go back, as where the newest one is the first.
    """
    columns = series.get("date_columns", [DATE])
    try:
        rows = list(table.rows(columns))
        moments = [moment_of(row.texts, row.place) for row in rows]
    except UserError:
        return None  # they are not needed
    if len(rows) < input_length:
        return None  # which is refused
    seconds = np.array([(later - before).total_seconds() for before, later in itertools.pairwise(moments)])
    if 2 * np.count_nonzero(seconds == 0) >= len(seconds):
        return None  # a part of the date, beside its time
    texts, shown = [" ".join(row.texts) for row in rows], " ".join(map(repr, columns))
    if 2 * np.count_nonzero(seconds < 0) > len(seconds):
        row = np.flatnonzero(seconds < 0)[0] + 1
        raise UserError(f"{rows[row].place}: {shown} goes back to {texts[row]!r}: sort the rows by it, the newest last")
    dated = Series([], texts, timedelta(0), np.empty((len(rows), 0)), seconds)
    uneven = [row for row in series_quality.gaps(dated) if row > len(rows) - input_length]
    if uneven:
        first, what = uneven[0], series_quality.describe_step(seconds[uneven[0] - 1])
        more = f", and {len(uneven) - 1} more" if len(uneven) > 1 else ""
        say(
            "warning: the steps before the forecast do not follow each other evenly: "
            f"{rows[first].place} ({texts[first]}) {what}{more}"
        )
    written = texts if len(columns) == 1 else [moment.isoformat(" ") for moment in moments]
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


def windows_of(dataset: ShardedDataset, input_length: int, horizon: int) -> Iterator[Window]:
    """Windows of a prepared split, a horizon apart, so that each of its steps is forecast once.

    No window reaches over a break of the series: steps that follow one too closely have no forecast. `row` counts the
    split's own steps, without those before it that are there for inputs.

    Raises:
        UserError: no piece of the series is long enough for one window.
    """
    lookback = dataset.manifest.series["lookback"]
    long_enough = [
        (start, end)
        for begin, end in pieces(dataset.manifest)
        if (start := max(lookback, begin + input_length)) + horizon <= end
    ]
    if not long_enough:
        steps = sum(shard["samples"] for shard in dataset.manifest.shards)
        raise UserError(
            f"{dataset.folder} holds {steps} time steps, too few for one window of {input_length} and {horizon}"
        )
    for start, end in long_enough:
        for first in range(start, end, horizon):
            # The last window begins earlier: what the one before has forecast is left out.
            at = min(first, end - horizon)
            past = dataset.read_consecutive(SERIES, at - input_length, input_length)
            yield np.array(past, dtype=np.float32), at - lookback, first - at


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
