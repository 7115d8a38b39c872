"""The model of a run, built on every rank."""

import contextlib

import transformers

from longmix.modeling import MODEL_TYPES

from ..engines.shared_building import in_shares
from ..models.field_check import FROM
from ..processes.world import World
from ..settings import deepspeed_file
from ..settings.optimizers import OPTIMIZERS
from .setup import Prepared


def build(prepared: Prepared, world: World) -> transformers.PreTrainedModel:
    """The model; a new one of ours for several ranks at ZeRO stage 3 in shares, with the same weights."""
    shared = is_in_shares(prepared, world.size)
    context = in_shares(prepared.configuration, prepared.size.parameters, world) if shared else contextlib.nullcontext()
    with context:
        return prepared.build()


def is_in_shares(prepared: Prepared, ranks: int) -> bool:
    """Whether each rank keeps its share of the model from the start."""
    configuration = prepared.configuration
    if configuration.deepspeed is None or ranks == 1:
        return False
    is_new = FROM not in configuration.model and prepared.model_configuration.model_type in MODEL_TYPES
    # An optimizer of matrices must know their shapes.
    moves_vectors = OPTIMIZERS[configuration.optim.name].state_per_matrix_entry is None
    values = deepspeed_file.read(configuration.deepspeed)
    is_plain = deepspeed_file.stage_of(values) == 3 and deepspeed_file.keeps_plain_shares(values)
    return is_new and moves_vectors and is_plain
