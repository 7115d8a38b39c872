"""The rows: every mixer, and what transformers has to compare with, all of one size."""

import functools
from pathlib import Path
from typing import Any

import transformers
from glue_table.budget import CONFIGS, LARGEST_VOCABULARY, LENGTH

from longmix.modeling import MODEL_TYPES
from longmix.trainer.models.sizes import measure
from longmix.trainer.settings.run_file import parse_yaml

REFERENCE = "transformer"
ROWS = (REFERENCE, *(name for name in MODEL_TYPES if name != REFERENCE), "fnet", "bert")
# The files of configs/model have equal parameters at their own lengths, and a mixer's may grow with N: a row that is
# farther from the reference than this gets another inner layer, in units of STEP.
TOLERANCE, STEP = 0.05, 8
# Of its file's layers, a row has one in so many: half of them on a CPU, as in the text table of docs/learning.md, for
# twice the tokens in the same time.
ONE_LAYER_IN = {"tiny": 2, "small": 1}


@functools.cache
def model_words(row: str, size: str) -> tuple[str, ...]:
    """A row's model as words of `longmix train`: its file in configs/model, or the fields of a type of transformers."""
    fields = _fields(row, size)
    reference = _parameters(_fields(REFERENCE, size))
    if abs(_parameters(fields) / reference - 1) > TOLERANCE:
        # All grow linearly with it.
        inner, found = fields["intermediate_size"], _parameters(fields)
        each = (_parameters({**fields, "intermediate_size": inner + STEP}) - found) / STEP
        fields["intermediate_size"] = inner + STEP * round((reference - found) / each / STEP)
    there = _read(row, size) if row in MODEL_TYPES else {}
    changes = (f"model.{name}={value}" for name, value in fields.items() if there.get(name) != value)
    return (*([str(_file(row, size))] if there else []), *changes)


def _fields(row: str, size: str) -> dict[str, Any]:
    if row in MODEL_TYPES:
        found = _read(row, size)
        return {**found, "num_hidden_layers": found["num_hidden_layers"] // ONE_LAYER_IN[size]}
    shape = {**_fields(REFERENCE, size), "model_type": row, "hidden_dropout_prob": 0.0}
    wanted = transformers.CONFIG_MAPPING[row]().to_dict()
    if "attention_probs_dropout_prob" in wanted:
        shape["attention_probs_dropout_prob"] = 0.0
    return {name: value for name, value in shape.items() if name in wanted}


def _read(row: str, size: str) -> dict[str, Any]:
    file = _file(row, size)
    return parse_yaml(file.read_text(encoding="utf-8"), str(file))["model"]


def _file(row: str, size: str) -> Path:
    return CONFIGS / "model" / f"{row}_{size}.yaml"


def _parameters(fields: dict[str, Any]) -> int:
    """Outside embeddings."""
    others = {name: value for name, value in fields.items() if name != "model_type"}
    config = transformers.AutoConfig.for_model(
        fields["model_type"], **others, vocab_size=LARGEST_VOCABULARY, max_position_embeddings=LENGTH
    )
    found = measure(config, transformers.AutoModelForMaskedLM)
    return found.parameters - found.embeddings
