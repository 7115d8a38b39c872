"""A user's own task: its splits found in a folder, or on the hub, and read from tables of any kind (records.py)."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from longmix.data_prep.class_order import class_order
from longmix.data_prep.errors import UserError
from longmix.data_prep.split_names import SPLIT_NAMES, TEST, TRAIN, VALIDATION, refuse_missing_parts
from longmix.data_prep.text import unpacking

from .readers import SHOWN_LABELS, Examples, is_number, parse_label
from .records import HUB, OPENERS, Table, hub_splits, hub_table, joined, open_table
from .sources import TaskData, require_folder
from .tasks import CLASS_METRICS, Task, custom_task

LABEL = "label"
MOST_CLASSES = 1000
# The names that a split goes by, ours first.
_NAMES = {
    TRAIN: SPLIT_NAMES[TRAIN],
    "dev": tuple(dict.fromkeys(("dev", *SPLIT_NAMES[VALIDATION]))),
    TEST: SPLIT_NAMES[TEST],
}


def load_custom(
    data: str,
    text_columns: Sequence[str] | None,
    label_column: str | None,
    *,
    regression: bool = False,
    columns: Sequence[str] | None = None,
    begun_with: Sequence[str] = (),
    metric: str = CLASS_METRICS[0],
) -> TaskData:
    """Read a user's own task: `train`, `dev` (or `validation`) and, if there, `test`, of a folder or of `hub:NAME`.

    The class names are those of the training split, in the order that the data give them, or else numbers by value and
    others as text; with `regression` labels are numbers. Without a dev split a labelled test split takes its place,
    which is read for the reported figures alone; beside one, its labels are for a figure of its own.

    Args:
        text_columns: None: all columns but the label, where `columns` names them, or the only other one.
        label_column: None: the column "label".
        columns: names of the columns of files without a header.
        metric: of CLASS_METRICS, that the score is of.
        begun_with: class names of runs that go on: where they are those of the data, their order is kept.

    Raises:
        UserError: a missing folder, split, column or label name.
    """
    tables, text_columns, label_column = open_task(data, text_columns, label_column, columns)
    names = () if regression else _class_names(tables["train"], label_column, begun_with)
    task = custom_task(text_columns, label_column, names, metric)
    train = read_examples(tables["train"], task)
    notes = []
    if "dev" in tables:
        dev = {"dev": read_examples(tables["dev"], task)}
    else:
        dev = {"test": read_examples(tables.pop("test"), task)}
        notes.append("no dev split: the figures are those of the labelled test split")
    test, test_labels = {}, None
    if "test" in tables:
        test["test"] = read_examples(tables["test"], task, test=True)
        if label_column in tables["test"].columns:
            try:
                test_labels = read_examples(tables["test"], task).labels
                notes.append("test: the labelled test split, which chose nothing and is no part of the score")
            except UserError as reason:  # what stands in place of labels, say
                notes.append(f"the test split is predicted, not scored: {reason}")
    notes += _trained_on(train, dev | test)
    return TaskData(task, train, dev, test, data, notes, test_labels)


def _trained_on(train: Examples, others: dict[str, Examples]) -> Iterator[str]:
    """What is to be told of splits of which the training data hold examples, whatever their labels."""
    known = set(_texts(train))
    for name, examples in others.items():
        if count := sum(texts in known for texts in _texts(examples)):
            yield f"{name}: {count:,} of {len(examples):,} texts stand in the training data, too"


def _texts(examples: Examples) -> Iterator[tuple[str, str | None]]:
    return zip(examples.first, examples.second or itertools.repeat(None), strict=False)


def open_task(
    data: str, text_columns: Sequence[str] | None, label_column: str | None, columns: Sequence[str] | None
) -> tuple[dict[str, Table], tuple[str, ...], str]:
    """The tables of a user's own task by split, its text columns and its label column; see `load_custom`."""
    if text_columns and (label_column or LABEL) in text_columns:
        raise UserError(
            f"--label-column {label_column or LABEL} is one of --text-columns, too: the text would give the label away"
        )
    require_folder(data)
    tables, missing = _tables(data, columns)
    for name in ("train", "dev"):
        if name in tables:
            continue
        if name == "dev" and "test" in tables and (label_column or LABEL) in tables["test"].columns:
            continue
        unlabelled = ""
        if name == "dev" and "test" in tables:
            held = ", ".join(tables["test"].columns)
            unlabelled = (
                f", and the test split has no column {label_column or LABEL!r} to take its place; it has: {held}"
            )
        raise UserError(
            f"--task custom: {missing[name]} is missing{unlabelled}; --data names a folder with train and dev files "
            f"({', '.join(OPENERS)}), or hub:NAME; --columns names the columns of files without a header"
        )
    text_columns, label_column = _columns(tables["train"], text_columns, label_column, columns is not None)
    tables["train"].rows([*text_columns, label_column])
    return tables, text_columns, label_column


def read_examples(table: Table, task: Task, *, test: bool = False) -> Examples:
    """The examples of a table; those of a `test` split have no labels, and the table's own index if it has one.

    Of more than two text columns the second text is all but the first, with spaces between.

    Raises:
        UserError: with the place, for what is missing or no label of the task.
    """
    texts = len(task.text_columns)
    has_index = test and task.index_column in table.columns
    wanted = [*task.text_columns, *(() if test else (task.label_column,)), *((task.index_column,) if has_index else ())]
    first, second, labels, indices = [], [], [], []
    for row in table.rows(wanted):
        one, other = as_pair(row.texts[:texts])
        first.append(one)
        second.append(other)
        if not test:
            labels.append(parse_label(task, _spelt(row.texts[texts].strip(), task.file_labels), row.place))
        indices.append(row.texts[-1] if has_index else str(len(indices)))
    if not first:
        raise UserError(f"{table.source}: no rows")
    return Examples(first, second if texts > 1 else None, None if test else labels, indices)


def _spelt(label: str, names: Sequence[str]) -> str:
    """A label as the classes spell it: true and false of JSON are True and False to earlier versions, and in pandas'
    CSV files."""
    if label in names or label.lower() not in ("true", "false"):
        return label
    return next((other for other in (label.lower(), label.capitalize()) if other in names), label)


def as_pair(columns: Sequence[str]) -> tuple[str, str | None]:
    """The text columns of a row as a model reads them: the first, and the others as one with spaces between."""
    return columns[0], " ".join(columns[1:]) if len(columns) > 1 else None


def labelled(
    table: Table, text_columns: Sequence[str], label_column: str, names: Sequence[str]
) -> tuple[Examples, np.ndarray, list[str]]:
    """The examples of a labelled table for a model with classes `names`, or values without, the labels (n,), and notes.

    Classes are written by their names or, where no row has one of these and no name is a number, as their numbers,
    which a note tells.
    """
    notes = []
    if len({name.strip() for name in names}) == len(names):
        names = [name.strip() for name in names]  # earlier versions kept the spaces around them
    task = custom_task(tuple(text_columns), label_column, tuple(names))
    numbers = tuple(map(str, range(len(names))))
    if names and not any(is_number(name) for name in names):
        written = {row.texts[0].strip() for row in table.rows([label_column])}
        if written & set(numbers) and not written & set(names):
            task = custom_task(tuple(text_columns), label_column, numbers)
            more = ", ..." if len(names) > SHOWN_LABELS else ""
            read, as_ = (", ".join(words[:SHOWN_LABELS]) + more for words in (numbers, names))
            notes.append(f"labels {read} are read as {as_}")
    # What the command line of a fine-tuning could do about a label does not help here.
    examples = read_examples(table, replace(task, custom=False))
    return examples, np.asarray(examples.labels, dtype=np.int64 if names else np.float64), notes


# -----------------------------------------------------------------------------
# What is where: the files of the splits, the columns, and the classes.


def _tables(data: str, columns: Sequence[str] | None) -> tuple[dict[str, Table], dict[str, str]]:
    """The splits that are there, and the name of each for when it is not."""
    if data.startswith(HUB):
        parts = hub_splits(data)
        if columns is not None:
            raise UserError(f"--columns is for files without a header, and {data} names its columns itself")
        found = {name: next((split for split in names if split in parts), None) for name, names in _NAMES.items()}
        tables = {
            name: hub_table(parts[split], f"{data}:{split}") for name, split in found.items() if split is not None
        }
        return tables, {name: f"a split {' or '.join(names)} of {data}" for name, names in _NAMES.items()}
    root = Path(data)
    tables = {}
    for name, names in _NAMES.items():
        sources = _sources(root, names)
        if len(sources) > 1:
            raise UserError(f"--data {data} has {' and '.join(sources)} for one split: leave one there")
        for found in sources.values():
            refuse_missing_parts(found)
            tables[name] = joined([open_table(str(path), columns) for path in found])
    return tables, {name: str(root / f"{name}.tsv") for name in _NAMES}


def _sources(root: Path, names: Sequence[str]) -> dict[str, list[Path]]:
    """What a split could be read from, by the name that a message has for it: a file, or parts as the hub names them.

    Links to one file are one, and plain text, of one column, counts where nothing else is there: a table may have been
    made from it.
    """
    files: dict[Path, Path] = {}
    for split, suffix, packed in itertools.product(names, OPENERS, ("", *unpacking.ENDINGS)):
        path = root / f"{split}{suffix}{packed}"
        if path.is_file():
            files.setdefault(path.resolve(), path)
    patterns = [f"{split}-*-of-*.parquet" for split in names]
    parts = {pattern: found for pattern in patterns if (found := sorted(root.glob(pattern)))}
    tables = {path.name: [path] for path in files.values() if ".txt" not in path.suffixes} | parts
    return tables or {path.name: [path] for path in files.values()}


def _columns(
    table: Table, text_columns: Sequence[str] | None, label_column: str | None, all_are_named: bool
) -> tuple[tuple[str, ...], str]:
    label = label_column or LABEL
    others = [name for name in table.columns if name != label]
    if text_columns is None and label in table.columns and others and (all_are_named or len(others) == 1):
        text_columns = others
    wanted = ["--text-columns"] if not text_columns else []
    wanted += ["--label-column"] if label_column is None and label not in table.columns else []
    if wanted:
        raise UserError(
            f"--task custom needs {' and '.join(wanted)}, where it cannot tell them: "
            f"{table.source} has {', '.join(table.columns)}"
        )
    return tuple(text_columns), label


def _class_names(table: Table, label_column: str, begun_with: Sequence[str]) -> tuple[str, ...]:
    names: set[Any] = set()
    for row in table.rows([label_column]):
        name = row.texts[0].strip()
        if not name:
            raise UserError(f"{row.place}: {label_column} is empty, expected a class")
        names.add(_spelt(name, begun_with))
    if len(names) < 2:
        raise UserError(f"{table.source}: column {label_column!r} holds one class only; two are needed")
    if len(names) > MOST_CLASSES:
        raise UserError(
            f"{table.source}: column {label_column!r} holds {len(names)} different labels; numbers need --regression"
        )
    own = dict.fromkeys(str(name).strip() for name in table.classes.get(label_column, ()))
    for order in (begun_with, own):
        kept = tuple(name for name in order if name in names)
        if len(kept) == len(names):
            return kept
    return tuple(sorted(names, key=class_order))
