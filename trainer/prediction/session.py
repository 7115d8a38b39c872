"""One `longmix predict`: which answers a model gives to which data, part by part, joined to one file."""

import argparse
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import transformers

from longmix.data_prep.errors import UserError, printable
from longmix.data_prep.files import sha256_of_file, sha256_of_folder
from longmix.data_prep.manifest import FILE_NAME

from ..checkpoints.model_folders import told_model_folder
from ..finetune.encode import LONGEST, load_encoder
from ..finetune.records import HUB, Table, kind_of, open_table
from ..finetune.tasks import hub_names
from ..models.build import refuse_other_inputs
from ..models.folder import Inputs, objective_of, read_inputs
from ..models.loading import has_other_vocabulary, load_config
from ..models.meaning import refuse_other_numbering
from ..processes import world as distributed
from ..samples.dataset import ShardedDataset
from ..samples.tokenizer import tokenizer_folder
from ..settings.mistakes import say
from ..settings.objectives import FORECASTING
from ..settings.sections import ObjectiveSection
from . import output, parts, series, series_tables, texts
from .kept_columns import KeptColumns, columns_to_read
from .progress import Progress, counted

# The answers that objectives give to texts, and to samples of a prepared data set.
OF_TEXTS: dict[str, type[texts.SampleAnswers]] = {
    "classification": texts.Classes,
    "regression": texts.Values,
    "token_classification": texts.TokenLabels,
    "mlm": texts.FilledMasks,
}
OF_SAMPLES: dict[str, type[texts.SampleAnswers]] = {
    "classification": texts.Classes,
    "regression": texts.Values,
    "pair_classification": texts.PairClasses,
    "token_classification": texts.PositionLabels,
}


class Work(NamedTuple):
    """What is to be answered, how much of it, if that is known, what answers it, the columns that are read, and what
    reads their texts.
    """

    rows: Iterator[Any]
    count: int | None
    answers: texts.SampleAnswers | series.Forecasts | KeptColumns
    columns: list[str]
    reader: texts.TextReader | None = None


def run(arguments: argparse.Namespace, table: Table | None, target: Path) -> int:
    """The command, which writes `target`. Returns 0. Raises UserError for the user's mistakes.

    Args:
        table: of `--data`, where that is a file.
    """
    transformers.utils.logging.disable_progress_bar()
    source = told_model_folder(arguments.model)
    config = load_config(source)
    objective = objective_of(source, config)
    if objective.name == FORECASTING:
        work = _forecasts(arguments, source, objective, table)
    elif (Path(arguments.data) / FILE_NAME).is_file():
        work = _sample_answers(arguments, source, config, objective.name)
    else:
        work = _text_answers(arguments, source, config, objective.name, table)
    answers = work.answers
    count = parts.in_parts(
        work.rows,
        answers,
        arguments.part_rows,
        parts.parts_folder(target),
        _identity(arguments, source, config, work.columns),
        Progress(work.count, answers.unit),
        lambda paths: output.join(paths, answers.columns, target),
        answers.pass_over,
    )
    print(printable(f"wrote {target}: {counted(count, answers.unit)}"))
    for note in [] if work.reader is None else work.reader.notes():
        say(f"longmix predict: {note}")
    return 0


def _text_answers(arguments: argparse.Namespace, source: str, config: Any, name: str, table: Table | None) -> Work:
    """The texts of a table."""
    kind = texts.Embeddings if arguments.embeddings else OF_TEXTS.get(name)
    if kind is None:
        able = ", ".join(OF_TEXTS)
        raise UserError(f"{source} was trained for {name}, which answers no texts; --embeddings does; these do: {able}")
    inputs = read_inputs(source)
    reader = texts.TextReader(load_encoder(source, arguments.max_length or inputs.max_length, LONGEST))
    table = table or open_table(arguments.data, arguments.columns)
    wanted = text_columns_of(table, arguments.text_columns, named_as_in(table, inputs), arguments.model)
    if kind is texts.FilledMasks and len(wanted) > 1:
        raise UserError(f"--text-columns names {', '.join(wanted)}, but masks are filled in one text: name its column")
    read = columns_to_read(wanted, arguments.keep)
    rows = table.rows(read)
    if kind is not texts.Embeddings:
        refuse_other_texts(wanted, inputs, arguments.model)
    answers = kind(source, config, reader, distributed.join().device, arguments.batch_size)
    return Work(rows, table.count, KeptColumns(answers, wanted, arguments.keep), read, reader)


def _sample_answers(arguments: argparse.Namespace, source: str, config: Any, name: str) -> Work:
    """The numbers of the samples of a prepared data set."""
    _refuse(arguments, "files of texts", "columns", "text_columns", "keep", "max_length")
    kind = texts.Embeddings if arguments.embeddings else OF_SAMPLES.get(name)
    if kind is None:
        raise UserError(f"{source} was trained for {name}: name a file of texts, or give --embeddings")
    dataset = ShardedDataset(arguments.data)
    try:
        refuse_other_inputs(config, dataset.manifest, is_trained=True)
    except UserError as error:
        raise UserError(f"{arguments.model} does not fit {arguments.data}: {error}") from None
    folder = tokenizer_folder(arguments.data, dataset.manifest)
    if (dataset.manifest.vocab_size or 0) > getattr(config, "vocab_size", 0) or has_other_vocabulary(source, folder):
        raise UserError(f"{arguments.data} was made with another tokenizer than that of {arguments.model}")
    refuse_other_numbering(source, arguments.data, dataset.manifest)
    device = distributed.join().device
    answers = kind(source, config, texts.SampleReader(dataset), device, arguments.batch_size)
    return Work(iter(range(len(dataset))), len(dataset), answers, [])


def _forecasts(arguments: argparse.Namespace, source: str, objective: ObjectiveSection, table: Table | None) -> Work:
    """The windows of a table or of a prepared split."""
    _refuse(arguments, "texts", "text_columns", "keep", "max_length", "embeddings")
    dates = None
    if (Path(arguments.data) / FILE_NAME).is_file():
        _refuse(arguments, "a file without a header", "columns")
        dataset = ShardedDataset(arguments.data)
        scales = dataset.manifest.series
        if scales is None:
            raise UserError(f"{arguments.data} holds no time series, but {arguments.model} forecasts one")
        rows = series.windows_of(dataset, objective.input_length, objective.horizon)
    else:
        scales = series_tables.series_of(read_inputs(source), arguments.model)
        table = table or open_table(arguments.data, arguments.columns)
        rows = iter([series.window_after(table, scales, objective.input_length)])
        dates = series_tables.dates_after(table, scales, objective.input_length, objective.horizon)
    answers = series.Forecasts(source, scales, distributed.join().device, arguments.batch_size, dates)
    if answers.model.config.input_channels != len(scales["names"]):
        raise UserError(
            f"{arguments.data} has {len(scales['names'])} variables, {arguments.model} forecasts "
            f"{answers.model.config.input_channels}: it was trained on another series"
        )
    if (Path(arguments.data) / FILE_NAME).is_file():
        refuse_other_numbering(source, arguments.data, dataset.manifest)
    return Work(rows, None, answers, scales["names"])


def _refuse(arguments: argparse.Namespace, what: str, *names: str) -> None:
    """Raise UserError for an option that would do nothing, as it is for `what`."""
    for name in names:
        if getattr(arguments, name):
            raise UserError(f"--{name.replace('_', '-')} is for {what}: leave it out")


def named_as_in(table: Table, inputs: Inputs, is_labelled: bool = False) -> Inputs:
    """The inputs with the names of a table's columns. Models of GLUE know those of its TSV files; the hub's layout has
    others, which are taken where the table has these and not the former. With `is_labelled` the label is among them.
    """
    hub = None if inputs.text_columns is None else hub_names(inputs.text_columns, inputs.label_column)
    if hub is None:
        return inputs
    others = replace(inputs, text_columns=list(hub[0]), label_column=hub[1])

    def fits(names: Inputs) -> bool:
        return {*names.text_columns, *([names.label_column] if is_labelled else [])} <= set(table.columns)

    return others if fits(others) and not fits(inputs) else inputs


def text_columns_of(
    table: Table, given: list[str] | None, inputs: Inputs, model: str, but: str | None = None
) -> list[str]:
    """The columns of a table that hold the text: those `given`, those of fine-tuning, or the only one (`but` one)."""
    wanted = given or inputs.text_columns
    if wanted is None:
        others = [name for name in table.columns if name != but]
        if len(others) != 1:
            raise UserError(
                f"name the text of {table.source} with --text-columns, which {model} does not say; it has: "
                f"{', '.join(table.columns)}"
            )
        wanted = others
    return wanted


def refuse_other_texts(columns: list[str], inputs: Inputs, model: str) -> None:
    """Raise UserError for one text in place of the two that a model was fine-tuned with, or for two in place of one."""
    known = inputs.text_columns
    if known is not None and (len(columns) > 1) != (len(known) > 1):
        kind = "pairs of texts" if len(known) > 1 else "single texts"
        raise UserError(
            f"--text-columns names {', '.join(columns)}, but {model} was fine-tuned with {kind} ({', '.join(known)})"
        )


def _contents_of(table: Table, columns: list[str]) -> str:
    """A hash of some columns of a table."""
    contents = hashlib.sha256(json.dumps(columns).encode())
    for row in table.rows(columns):
        contents.update(json.dumps(row.texts).encode())
    return contents.hexdigest()


def _identity(arguments: argparse.Namespace, source: str, config: Any, columns: list[str]) -> str:
    """A hash of all that the answers depend on: the model, the data, and the options.

    A name on the hub says nothing about what stands there today: of a model the commit counts, which transformers notes
    in its configuration, of data the rows, as far as `columns` are read.
    """
    data = Path(arguments.data)
    if arguments.data.startswith(HUB):
        contents = _contents_of(open_table(arguments.data), columns)
    else:
        # Its name says how it is read.
        contents = [kind_of(data), sha256_of_file(data / FILE_NAME if data.is_dir() else data)]
    is_folder = Path(source).is_dir()
    model = sha256_of_folder(source) if is_folder else [source, getattr(config, "_commit_hash", None)]
    options = {
        name: getattr(arguments, name)
        for name in ("columns", "text_columns", "keep", "embeddings", "max_length", "batch_size", "part_rows")
    }
    return hashlib.sha256(json.dumps([model, contents, options]).encode()).hexdigest()
