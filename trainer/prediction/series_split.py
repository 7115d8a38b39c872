"""A table of a series as a prepared split, so that a model is scored on steps that came after its training."""

import itertools
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest_fields import SERIES
from longmix.data_prep.shards import write_dataset
from longmix.data_prep.tasks import series_quality
from longmix.data_prep.tasks.forecasting import season

from ..finetune.records import Table
from ..settings.mistakes import say
from ..settings.sections import ObjectiveSection
from .series_tables import Dated, dated, standardised

_SHOWN = 3


def write_split(
    table: Table, series: dict[str, Any], objective: ObjectiveSection, reaches_over_gaps: bool, folder: Path
) -> None:
    """Write all rows of a table to `folder`, standardised as in training. The first window's input is for it alone.

    Args:
        reaches_over_gaps: windows may hold a place where rows are missing or repeated by their dates; else none does,
            and a line tells these places.

    Raises:
        UserError: the table is too short for one window, or as `standardised` and `dated`.
    """
    rows = list(table.rows(series["names"]))
    window = objective.input_length + objective.horizon
    if len(rows) < window:
        raise UserError(
            f"{table.source} has {len(rows)} rows, but a window of the model takes {window}: {objective.input_length} "
            f"that it reads, and {objective.horizon} that it forecasts"
        )
    without = "" if reaches_over_gaps else ", so windows may reach over missing rows"
    values, found = standardised(table, rows, series), dated(table, series, without)
    breaks = [] if found is None or reaches_over_gaps else series_quality.gaps(found.series)
    repeats = None if found is None else season(found.series.interval, found.series.seconds)
    pieces = itertools.pairwise([0, *breaks, len(rows)])
    if max(end - start for start, end in pieces) < window:
        raise UserError(
            f"{table.source} has no {window} rows, as a window of the model takes, without a place where rows are "
            f"missing or repeated: {_told(found, breaks)}; --gaps keep lets windows reach over them"
        )
    if breaks:
        told = _told(found, breaks)
        say(f"warning: time does not go on evenly, and no window reaches over such a place (--gaps): {told}")
    write_dataset(
        folder,
        ({SERIES: row} for row in values),
        {SERIES: {"dtype": "float32", "shape": [len(series["names"])]}},
        split="test",
        split_rule="all rows of a table",
        series={
            **{name: series[name] for name in ("names", "mean", "scale")},
            "lookback": 0,
            "season": repeats,
            **({"breaks": breaks} if breaks else {}),
        },
    )


def _told(found: Dated, breaks: list[int]) -> str:
    told = "; ".join(
        f"{found.rows[row].place} ({found.series.dates[row]}) "
        f"{series_quality.describe_step(found.series.seconds[row - 1])}"
        for row in breaks[:_SHOWN]
    )
    return f"{told}; and {len(breaks) - _SHOWN:,} more" if len(breaks) > _SHOWN else told
