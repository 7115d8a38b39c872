"""The figures of a model on a labelled table: those of its task, with intervals, beside the best constant answer."""

import math

from longmix.data_prep.errors import UserError

from ..checkpoints.model_folders import told_model_folder
from ..finetune.custom import LABEL, labelled
from ..finetune.encode import LONGEST, load_encoder
from ..finetune.records import Table
from ..models.folder import objective_of, read_inputs
from ..models.loading import load_config
from ..objectives import metrics
from ..processes import world as distributed
from ..tables import writing
from ..tables.figures import ABSENT, interval
from . import texts
from .progress import Progress, counted
from .session import named_as_in, refuse_other_texts, text_columns_of

_HEADER = ("metric", "value", "95 % interval", "constant answer")
ROWS_AT_A_TIME = 2048
_MOST_CLASSES = 30  # of which each has a line


def figures(
    model: str,
    table: Table,
    text_columns: list[str] | None,
    label_column: str | None,
    max_length: int | None,
    batch_size: int,
) -> str:
    """Figures of a classifier, or a regression, of texts on a labelled table, as lines of text.

    Args:
        text_columns, label_column, max_length: None: those that the model was fine-tuned with.

    Raises:
        UserError: the model or the table cannot be read, or they do not belong together.
    """
    source = told_model_folder(model)
    config = load_config(source)
    name = objective_of(source, config).name
    if name not in ("classification", "regression"):
        raise UserError(
            f"{model} was trained for {name}; labelled files are for classification and regression, and a prepared "
            "data set (a folder with manifest.json) for the others"
        )
    is_regression = name == "regression"
    inputs = named_as_in(table, read_inputs(source), is_labelled=label_column is None)
    label = label_column or inputs.label_column or LABEL
    wanted = text_columns_of(table, text_columns, inputs, model, but=label)
    if label in wanted:
        raise UserError(f"--label-column {label} is one of --text-columns, too: the text would give the label away")
    names = [] if is_regression else texts.class_names(config)
    examples, labels, notes = labelled(table, wanted, label, names)
    refuse_other_texts(wanted, inputs, model)
    reader = texts.TextReader(load_encoder(source, max_length or inputs.max_length, LONGEST))
    kind = texts.Values if is_regression else texts.Classes
    answers = kind(source, config, reader, distributed.join().device, batch_size)
    seconds = examples.second or [None] * len(examples)
    rows = list(zip(examples.first, seconds, strict=True))
    found, progress = [], Progress(len(rows), "row", "evaluate")
    for start in range(0, len(rows), ROWS_AT_A_TIME):
        found += answers(start, rows[start : start + ROWS_AT_A_TIME], progress.note)
    predictions = [answer["value"] if is_regression else names.index(answer["label"]) for answer in found]
    told = [f"note: {note}" for note in (*notes, *reader.notes())]
    return "\n".join([*_table(labels, predictions, is_regression, names), *told])


def _table(labels, predictions, is_regression: bool, names: list[str]) -> list[str]:
    measured = (*metrics.CORRELATIONS, *metrics.ERRORS) if is_regression else metrics.of_classes(len(names))
    scores = metrics.evaluate(measured, labels, predictions)
    bounds = metrics.intervals(measured, labels, predictions)
    constant = metrics.baseline(measured, labels)

    def row(name: str) -> tuple[str, ...]:
        shown, value = ("{:.4g}" if name in metrics.ERRORS else "{:.4f}").format, scores.values[name]
        bounds_ = bounds[name] if math.isfinite(value) else None
        return name, shown(value), interval(bounds_, shown), shown(constant.values[name])

    rows = [row(name) for name in measured]
    lines = writing.aligned(_HEADER, rows, right=(1, 3))
    notes = [f"f1 is of the class {names[1]!r}"] if "f1" in measured else []
    notes += ["rmse and mae are in the unit of the label, the lower the better"] if is_regression else []
    notes += [f"note: {note}" for note in scores.notes]
    if not is_regression and len(names) <= _MOST_CLASSES:
        lines += ["", *_of_classes(labels, predictions, names), ""]
    return [*lines, f"{counted(len(labels), 'row')}; intervals by bootstrap over them", *notes]


def _of_classes(labels, predictions, names: list[str]) -> list[str]:
    """A line for each class."""
    rows = []
    for name, one in zip(names, metrics.of_each_class(labels, predictions, len(names)), strict=True):
        shares = (one.precision, one.recall, one.f1)
        shown = (ABSENT if share is None else f"{share:.4f}" for share in shares)
        rows.append((name, f"{one.labelled:,}", f"{one.predicted:,}", *shown))
    return writing.aligned(("class", "rows", "predicted", "precision", "recall", "f1"), rows, right=(1, 2, 3, 4, 5))
