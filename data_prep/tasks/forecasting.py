"""Time series for forecasting: a CSV file with a column of dates, standardised and cut into three consecutive splits.

Each split's data set holds the series once, a row per time step; a run's objective cuts the windows. Validation and
test begin with some rows of what comes before them, for the inputs of their first windows to reach back to, as in the
code of the papers: what is forecast never lies there.

Means and scales are those of the training rows. Missing values are filled, if at all, from observations up to the end
of the split that they stand in, never from a later split.
"""

import argparse
import csv
import io
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import locked, sha256_of_file
from longmix.data_prep.manifest import FILE_NAME, Manifest
from longmix.data_prep.manifest_fields import SERIES
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import write_dataset
from longmix.data_prep.split_names import SPLITS
from longmix.data_prep.tasks.task_folder import refuse_others
from longmix.kernels.common.safe_files import open_input

DATE = "date"
RATIO, ETT = "ratio", "ett"
RULES = {
    RATIO: "consecutive, the first 7/10 of the rows train, the last 2/10 test, what is between validation",
    ETT: "consecutive, 12 months of 30 days train, 4 validation, 4 test; later rows are not used",
}
INTERPOLATE = "interpolate"
# Rows before a split that its data set keeps: the longest input of its first window.
LOOKBACK = 4096
FEWEST_ROWS = 10
_DATE_FORMATS = ("%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%d.%m.%Y")
_MISSING = ("", "?", "-", "na", "n/a", "nan", "null", "none")
_LARGEST = float(np.finfo(np.float32).max)
_DAY, _WEEK = timedelta(days=1), timedelta(days=7)
_FORMAT = 2  # raise it when the same options are to give other data

_DESCRIPTION = """\
Turn a time series into data sets for forecasting.

The CSV file has a header, a column named date in which time does not go back, and a column of numbers for each
variable. DIR gets train/, validation/ and test/, for runs with objective.name=forecasting, whose input_length and
horizon cut the windows. Every variable is standardised by the mean and standard deviation of the training rows, which
stand in the manifests.

Of --split ratio the first 7/10 of the rows are for training, the last 2/10 for testing. Of --split ett 12, 4 and 4
months of 30 days, as in the experiments with the ETT files. The first windows of validation and test read their inputs
in the split before, as those experiments do; what they forecast lies in their own split.
"""
_EXAMPLES = """\
examples:
  longmix prepare forecasting --source ETTh1.csv --output data/etth1 --split ett
  longmix prepare forecasting --source weather.csv --output data/weather --missing interpolate --drop-columns station
"""


@dataclass(frozen=True)
class ForecastingSettings:
    """The place of a series, and the data set that is made of it.

    Args:
        source: a CSV file, UTF-8.
        split: ratio (7:1:2) | ett (12, 4 and 4 months of 30 days).
        missing: None: a missing value is an error; interpolate: on a line between the values before and after it.
        drop_columns: variables that are left out.

    Raises:
        UserError: with the option, its value and what is allowed.
    """

    source: str
    split: str = RATIO
    missing: str | None = None
    drop_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.split not in RULES:
            raise UserError(f"--split is {self.split!r}, but must be one of {', '.join(RULES)}")
        if self.missing not in (None, INTERPOLATE):
            raise UserError(f"--missing is {self.missing!r}, but must be {INTERPOLATE}, or left out")


@dataclass
class Series:
    """The contents of a CSV file.

    Attributes:
        names: of the variables.
        dates: of the rows, as they are written.
        interval: between most of the rows.
        values: (rows, variables) float64, NaN where one is missing.
    """

    names: list[str]
    dates: list[str]
    interval: timedelta
    values: np.ndarray


def prepare_forecasting(settings: ForecastingSettings, output: str | Path) -> dict[str, Manifest]:
    """Write `output/train`, `validation` and `test`; returns their manifests.

    A folder that the same settings have made is left as it is, an unfinished one is finished.

    Raises:
        UserError: the file cannot be read as such a series, or is too short; `output` holds anything else, cannot be
            written, or is being written by another process.
    """
    output, source = Path(output), Path(settings.source)
    try:
        digest = sha256_of_file(source)
    except OSError as error:
        raise refused(f"--source {source} cannot be read", error) from None
    task = {
        "name": "forecasting",
        "format": _FORMAT,
        "source": source.name,
        "sha256": digest,
        "split": settings.split,
        "missing": settings.missing,
        "drop_columns": sorted(settings.drop_columns),
    }
    refuse_others(output, lambda manifest: manifest.report.get("task") == task)
    with locked(output):
        if all((output / name / FILE_NAME).is_file() for name in SPLITS):
            return {name: Manifest.load(output / name) for name in SPLITS}
        series = read_series(source, settings.drop_columns, settings.missing is not None)
        borders = split_borders(len(series.values), settings.split, series.interval, str(source))
        filled = fill(series, borders, str(source))
        mean, scale = statistics(filled[: borders[0]])
        standardised = _in_float32((filled - mean) / scale, series.names, str(source))
        manifests = {}
        for name, start, end in zip(SPLITS, (0, *borders), borders, strict=False):
            first = max(0, start - LOOKBACK)
            manifests[name] = write_dataset(
                output / name,
                ({SERIES: row} for row in standardised[first:end]),
                {SERIES: {"dtype": "float32", "shape": [len(series.names)]}},
                split=name,
                split_rule=RULES[settings.split],
                series={
                    "names": series.names,
                    "mean": mean.tolist(),
                    "scale": scale.tolist(),
                    "lookback": start - first,
                    "season": season(series.interval),
                },
                report={
                    "task": task,
                    "rows": [start, end],
                    "dates": [series.dates[start], series.dates[end - 1]],
                    "interval_seconds": series.interval.total_seconds(),
                    "filled": int(np.isnan(series.values[start:end]).sum()),
                    "not_used": len(series.values) - borders[-1],
                },
            )
    return manifests


# -----------------------------------------------------------------------------
# Reading the CSV file: a series has thousands of rows from elsewhere, and a mistake is told with row and column.


def read_series(source: Path, drop_columns: tuple[str, ...] = (), missing_allowed: bool = False) -> Series:
    """Read a CSV file.

    Raises:
        UserError: with the file, the row (the first below the header is 1, blank lines do not count) and the column.
    """
    try:
        with io.TextIOWrapper(open_input(source), encoding="utf-8-sig", newline="") as stream:
            return _parse(csv.reader(stream), str(source), drop_columns, missing_allowed)
    except UnicodeDecodeError:
        raise UserError(f"{source} is not UTF-8: convert it (iconv -t UTF-8)") from None
    except csv.Error as error:
        raise UserError(f"{source} is no CSV file: {error}") from None
    except OSError as error:
        raise refused(f"--source {source} cannot be read", error) from None


def _parse(rows: Iterator[list[str]], source: str, drop_columns: tuple[str, ...], missing_allowed: bool) -> Series:
    header = [name.strip() for name in next(rows, [])]
    kept = _kept(header, drop_columns, source)
    place = header.index(DATE)
    values, dates, seconds = array("d"), [], array("d")
    before = None
    for number, row in enumerate(filter(None, rows), 1):  # without blank lines, e.g. the last one
        if len(row) != len(header):
            raise UserError(f"{source}: row {number} has {len(row)} fields, the header has {len(header)}")
        moment = _moment(row[place], f"{source}: row {number}, column {DATE!r}")
        if before is not None and moment < before:
            raise UserError(f"{source}: row {number}, column {DATE!r} goes back to {row[place]!r}: sort the rows by it")
        if before is not None:
            seconds.append((moment - before).total_seconds())
        before = moment
        dates.append(row[place])
        for column in kept:
            values.append(_number(row[column], f"{source}: row {number}, column", header[column], missing_allowed))
    if len(dates) < FEWEST_ROWS:
        raise UserError(f"{source} has {len(dates)} rows, but a series takes at least {FEWEST_ROWS}")
    steps, counts = np.unique(np.asarray(seconds), return_counts=True)
    interval = timedelta(seconds=float(steps[counts.argmax()]))
    names = [header[column] for column in kept]
    return Series(names, dates, interval, np.asarray(values).reshape(len(dates), len(kept)))


def _kept(header: list[str], drop_columns: tuple[str, ...], source: str) -> list[int]:
    """Places of the variables in the header."""
    if DATE not in header:
        shown = ", ".join(map(repr, header[:8])) or "nothing"
        raise UserError(f"{source} has no column named {DATE}; its first row holds {shown}")
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{source} has two columns named {twice!r}: rename one")
    for name in drop_columns:
        if name not in header or name == DATE:
            others = ", ".join(map(repr, (other for other in header if other != DATE)))
            raise UserError(f"--drop-columns names {name!r}, which is no variable of {source}; it has {others}")
    kept = [place for place, name in enumerate(header) if name != DATE and name not in drop_columns]
    if not kept:
        raise UserError(f"{source} has no variable beside {DATE}" + (" and what is dropped" if drop_columns else ""))
    return kept


def _moment(text: str, where: str) -> datetime:
    text = text.strip()
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        pass
    for form in _DATE_FORMATS:
        try:
            return datetime.strptime(text, form)
        except ValueError:
            continue
    raise UserError(f"{where} holds {_shown(text)}, which is no date such as 2016-07-01 00:00:00")


def _number(text: str, where: str, column: str, missing_allowed: bool) -> float:
    if text.strip().lower() in _MISSING:
        if missing_allowed:
            return math.nan
        raise UserError(
            f"{where} {column!r} holds no value: fill it (--missing interpolate), or leave the column out "
            f"(--drop-columns {column!r})"
        )
    try:
        value = float(text) if "_" not in text else math.nan  # Python's 1_000 is no number elsewhere
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(
            f"{where} {column!r} holds {_shown(text)}, which is no number: leave the column out "
            f"(--drop-columns {column!r})"
        )
    if abs(value) > _LARGEST:
        raise UserError(
            f"{where} {column!r} holds {_shown(text)}, which is beyond float32 (at most {_LARGEST:.2g} in size): "
            f"correct it, or leave the column out (--drop-columns {column!r})"
        )
    return value


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


# -----------------------------------------------------------------------------
# From values to data sets. Nothing of a later split may reach an earlier one: not its mean, not its neighbours.


def split_borders(rows: int, split: str, interval: timedelta, source: str) -> tuple[int, int, int]:
    """The ends of training, validation and test rows.

    Raises:
        UserError: the ETT split of rows that are too few for it, or that no day is a whole number of.
    """
    if split == RATIO:
        return int(rows * 0.7), rows - int(rows * 0.2), rows
    per_day = _whole(_DAY, interval)
    if per_day is None:
        raise UserError(f"--split ett counts days, but the rows of {source} are {interval} apart: take --split ratio")
    month = 30 * per_day
    if rows < 20 * month:
        raise UserError(
            f"--split ett takes 20 months of 30 days, {20 * month} rows, but {source} has {rows}: take --split ratio"
        )
    return 12 * month, 16 * month, 20 * month


def season(interval: timedelta) -> int | None:
    """Rows after which a series may repeat itself: of a day, of a week (daily rows) or of a year (weekly, monthly)."""
    if timedelta(0) < interval < _DAY:
        return _whole(_DAY, interval)
    if interval < _WEEK:
        return _whole(_WEEK, interval)
    return {7: 52}.get(interval.days, 12 if 28 <= interval.days <= 31 else None)


def _whole(span: timedelta, interval: timedelta) -> int | None:
    """The number of intervals in a span, if a whole one."""
    return span // interval if interval > timedelta(0) and span % interval == timedelta(0) else None


def fill(series: Series, borders: tuple[int, ...], source: str) -> np.ndarray:
    """The values with missing ones on the line between their neighbours, as far as their split tells of these.

    At the end of a split the last value is kept, before the first value of all that one is taken.

    Raises:
        UserError: a variable without any value among the training rows.
    """
    filled = series.values.copy()
    for column, name in enumerate(series.names):
        known = ~np.isnan(series.values[:, column])
        if known.all():
            continue
        if not known[: borders[0]].any():
            raise UserError(f"{source}: column {name!r} has no value in the {borders[0]} training rows: drop it")
        start = 0
        for end in (*borders, len(filled)):
            places = np.flatnonzero(known[:end])
            filled[start:end, column] = np.interp(np.arange(start, end), places, series.values[places, column])
            start = end
    return filled


def statistics(training: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each variable, (variables,) each, of `training` (rows, variables).

    One that is constant, but for the rounding of mean and variance in float64, has the scale 1 (the threshold is that
    of scikit-learn's StandardScaler). If all its values are alike, they are the mean, and become exactly 0.
    """
    mean, variance = training.mean(axis=0), training.var(axis=0)
    rounding = len(training) * np.finfo(np.float64).eps
    is_constant = variance <= rounding * variance + (rounding * mean) ** 2
    is_alike = training.min(axis=0) == training.max(axis=0)
    return np.where(is_alike, training[0], mean), np.where(is_constant, 1.0, np.sqrt(variance))


def _in_float32(standardised: np.ndarray, names: list[str], source: str) -> np.ndarray:
    """`standardised` (rows, variables) as float32. Raises UserError if it is too large for that somewhere."""
    wrong = np.argwhere(np.abs(standardised) > _LARGEST)
    if len(wrong):
        row, column = wrong[0]
        raise UserError(
            f"{source}: row {row + 1}, column {names[column]!r} is {standardised[row, column]:.2g} standard deviations "
            "from the mean of the training rows, which is beyond float32: correct it, or leave the column out "
            f"(--drop-columns {names[column]!r})"
        )
    return standardised.astype(np.float32)


# -----------------------------------------------------------------------------
# The command line. The report differs from other tasks': a split is a stretch of time, not a number of samples.


def describe(manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """One line for each split, for the console."""
    for name, manifest in manifests.items():
        report, series = manifest.report, manifest.series
        start, end = report["rows"]
        line = f"{name}: {end - start:,} time steps of {len(series['names'])} variables"
        line += f", {report['dates'][0]} to {report['dates'][1]}"
        if series["lookback"]:
            line += f"; {series['lookback']:,} more before them for inputs"
        if report["filled"]:
            line += f"; {report['filled']:,} values filled"
        yield line
    if report["not_used"]:
        yield f"{report['not_used']:,} later time steps are not used"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare forecasting`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add = parser.add_argument
    add("--source", required=True, metavar="FILE", help="the CSV file")
    add("--split", choices=tuple(RULES), default=RATIO, help="how the rows are shared out (default: ratio)")
    add("--missing", choices=(INTERPOLATE,), help="fill missing values, which are an error otherwise")
    add("--drop-columns", nargs="+", default=(), metavar="NAME", help="variables to leave out")
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    settings = ForecastingSettings(**given_options(arguments, ForecastingSettings))
    return describe(prepare_forecasting(settings, arguments.output))
