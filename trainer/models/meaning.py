"""Whether the numbers in a data set mean what they meant where a model was trained: labels, characters, variables."""

import re
from typing import Any

import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

from ..samples.windows import characters_of
from .folder import read_inputs

_SHOWN = 5
_WITHOUT_NAME = re.compile(r"LABEL_\d+")
_ADVICE = "prepare the data together with those of training"


def refuse_other_meaning(source: str, config: transformers.PreTrainedConfig, data: str, manifest: Manifest) -> None:
    """Raise UserError unless a model's numbers mean the same in a data set, as far as both say what they mean.

    Args:
        source, config: the model's folder or name, and its configuration.
        data: the data set's, for messages.
    """
    inputs, series = read_inputs(source), manifest.series
    names = manifest.label_names or []
    # Of fewer labels the model's are not these: it has another objective, or is refused for it.
    own = [str(config.id2label[index]) for index in range(min(len(names), config.num_labels))]
    if len(own) == len(names) and names != own and not all(map(_WITHOUT_NAME.fullmatch, own)):
        raise UserError(f"{data} numbers the classes {_shown(names)}, {source} {_shown(own)}: {_ADVICE}")
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
                "its table, which longmix predict standardises as training did"
            )


def _shown(names: list[Any]) -> str:
    return ", ".join(map(str, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
