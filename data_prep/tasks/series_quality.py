"""What is suspicious about a series: values that stand for missing ones, readings that do not move, holes in time.

These are guesses by figures alone: they are told, with their cells, and nothing is changed by them.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np

from longmix.data_prep.tasks.series_files import INTERPOLATE, Series

# A step between rows is regular from half to one and a half intervals: months have 28 to 31 days.
_REGULAR = (0.5, 1.5)
# A longer one is part of the calendar (weekends, nights without trade) if so many of the steps are like it.
_CALENDAR_SHARE = 0.05
# Where rows are days, clocks that are changed on the way make it an hour shorter or longer.
_DAY, _CLOCK_CHANGE = 86400, 3600
# Codes are found among the outermost values; the rest of a variable must have values enough to tell its range.
_MOST_CODES = 3
_FEWEST_VALUES = 10
_CODE = re.compile(r"-?9{2,}(\.(9+|0))?|-?9{3,}0+(\.0)?|.*e\+?[12]\d|.*e\+?3\d")
_DISTANCE_OF_CODE, _DISTANCE = 0.5, 3.0  # from the rest, in ranges of the rest
# A run of equal values: so long, and so improbable beside the variable's other steps.
_FEWEST_ALIKE = 24
_LOG_PROBABILITY = np.log(1e-6)
_SHOWN_CELLS = 3
_KEPT_CELLS = 20
_SHOWN_VARIABLES = 20


def gaps(series: Series) -> list[int]:
    """Rows (the first is 0) that do not follow the row before by the series' interval: after a hole, or repeated."""
    seconds = series.seconds
    if not len(seconds):
        return []
    positive = seconds[seconds > 0]
    if not len(positive):
        return list(range(1, len(seconds) + 1))
    steps, counts = np.unique(positive, return_counts=True)
    interval = steps[counts.argmax()]
    wrong = (seconds <= _REGULAR[0] * interval) | (seconds >= _REGULAR[1] * interval)
    for step in steps[counts >= _CALENDAR_SHARE * len(seconds)]:
        wrong &= np.abs(seconds - step) > (_CLOCK_CHANGE if interval >= _DAY else 0)
    return (np.flatnonzero(wrong) + 1).tolist()


def describe_gap(series: Series, row: int) -> str:
    """Row, date, and how far the row before is."""
    return f"row {row + 1} ({series.dates[row]}) {describe_step(series.seconds[row - 1])}"


def describe_step(seconds: float) -> str:
    """How far a row lies from the one before."""
    step = timedelta(seconds=abs(float(seconds)))
    if not step:
        return "repeats the date of the row before"
    return f"comes {step} {'after' if seconds > 0 else 'before'} the row before"


def report(series: Series, rows: list[int]) -> dict[str, Any]:
    """What a manifest keeps: of each variable its range, missing values, suspected cells; the gaps at `rows`.

    Rows are counted from 1, as in messages.
    """
    return {
        "variables": {
            name: _of_variable(series.values[:, column], series.dates) for column, name in enumerate(series.names)
        },
        "gaps": {"number": len(rows), "first": [describe_gap(series, row) for row in rows[:_KEPT_CELLS]]},
    }


def _of_variable(values: np.ndarray, dates: list[str]) -> dict[str, Any]:
    known = values[~np.isnan(values)]
    codes = _codes(known)
    suspected = [{"value": code, **_cells(np.flatnonzero(values == code), dates)} for code in codes]
    runs = sorted(_runs(np.where(np.isin(values, codes), np.nan, values)), key=lambda run: -run[1])
    longest = [
        {"row": start + 1, "date": dates[start], "rows": length, "value": float(values[start])}
        for start, length in runs[:_KEPT_CELLS]
    ]
    return {
        "smallest": float(known.min()) if len(known) else None,
        "largest": float(known.max()) if len(known) else None,
        "missing": int(np.isnan(values).sum()),
        "suspected": suspected,
        "unchanged": {"runs": len(runs), "cells": sum(length for _, length in runs), "longest": longest},
    }


def _cells(places: np.ndarray, dates: list[str]) -> dict[str, Any]:
    shown = places[:_KEPT_CELLS].tolist()
    return {
        "number": len(places),
        "rows": [place + 1 for place in shown],
        "dates": [dates[place] for place in shown],
    }


def _codes(known: np.ndarray) -> list[float]:
    """Outermost values that lie so far from all others that they may stand for missing ones."""
    values, counts = np.unique(known, return_counts=True)
    found: list[float] = []
    for low in range(_MOST_CODES + 1):
        for high in range(_MOST_CODES + 1):
            rest = values[low : len(values) - high]
            outside = [*values[:low].tolist(), *values[len(values) - high :].tolist()]
            if not low + high > len(found) or len(rest) < _FEWEST_VALUES:
                continue
            if 2 * counts[low : len(values) - high].sum() < counts.sum():
                continue
            width = rest[-1] - rest[0]
            is_code = all(_CODE.fullmatch(f"{value:g}") or _CODE.fullmatch(repr(value)) for value in outside)
            far = (_DISTANCE_OF_CODE if is_code else _DISTANCE) * width
            is_far = (not low or rest[0] - values[low - 1] > far) and (
                not high or values[len(values) - high] - rest[-1] > far
            )
            if is_far:
                found = outside
    return found


def _runs(values: np.ndarray) -> list[tuple[int, int]]:
    """(first row, rows) of each run of equal values that is too long for how often this value, and all, stay else."""
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1  # NaN differs from NaN
    starts = np.concatenate([[0], changes])
    lengths = np.diff([*starts, len(values)])
    held = values[starts]
    found = []
    if len(starts) == 1:
        return found
    _, kinds = np.unique(held, return_inverse=True)
    cells, runs = np.bincount(kinds, weights=lengths), np.bincount(kinds)
    for run in np.flatnonzero((lengths >= _FEWEST_ALIKE) & ~np.isnan(held)).tolist():
        length, kind = int(lengths[run]), kinds[run]
        others = cells[kind] - length
        stays = max(
            (others - (runs[kind] - 1) + 1) / (others + 2),
            (len(values) - length - (len(starts) - 1) + 1) / (len(values) - length + 2),
        )
        if (length - 1) * np.log(stays) < _LOG_PROBABILITY:
            found.append((int(starts[run]), length))
    return found


# -----------------------------------------------------------------------------
# For the console.


def table(found: dict[str, Any], rows: int) -> Iterator[str]:
    """Lines: the range and missing share of each variable, and warnings that name cells.

    Args:
        found: what `report` gave.
        rows: of the whole series.
    """
    variables = found["variables"]
    shown = list(variables.items())[:_SHOWN_VARIABLES]
    width = max(len(name) for name, _ in shown)
    yield f"{'variable':<{max(width, 8)}}{'smallest':>14}{'largest':>14}{'missing':>10}{'suspected':>11}"
    for name, variable in shown:
        ends = "".join(
            f"{'-' if variable[end] is None else format(variable[end], '.6g'):>14}" for end in ("smallest", "largest")
        )
        cells = sum(item["number"] for item in variable["suspected"]) + variable["unchanged"]["cells"]
        yield f"{name:<{max(width, 8)}}{ends}{variable['missing'] / rows:>10.2%}{cells:>11,}"
    if len(variables) > len(shown):
        yield f"and {len(variables) - len(shown)} more variables: report.quality of train/manifest.json has them all"
    for name, variable in variables.items():
        for item in variable["suspected"]:
            value = _number(item["value"])
            yield (
                f"warning: column {name!r} holds {value} in {_shown_cells(item)}, far from all others: if that stands "
                f"for a missing value, --missing-value={value} --missing {INTERPOLATE} fills it"
            )
        if variable["unchanged"]["runs"]:
            runs = _shown_runs(variable["unchanged"])
            yield f"warning: column {name!r} stands still, which it does not otherwise: {runs}"
    if found["gaps"]["number"]:
        first = "; ".join(found["gaps"]["first"][:_SHOWN_CELLS])
        more = found["gaps"]["number"] - _SHOWN_CELLS
        yield f"warning: time does not go on evenly: {first}{f'; and {more:,} more' if more > 0 else ''}"


def _shown_cells(item: dict[str, Any]) -> str:
    pairs = list(zip(item["rows"], item["dates"], strict=True))[:_SHOWN_CELLS]
    more = item["number"] - len(pairs)
    return ", ".join(f"row {row} ({date})" for row, date in pairs) + (f" and {more:,} more cells" if more else "")


def _shown_runs(unchanged: dict[str, Any]) -> str:
    longest = unchanged["longest"][:_SHOWN_CELLS]
    runs = [f"{run['value']:.6g} for {run['rows']:,} rows from row {run['row']} ({run['date']})" for run in longest]
    more = unchanged["runs"] - len(longest)
    return ", ".join(runs) + (f" and {more:,} shorter runs, {unchanged['cells']:,} cells in all" if more else "")


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")
