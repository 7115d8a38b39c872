"""Whether the numbers in a data set mean what they meant where a model was trained: labels, characters, variables."""

from typing import Any

import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

from ..samples.label_scale import LabelScale
from ..samples.windows import characters_of
from .folder import read_inputs

_SHOWN = 5
_ADVICE = "prepare the data together with those of training"


def refuse_other_labels(source: str, config: transformers.PreTrainedConfig, data: str, manifest: Manifest) -> None:
    """Raise UserError unless a model's labels mean the same in a data set, as far as both say what they mean.

    Args:
        source, config: the model's folder or name, and its configuration.
        data: the data set's, for messages.
    """
    names = [name.strip().casefold() for name in manifest.label_names or []]
    # Of fewer labels the model's are not these: it has another objective, or is refused for it.
    own = [str(config.id2label[index]).strip().casefold() for index in range(min(len(names), config.num_labels))]
    if len(own) == len(names) and names != own and _have_names(names) and _have_names(own):
        raise UserError(f"{data} numbers the classes {_shown(names)}, {source} {_shown(own)}: {_ADVICE}")
    is_regression = config.problem_type == "regression"
    if is_regression and LabelScale.of_manifest(manifest) != read_inputs(source).label_scale:
        raise UserError(f"the labels of {data} are not in the unit that {source} was trained on: {_ADVICE}")


def _have_names(names: list[str]) -> bool:
    """Whether classes are called otherwise than by their numbers."""
    return names not in ([str(index) for index in range(len(names))], [f"label_{index}" for index in range(len(names))])


def refuse_other_numbering(source: str, data: str, manifest: Manifest) -> None:
    """The same of the inputs: the characters that they number, or the variables of a series."""
    inputs, series = read_inputs(source), manifest.series
    characters = characters_of(manifest)
    if None not in (characters, inputs.characters) and characters != inputs.characters:
        raise UserError(f"{data} numbers other characters than {source}: {_ADVICE}")
    if series is not None and inputs.series is not None:
        if series["names"] != inputs.series["names"]:
            told = f"the variables {_shown(series['names'])}, {source} forecasts {_shown(inputs.series['names'])}"
            raise UserError(f"{data} has {told}: {_ADVICE}")
        if any(series[key] != inputs.series[key] for key in ("mean", "scale")):
            raise UserError(
                f"{data} is standardised otherwise than the series that {source} was trained on: {_ADVICE}, or give "
                "its table, which longmix predict and evaluate standardise as training did"
            )


def _shown(names: list[Any]) -> str:
    return ", ".join(map(str, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
