"""The files of a model folder: whether they are whole, as far as that shows without building the model."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from longmix.data_prep.errors import UserError, refused
from longmix.data_prep.files import require_input
from longmix.data_prep.state_files import LARGEST, read_state
from longmix.data_prep.typed_maps import Mistake, build
from longmix.kernels.common.safe_files import read_input

from ..samples.label_scale import LabelScale
from ..settings.configuration import section_mistakes
from ..settings.objectives import FORECASTING, OBJECTIVES
from ..settings.sections import ObjectiveSection
from .foreign_code import foreign_code_mistakes
from .sizes import LARGEST_SIZE, MOST_LAYERS, impossible_sizes

CONFIGURATION = "config.json"
# The objective that the model was trained with, as its run file had it.
OBJECTIVE = "objective.json"
# What predictions need to know beyond it.
INPUTS = "inputs.json"
# Large models have an index and several files in its place.
_WEIGHTS = "model.safetensors"
_INDEX = f"{_WEIGHTS}.index.json"
_PICKLED = "pytorch_model"
_MOST_SHARED_LAYERS = 1000
_MOST_PLAIN_LABELS = 2**20
_FILE_NAME = re.compile(r"\w[\w.+-]*\.safetensors")
_TOKENIZER = ("tokenizer_config.json", "tokenizer.json")


def check_model_folder(folder: Path) -> None:
    """Raise UserError, naming the file, unless the configuration, the weights and a tokenizer's JSON can be read."""
    configuration = _read(folder / CONFIGURATION)
    if "model_type" not in configuration:
        raise UserError(f"{folder / CONFIGURATION} is no model's: model_type is missing")
    mistakes = foreign_code_mistakes(configuration)
    if mistakes:
        raise UserError(f"{folder / CONFIGURATION}: {' '.join(mistakes[0])}")
    for name in _TOKENIZER:
        if (folder / name).is_file():
            _read(folder / name)
    for path in weight_files(folder):
        if not path.is_file():
            raise UserError(f"{path} is missing: copy the folder again")
        if is_damaged(path):
            raise UserError(f"{path} is damaged or was cut short: copy it again")


def read_objective(source: str) -> ObjectiveSection | None:
    """The objective that a model was trained with; None if its folder does not say, or it is a name on the hub.

    Raises:
        UserError: what the folder says is no objective.
    """
    path = Path(source) / OBJECTIVE
    if not path.is_file():
        return None
    mistakes: list[Mistake] = []
    section = build(ObjectiveSection, _read(path), "objective.", mistakes)
    mistakes += section_mistakes(section, "objective.")
    if mistakes:
        raise UserError(f"{path}: {'; '.join(f'{key} {text}' for key, text in mistakes)}")
    return section


def objective_of(source: str, config: Any) -> ObjectiveSection:
    """The objective of a model: that of its folder, or else the one that its head, by its configuration, is for."""
    section = read_objective(source)
    if section is not None:
        return section
    heads = config.architectures or []
    names = (name for name, row in OBJECTIVES.items() for head in heads if head.endswith(row.heads))
    name = next(names, "mlm")
    if name == "classification" and config.problem_type == "regression":
        name = "regression"
    if name == FORECASTING:
        return ObjectiveSection(name=name, input_length=config.input_length, horizon=config.horizon)
    return ObjectiveSection(name=name)


@dataclass(frozen=True)
class Inputs:
    """What a model was trained to read, as `inputs.json` in its folder says it; None: it does not say.

    Attributes:
        text_columns, label_column: of the table that it was fine-tuned on.
        max_length: of its inputs there, in tokens.
        series: of forecasting: names of the variables, what was subtracted from each and divided by, and the columns of
            the date, where they are not `date` alone.
        label_scale: of a regression whose labels were standardised.
        characters: that the inputs number, in their order.
    """

    text_columns: list[str] | None = None
    label_column: str | None = None
    max_length: int | None = None
    series: dict[str, Any] | None = None
    label_scale: LabelScale | None = None
    characters: str | None = None


def read_inputs(source: str) -> Inputs:
    """The inputs of a model, without anything that its folder does not say: older ones, and others', hold no file.

    Raises:
        UserError: the file is damaged.
    """
    path = Path(source) / INPUTS
    if not path.is_file():
        return Inputs()
    return read_state(path, Inputs, "copy the model folder again")


def is_damaged(path: Path) -> bool:
    """Whether a safetensors file cannot be opened, as one that was cut short. The weights are not read."""
    try:
        require_input(path)
        with safe_open(path, framework="pt"):
            return False
    except Exception:  # the library has errors of its own beside the system's
        return True


def held(folder: Path) -> tuple[int, int] | None:
    """(weights, numbers in all of them) that a folder's safetensors files hold, by their headers; None without any.

    Raises:
        UserError: a file is missing or damaged.
    """
    try:
        paths = weight_files(folder)
    except UserError:
        return None  # told when they are wanted: a configuration can do without
    weights = numbers = 0
    for path in paths:
        require_input(path)
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  it is no map
                    weights, numbers = weights + 1, numbers + math.prod(file.get_slice(name).get_shape())
        except Exception:  # the library has errors of its own beside the system's
            what = "is damaged or was cut short" if path.is_file() else "is missing"
            raise UserError(f"{path} {what}: copy it again") from None
    return weights, numbers


def refuse_sizes(folder: Path) -> None:
    """Raise UserError if a model folder's configuration has sizes that its weights do not, before anything is made of
    it: the configuration alone, of 2^31 labels or layers, may take all memory, or never end."""
    there = held(folder)
    weights, numbers = there or (MOST_LAYERS, LARGEST_SIZE)
    values = _read(folder / CONFIGURATION)
    # Layers that share their weights are few.
    mistake = next(impossible_sizes(values, most_layers=max(weights, _MOST_SHARED_LAYERS)), None)
    labels = values.get("num_labels")
    if mistake is None and type(labels) is int and labels > max(numbers, _MOST_PLAIN_LABELS):
        mistake = f"num_labels is {labels}"
    if mistake is not None:
        held_there = "" if there is None else f"; its weights are {weights} tensors of {numbers:,} numbers in all"
        raise UserError(f"{folder / CONFIGURATION}: {mistake}{held_there}: copy the folder again, or correct it")


def weight_files(folder: Path) -> list[Path]:
    """The paths of a model folder's weights, whether or not they are there.

    Raises:
        UserError: there are none, only pickled ones, or an index that names files elsewhere.
    """
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    if (folder / _INDEX).is_file():
        weights = _read(folder / _INDEX).get("weight_map")
        if not isinstance(weights, dict) or not weights:
            raise UserError(f"{folder / _INDEX} is damaged: it names no weights")
        names = sorted(set(map(str, weights.values())))
        foreign = next((name for name in names if not _FILE_NAME.fullmatch(name)), None)
        if foreign is not None:
            raise UserError(f"{folder / _INDEX} names {foreign!r}, but must name safetensors files beside it")
        return [folder / name for name in names]
    pickled = next(iter(sorted(folder.glob(f"{_PICKLED}*"))), None)
    if pickled is not None:
        raise UserError(
            f"{pickled} is a pickle, which could run anything when it is read, and there is no {_WEIGHTS} beside it: "
            "where it is trusted, let transformers load it and save it again (save_pretrained)"
        )
    raise UserError(f"{folder} holds no weights: {_WEIGHTS} is missing")


def _read(path: Path) -> dict[str, Any]:
    """A file that holds a JSON object."""
    try:
        values = json.loads(read_input(path, LARGEST))
    except OSError as error:
        raise refused(f"{path} cannot be read", error) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged, no JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return values
