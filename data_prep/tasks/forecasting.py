"""Time series for forecasting: a CSV file with a column of dates, standardised and cut into three consecutive splits.

Each split's data set holds the series once, a row per time step; a run's objective cuts the windows. Validation and
test begin with some rows of what comes before them, for the inputs of their first windows to reach back to, as in the
code of the papers: what is forecast never lies there.

Means and scales are those of the training rows. Missing values are filled, if at all, from observations up to the end
of the split that they stand in, never from a later split.
"""

import argparse
import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import locked, sha256_of_file
from longmix.data_prep.manifest import FILE_NAME, Manifest
from longmix.data_prep.manifest_fields import SERIES
from longmix.data_prep.options import given_options
from longmix.data_prep.shards import write_dataset
from longmix.data_prep.split_names import SPLITS
from longmix.data_prep.tasks import series_quality
from longmix.data_prep.tasks.series_files import (
    DATE,
    INTERPOLATE,
    LARGEST,
    Reading,
    Series,
    check_encoding,
    read_series,
)
from longmix.data_prep.tasks.task_folder import refuse_others, where_written

RATIO, ETT = "ratio", "ett"
RULES = {
    RATIO: "consecutive, the first 7/10 of the rows train, the last 2/10 test, what is between validation",
    ETT: "consecutive, 12 months of 30 days train, 4 validation, 4 test; later rows are not used",
}
SPLIT, REFUSE, KEEP = "split", "refuse", "keep"
GAPS = (SPLIT, REFUSE, KEEP)
# Rows before a split that its data set keeps: the longest input of its first window.
LOOKBACK = 4096
# A share of a variable's values in a split that is told if it is missing.
_MUCH_FILLED = 0.1
# A share of rows with the date of the row before that does not come from clocks.
_MANY_REPEATED = 0.25
_DAY, _WEEK = timedelta(days=1), timedelta(days=7)
_FORMAT = 2  # raise it when the same options are to give other data

_DESCRIPTION = """\
Turn a time series into data sets for forecasting.

The CSV file has a header, a column named date (or --date-columns) in which time does not go back, and a column of
numbers for each variable; where the header has no comma, `;` or tabs stand between the fields, and numbers may have
decimal commas. What is suspicious is printed and kept in the manifests (report.quality): values far from all others, as
-9999 for a missing one, readings that stand still, rows that do not follow each other evenly.

DIR gets train/, validation/ and test/, for runs with objective.name=forecasting, whose input_length and horizon cut the
windows. Every variable is standardised by the mean and standard deviation of the training rows, which stand in the
manifests.

Of --split ratio the first 7/10 of the rows are for training, the last 2/10 for testing. Of --split ett 12, 4 and 4
months of 30 days, as in the experiments with the ETT files. The first windows of validation and test read their inputs
in the split before, as those experiments do; what they forecast lies in their own split.

Rows may be missing or repeated. --gaps refuse, the default, names them; with --gaps split no window reaches over such a
place; with --gaps keep windows do, as if nothing were missing (what was made before there was this option). A step that
recurs, as over weekends, is none.
"""
_EXAMPLES = """\
examples:
  longmix prepare forecasting --source ETTh1.csv --output data/etth1 --split ett
  longmix prepare forecasting --source weather.csv --output data/weather --missing interpolate --drop-columns station
  longmix prepare forecasting --source air.csv --output data/air --date-columns year month day hour --gaps split \\
      --missing-value -9999 --missing interpolate
"""


@dataclass(frozen=True)
class ForecastingSettings:
    """The place of a series, and the data set that is made of it.

    Args:
        source: a CSV file.
        split: ratio (7:1:2) | ett (12, 4 and 4 months of 30 days).
        missing: None: a missing value is an error; interpolate: on a line between the values before and after it.
        drop_columns: variables that are left out.
        missing_value: what stands for a missing value beside an empty cell, as -9999.
        gaps: refuse | split (no window reaches over one) | keep (windows do): rows that are missing, or repeated.
        date_columns: the columns of the date; see `Reading`.
        encoding: of the file; None: UTF-8, or UTF-16 with its mark.

    Raises:
        UserError: with the option, its value and what is allowed.
    """

    source: str
    split: str = RATIO
    missing: str | None = None
    drop_columns: tuple[str, ...] = ()
    missing_value: tuple[str, ...] = ()
    gaps: str = REFUSE
    date_columns: tuple[str, ...] = (DATE,)
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.split not in RULES:
            raise UserError(f"--split is {self.split!r}, but must be one of {', '.join(RULES)}")
        if self.missing not in (None, INTERPOLATE):
            raise UserError(f"--missing is {self.missing!r}, but must be {INTERPOLATE}, or left out")
        if self.gaps not in GAPS:
            raise UserError(f"--gaps is {self.gaps!r}, but must be one of {', '.join(GAPS)}")
        if not self.date_columns or len(set(self.date_columns)) < len(self.date_columns):
            raise UserError(f"--date-columns is {' '.join(self.date_columns)!r}, but must name columns, each once")
        check_encoding(self.encoding)

    @property
    def reading(self) -> Reading:
        return Reading(
            self.drop_columns, self.missing is not None, self.missing_value, self.date_columns, self.encoding
        )

    def of_task(self) -> dict[str, Any]:
        """The settings that decide the data, as manifests keep them; newer ones only where they are not what was
        done before them, so that what was prepared then stays what the same command makes."""
        newer = {
            "missing_value": sorted(self.missing_value),
            "gaps": SPLIT if self.gaps == SPLIT else None,  # refused or kept, the data are the same
            "date_columns": [] if self.date_columns == (DATE,) else list(self.date_columns),
            "encoding": self.encoding,
        }
        older = {"split": self.split, "missing": self.missing, "drop_columns": sorted(self.drop_columns)}
        return older | {name: value for name, value in newer.items() if value}


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
        **settings.of_task(),
    }
    refuse_others(output, lambda manifest: manifest.report.get("task") == task)
    with locked(output):
        if all((output / name / FILE_NAME).is_file() for name in SPLITS):
            return {name: Manifest.load(output / name) for name in SPLITS}
        series = read_series(source, settings.reading)
        gaps = series_quality.gaps(series)
        if gaps and settings.gaps == REFUSE:
            raise UserError(_refused_gaps(series, gaps, str(source)))
        quality = series_quality.report(series, gaps)
        borders = split_borders(len(series.values), settings.split, series.interval, str(source))
        filled = fill(series, borders, str(source), gaps if settings.gaps == SPLIT else [])
        mean, scale = statistics(filled[: borders[0]])
        standardised = _in_float32((filled - mean) / scale, series.names, str(source))
        manifests = {}
        for name, start, end in zip(SPLITS, (0, *borders), borders, strict=False):
            first = max(0, start - LOOKBACK)
            breaks = [row - first for row in gaps if first < row < end] if settings.gaps == SPLIT else []
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
                    "season": season(series.interval, series.seconds),
                    **({"breaks": breaks} if breaks else {}),
                },
                report={
                    "task": task,
                    "rows": [start, end],
                    "dates": [series.dates[start], series.dates[end - 1]],
                    "interval_seconds": series.interval.total_seconds(),
                    "filled": int(np.isnan(series.values[start:end]).sum()),
                    "filled_of_variables": _filled(series, start, end),
                    "not_used": len(series.values) - borders[-1],
                    "quality": quality,
                },
            )
    return manifests


def _filled(series: Series, start: int, end: int) -> dict[str, int]:
    """How many values of a split are missing, of each variable that lacks some."""
    counts = np.isnan(series.values[start:end]).sum(axis=0).tolist()
    return {name: count for name, count in zip(series.names, counts, strict=True) if count}


def _refused_gaps(series: Series, gaps: list[int], source: str) -> str:
    repeated = np.count_nonzero(series.seconds == 0)
    if repeated >= _MANY_REPEATED * len(series.seconds):
        return (
            f"{source}: {repeated:,} of {len(series.dates):,} rows repeat the date of the row before: give each of "
            "several series its own columns, or a file; name all columns of the date (--date-columns); or choose "
            f"--gaps {SPLIT} or --gaps {KEEP}"
        )
    first = f"{source}: {series_quality.describe_gap(series, gaps[0])}, most rows {series.interval}"
    more = f"; {len(gaps) - 1:,} more such places, the last before row {gaps[-1] + 1} ({series.dates[gaps[-1]]})"
    return (
        f"{first}{more if len(gaps) > 1 else ''}: choose --gaps {SPLIT} (no window reaches over one) or --gaps {KEEP} "
        "(windows do, as if nothing were missing)"
    )


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


def season(interval: timedelta, seconds: np.ndarray) -> int | None:
    """Rows after which a series may repeat itself: of a day, of a week (daily rows) or of a year (weekly, monthly).

    Args:
        interval: between most of the rows.
        seconds: from each row to the next. Where most days have no night, or most weeks no weekend, a day or a week has
            as many rows as there are from most rows to the one a day or a week later.
    """
    if interval >= _WEEK:
        return {7: 52}.get(interval.days, 12 if 28 <= interval.days <= 31 else None)
    span = _DAY if timedelta(0) < interval < _DAY else _WEEK
    moments = np.concatenate([[0.0], np.cumsum(seconds)])
    later = np.searchsorted(moments, moments + span.total_seconds())
    is_there = later < len(moments)
    is_there[is_there] = moments[later[is_there]] == moments[is_there] + span.total_seconds()
    rows, counts = np.unique((later - np.arange(len(moments)))[is_there], return_counts=True)
    if len(rows) and 2 * counts.max() > counts.sum():
        return int(rows[counts.argmax()])
    return _whole(span, interval)


def _whole(span: timedelta, interval: timedelta) -> int | None:
    """The number of intervals in a span, if a whole one."""
    return span // interval if interval > timedelta(0) and span % interval == timedelta(0) else None


def fill(series: Series, borders: tuple[int, ...], source: str, gaps: Sequence[int] = ()) -> np.ndarray:
    """The values with missing ones on the line between their neighbours, as far as their split tells of these.

    At the end of a split the last value is kept, before the first value of all that one is taken. No line is drawn over
    the rows `gaps`, at which a piece begins, unless the piece holds no value so far.

    Raises:
        UserError: a variable without any value among the training rows.
    """
    filled, borders_of_pieces = series.values.copy(), (0, *gaps)
    for column, name in enumerate(series.names):
        known = ~np.isnan(series.values[:, column])
        if known.all():
            continue
        if not known[: borders[0]].any():
            raise UserError(f"{source}: column {name!r} has no value in the {borders[0]} training rows: drop it")
        ends = (*borders, len(filled))
        for start, end in itertools.pairwise(sorted({0, *ends, *gaps})):
            piece = borders_of_pieces[bisect.bisect_right(gaps, start)]
            split_end = next(border for border in ends if border >= end)
            spans = (slice(piece, end), slice(end), slice(split_end))
            span = next(span for span in spans if known[span].any())
            places = (span.start or 0) + np.flatnonzero(known[span])
            filled[start:end, column] = np.interp(np.arange(start, end), places, series.values[places, column])
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
    wrong = np.argwhere(np.abs(standardised) > LARGEST)
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


def describe(manifests: Mapping[str, Manifest], output: str | Path) -> Iterator[str]:
    """One line for each split, what is odd in the data, and where they are, for the console."""
    for name, manifest in manifests.items():
        report, series = manifest.report, manifest.series
        start, end = report["rows"]
        line = f"{name}: {end - start:,} time steps of {len(series['names'])} variables"
        line += f", {report['dates'][0]} to {report['dates'][1]}"
        if series["lookback"]:
            line += f"; {series['lookback']:,} more before them for inputs"
        if report["filled"]:
            line += f"; {report['filled']:,} values filled"
        if "breaks" in series:
            pieces = len(series["breaks"]) + 1
            line += f"; in {pieces:,} pieces, which no window reaches beyond"
        yield line
    for name, manifest in manifests.items():
        start, end = manifest.report["rows"]
        for variable, count in manifest.report.get("filled_of_variables", {}).items():
            if count >= _MUCH_FILLED * (end - start):
                yield (
                    f"warning: {count / (end - start):.0%} of the values of {variable!r} in {name} are filled in, and "
                    "learned or scored as if they had been measured"
                )
    if report["not_used"]:
        yield f"{report['not_used']:,} later time steps are not used"
    if "quality" in report:  # not in what an older longmix made
        yield from series_quality.table(report["quality"], report["rows"][1] + report["not_used"])
    yield where_written(manifests, output)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `longmix prepare forecasting`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add = parser.add_argument
    add("--source", required=True, metavar="FILE", help="the CSV file")
    add("--split", choices=tuple(RULES), default=RATIO, help="how the rows are shared out (default: ratio)")
    add("--missing", choices=(INTERPOLATE,), help="fill missing values, which are an error otherwise")
    add(
        "--missing-value",
        action="append",
        default=[],
        metavar="VALUE",
        help="what stands for a missing value, e.g. -9999; repeatable (--missing-value=-1e30 with an exponent)",
    )
    add(
        "--gaps",
        choices=GAPS,
        default=REFUSE,
        help="rows that are missing or repeated: an error (default), no window reaches over them, or windows do",
    )
    add(
        "--date-columns",
        nargs="+",
        default=[DATE],
        metavar="NAME",
        help="columns of the date: one, several with its parts as text, or numbers: year month day hour minute second",
    )
    add("--encoding", metavar="NAME", help="encoding of the file, e.g. cp1252 (default: UTF-8, or UTF-16 by its mark)")
    add("--drop-columns", nargs="+", default=(), metavar="NAME", help="variables to leave out")
    parser.set_defaults(make=_make)


def _make(arguments: argparse.Namespace) -> Iterator[str]:
    settings = ForecastingSettings(**given_options(arguments, ForecastingSettings))
    return describe(prepare_forecasting(settings, arguments.output), arguments.output)
