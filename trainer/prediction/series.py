"""Forecasts in the data's own units: of what follows a table, or of a prepared split, one horizon after the other."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest_fields import SERIES

from ..finetune.records import Table
from ..models.loading import load_model
from ..objectives.model_inputs import accepted
from ..samples.collate import VALUES
from ..samples.dataset import ShardedDataset
from ..samples.windows import pieces
from .parts import Answers
from .progress import nobody
from .series_tables import Dates, answers_of, standardised
from .texts import rounded

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
        self.names = answers_of(series)
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


def window_after(table: Table, series: dict[str, Any], input_length: int) -> Window:
    """The window that ends with the last row of a table, whose columns have the names of the variables."""
    rows = list(table.rows(series["names"]))
    if len(rows) < input_length:
        raise UserError(f"{table.source} has {len(rows)} rows, the model reads {input_length}: give more of the past")
    return standardised(table, rows[-input_length:], series), len(rows), 0


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
