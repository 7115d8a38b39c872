"""One `longmix predict`: which answers a model gives to which data, part by part, joined to one file."""

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import transformers

from longmix.data_prep.errors import UserError, printable
from longmix.data_prep.files import sha256_of_file, sha256_of_folder
from longmix.data_prep.manifest import FILE_NAME

from ..checkpoints.model_folders import told_model_folder
from ..finetune.custom import as_pair
from ..finetune.encode import load_encoder
from ..finetune.records import HUB, Table, open_table
from ..models.folder import Inputs, objective_of, read_inputs
from ..models.loading import load_config
from ..processes import world as distributed
from . import output, parts, texts

# The answers that objectives give to texts.
OF_TEXTS: dict[str, type[texts.SampleAnswers]] = {
    "classification": texts.Classes,
    "regression": texts.Values,
    "token_classification": texts.TokenLabels,
    "mlm": texts.FilledMasks,
}


def run(arguments: argparse.Namespace) -> int:
    """The command. Returns 0. Raises UserError for the user's mistakes."""
    transformers.utils.logging.disable_progress_bar()
    target = output.check_output(arguments.output)
    source = told_model_folder(arguments.model)
    config = load_config(source)
    rows, answers = _text_answers(arguments, source, config)
    count = parts.in_parts(
        rows,
        answers,
        arguments.part_rows,
        parts.parts_folder(target),
        _identity(arguments, source),
        lambda paths: output.join(paths, answers.columns, target),
    )
    print(printable(f"wrote {target}: {count:,} {answers.unit}"))
    return 0


def _text_answers(
    arguments: argparse.Namespace, source: str, config: Any
) -> tuple[Iterator[texts.Texts], texts.SampleAnswers]:
    """The texts of a file, and what answers them."""
    name = objective_of(source, config).name
    kind = texts.Embeddings if arguments.embeddings else OF_TEXTS.get(name)
    if kind is None:
        able = ", ".join(OF_TEXTS)
        raise UserError(f"{source} was trained for {name}, which answers no texts; --embeddings does; these do: {able}")
    inputs = read_inputs(source)
    table = open_table(arguments.data, arguments.columns)
    wanted = text_columns_of(table, arguments.text_columns, inputs, arguments.model)
    reader = texts.TextReader(load_encoder(source, arguments.max_length or inputs.max_length))
    rows = (as_pair(row.texts) for row in table.rows(wanted))
    return rows, kind(source, config, reader, distributed.join().device, arguments.batch_size)


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


def _identity(arguments: argparse.Namespace, source: str) -> str:
    """A hash of all that the answers depend on: the model, the data, and the options."""
    data = Path(arguments.data)
    contents: Callable[[], str] = lambda: arguments.data  # noqa: E731
    if arguments.data.startswith(HUB):
        pass
    elif data.is_dir():
        contents = lambda: sha256_of_file(data / FILE_NAME)  # noqa: E731
    else:
        contents = lambda: sha256_of_file(data)  # noqa: E731
    model = sha256_of_folder(source) if Path(source).is_dir() else source
    options = {
        name: getattr(arguments, name)
        for name in ("columns", "text_columns", "embeddings", "max_length", "batch_size", "part_rows")
    }
    return hashlib.sha256(json.dumps([model, contents(), options]).encode()).hexdigest()
