"""The memory that a run needs at least, against what its ranks have, before anything is built.

The rule: a run is refused if the parameters, gradients and optimizer's state of its ranks, one micro-batch, and on the
way there the model in fp32 that each rank builds, are more than the whole memory and a tenth of it. Whatever else it
needs is not counted, and memory that others hold is taken for free: a run that is refused cannot fit.
"""

import math

import torch

from longmix.data_prep.errors import UserError

from ..models.sizes import ModelSize
from ..optimization.matrices import matrix_entries
from ..samples.collate import SECOND, TOKEN_IDS
from ..samples.host_memory import host_memory, processes_here
from ..settings import deepspeed_file
from ..settings.optimizers import OPTIMIZERS
from .building import is_in_shares
from .setup import Prepared

GIGABYTE = 2**30
MARGIN = 1.1


def refuse_beyond_memory(prepared: Prepared, processes: int, device: torch.device) -> None:
    """Raise UserError, with what takes most and what to change, if the run needs more memory than there is.

    Args:
        processes: all of the run, of which `processes_here` share this machine's memory.
    """
    parameters, sharing = prepared.size.parameters, processes_here() or 1
    states = _states_in_ranks(prepared, processes)
    batch = _micro_batch_bytes(prepared)
    built = 4 * parameters
    if is_in_shares(prepared, processes):
        built = 4 * (parameters // processes + math.prod(prepared.size.largest[1]))
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
        needs = [("GPU", states + batch, there), ("host", built * sharing, host_memory())]
    else:
        needs = [("this machine's", max(states + batch, built) * sharing, host_memory())]
    for name, needed, there in needs:
        if needed > MARGIN * there:
            raise UserError(
                f"the run needs at least {needed / GIGABYTE:,.0f} GiB of {name} memory, which has "
                f"{there / GIGABYTE:,.0f} GiB: {parameters:,} parameters; {_advice(prepared, states, batch)}; "
                "more processes at a higher ZeRO stage share the states out"
            )


def state_bytes(parameters: int, precision: str, stage: int | None, processes: int, kept: float) -> float:
    """Bytes of parameters, gradients and optimizer state in one process (Rajbhandari et al. 2020, section 3.1).

    The optimizer keeps `kept` numbers of each parameter on average, AdamW two moments. fp32: 4 parameter + 4 gradient
    + 8 moments; 16 bit: 2 + 2 + 12 (fp32 master and moments), with gradients in fp32 under bf16 2 + 4 + 12. Stage 1
    shares out the optimizer's part, stage 2 also the gradients, stage 3 also the parameters.
    """
    gradients = 4 if precision == "bf16" and stage else 2
    parts = (4, 4, 4 * kept) if stage is None or precision == "fp32" else (2, gradients, 4 + 4 * kept)
    shared_from = (3, 2, 1)
    return sum(
        size * parameters / (processes if stage is not None and stage >= first else 1)
        for size, first in zip(parts, shared_from, strict=True)
    )


def kept_per_parameter(prepared: Prepared) -> float:
    """Numbers that the optimizer of a run keeps of each parameter, on average."""
    return kept_of_optimizer(prepared.configuration.optim.name, prepared.size)


def kept_of_optimizer(name: str, size: ModelSize) -> float:
    """Numbers that an optimizer keeps of each parameter of a model, on average."""
    row = OPTIMIZERS[name]
    if row.state_per_matrix_entry is None:
        return row.state_per_parameter
    entries = matrix_entries(size.model)
    if size.layers:  # of which that model has a few
        entries *= size.layers / size.model.config.num_hidden_layers
    return row.state_per_parameter - (row.state_per_parameter - row.state_per_matrix_entry) * entries / size.parameters


def _states_in_ranks(prepared: Prepared, processes: int) -> float:
    """Bytes of states in the memory of each rank's device; what DeepSpeed's file offloads is not counted."""
    configuration = prepared.configuration
    kept = kept_per_parameter(prepared)
    stage = None
    if configuration.deepspeed is not None:
        values = deepspeed_file.read(configuration.deepspeed)
        stage = deepspeed_file.stage_of(values)
        if any(values.get("zero_optimization", {}).get(f"offload_{part}") for part in ("optimizer", "param")):
            return 0.0
    return state_bytes(prepared.size.parameters, prepared.precision, stage, processes, kept)


def _longest(prepared: Prepared) -> int:
    """Positions of the longest sample, as far as the manifests say: no sample has more than all have together."""
    manifests = [dataset.manifest for dataset in prepared.data.train]
    return max(min(one.sequence_length or 0, one.tokens or one.sequence_length or 0) for one in manifests)


def _micro_batch_bytes(prepared: Prepared) -> int:
    """Bytes of a micro-batch's ids, and of one vector for each of its positions and that vector's gradient."""
    columns = [name for name in prepared.data.manifest.columns if name.removesuffix(SECOND) == TOKEN_IDS]
    width = getattr(prepared.model_configuration, "hidden_size", None) or 0
    positions = prepared.configuration.batch.micro_batch * _longest(prepared)
    return positions * (8 * len(columns) + 2 * 2 * width)


def _advice(prepared: Prepared, states: float, batch: int) -> str:
    """What takes most of the memory, and which keys make it smaller."""
    size = prepared.size
    if batch > states:
        return (
            f"most of it for a micro-batch of {prepared.configuration.batch.micro_batch} samples of "
            f"{_longest(prepared):,} positions: lower batch.micro_batch, or prepare the data with shorter samples"
        )
    if 2 * size.layers * size.layer_parameters > size.parameters:
        return (
            f"most of them in {size.layers:,} layers of {size.layer_parameters:,} each: lower model.num_hidden_layers, "
            "or the width of a layer"
        )
    name, shape = size.largest
    return f"the largest is {name} {shape}: lower the field of model, or of the data's manifest, that it comes from"
