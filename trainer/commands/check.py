"""`longmix train --check`: what a run would be, without running it."""

from pathlib import Path

import torch

from longmix.data_prep.errors import UserError

from ..run.folder import refuse_changes, refuse_unusable
from ..run.memory import GIGABYTE, kept_per_parameter, refuse_beyond_memory, state_bytes
from ..run.settling import settle
from ..run.setup import Prepared, prepare
from ..samples.collate import TOKEN_IDS
from ..settings.configuration import RunConfiguration
from ..settings.deepspeed_file import read, stage_of


def report(configuration: RunConfiguration, processes: int) -> str:
    """Validate a run and describe it: parameters, memory of each process, steps, tokens.

    Raises:
        UserError: whatever training would refuse.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    configuration, chosen = settle(configuration, device)
    refuse_changes(Path(configuration.run.dir), configuration)
    refuse_unusable(Path(configuration.run.dir))
    prepared = prepare(configuration, processes, device)
    parameters, outside = prepared.size.parameters, prepared.size.parameters - prepared.size.embeddings
    batch, optim, data = configuration.batch, configuration.optim, prepared.data
    samples = sum(len(dataset) for dataset in data.train)
    tokens = optim.max_steps * batch.samples * data.tokens_per_sample
    unit = "tokens" if TOKEN_IDS in data.manifest.columns else "positions"
    stage = None if configuration.deepspeed is None else stage_of(read(configuration.deepspeed))
    engine = "Accelerate" if stage is None else f"DeepSpeed, ZeRO stage {stage}"
    states = state_bytes(parameters, prepared.precision, stage, processes, kept_per_parameter(prepared))
    activations = activation_bytes(
        prepared.model_configuration, batch.micro_batch, data.tokens_per_sample, configuration
    )
    lines = [
        (
            "model",
            f"{prepared.model_configuration.model_type}, {parameters:,} parameters ({outside:,} outside embeddings)",
        ),
        ("data", f"{samples:,} samples, {data.tokens_per_sample:,.0f} {unit} each on average"),
        (
            "batch",
            f"{batch.samples} samples = {processes} processes x {batch.samples // batch.micro_batch // processes} "
            f"micro-batches of {batch.micro_batch}",
        ),
        ("engine", f"{engine}, {prepared.precision}, on {device.type}"),
        (
            "memory",
            f"{states / GIGABYTE:.2f} GiB of parameters, gradients and optimizer in each process, "
            f"and roughly {activations / GIGABYTE:.2f} GiB of activations",
        ),
        (
            "steps",
            f"{optim.max_steps:,} = {optim.max_steps * batch.samples / samples:.2f} epochs, {tokens:,.0f} {unit}",
        ),
        ("run folder", configuration.run.dir),
    ]
    text = "\n".join(f"{name:<11}{value}" for name, value in lines)
    return "\n".join(
        [
            text,
            *([chosen] if chosen else []),
            *prepared.notes(prepared.size.model, processes),
            *_told_of_memory(prepared, processes, device),
            "this run file is valid",
        ]
    )


def _told_of_memory(prepared: Prepared, processes: int, device: torch.device) -> list[str]:
    """A line if the run would be refused here; it may be meant for another machine."""
    try:
        refuse_beyond_memory(prepared, processes, device)
    except UserError as error:
        return [f"note: on this machine it would be refused: {error}"]
    return []


def activation_bytes(config, micro_batch: int, tokens: float, configuration: RunConfiguration) -> float:
    """A rough bound on activations: per token and layer 16 hidden and 3 intermediate vectors (one with gradient
    checkpointing), and the logits and their gradient at the labelled positions."""
    width = getattr(config, "hidden_size", 0)
    inner = getattr(config, "intermediate_size", 4 * width)
    layers = getattr(config, "num_hidden_layers", 0)
    vectors = width if configuration.run.gradient_checkpointing else 16 * width + 3 * inner
    labelled = {"mlm": configuration.objective.mask_probability, "clm": 1}.get(configuration.objective.name, 0)
    logits = 2 * labelled * getattr(config, "vocab_size", 0)
    return 4 * micro_batch * tokens * (layers * vectors + logits)
