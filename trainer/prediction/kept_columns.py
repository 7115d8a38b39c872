"""Columns of the input that stand beside its answers."""

from collections.abc import Callable, Sequence
from typing import Any

from longmix.data_prep.errors import UserError

from ..finetune.custom import as_pair
from ..finetune.records import Row
from .parts import Answers
from .progress import nobody
from .texts import SampleAnswers


def columns_to_read(texts: Sequence[str], kept: Sequence[str]) -> list[str]:
    """The columns of the text, then those that are kept beside them, each once."""
    return list(dict.fromkeys([*texts, *kept]))


class KeptColumns:
    """Answers to rows of `columns_to_read`, each with the texts of its kept columns before what is answered.

    A kept column with a name that the answers have, such as `label`, is called `given_NAME`.

    Attributes:
        columns: of an answer, with the type of each.
        unit: what an answer is given to, one of them, for the console.
    """

    def __init__(self, answers: SampleAnswers, texts: Sequence[str], kept: Sequence[str]):
        self.answers, self.unit = answers, answers.unit
        read = columns_to_read(texts, kept)
        self.texts = [read.index(column) for column in texts]
        names = [f"given_{name}" if name in answers.columns else name for name in kept]
        twice = next((name for name in names if names.count(name) > 1 or name in answers.columns), None)
        if twice is not None:
            raise UserError(f"--keep: two columns of the output would be called {twice!r}")
        self.kept = {name: read.index(column) for name, column in zip(names, kept, strict=True)}
        row, *others = answers.columns.items()
        self.columns: dict[str, type] = dict([row, *((name, str) for name in names), *others])

    def __call__(self, first: int, rows: list[Row], note: Callable[[int], None] = nobody) -> Answers:
        """See SampleAnswers."""
        answers = self.answers(first, self._texts_of(rows), note)
        return [self._with_kept(row, answer) for row, answer in zip(rows, answers, strict=True)]

    def pass_over(self, rows: list[Row]) -> None:
        """See SampleAnswers."""
        self.answers.pass_over(self._texts_of(rows))

    def _texts_of(self, rows: list[Row]) -> list[tuple[str, str | None]]:
        return [as_pair([row.texts[place] for place in self.texts]) for row in rows]

    def _with_kept(self, row: Row, answer: dict[str, Any]) -> dict[str, Any]:
        held = {**answer, **{name: row.texts[place] for name, place in self.kept.items()}}
        return {name: held[name] for name in self.columns}
