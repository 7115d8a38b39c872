"""`longmix train --check`: what a run would be, without running it."""

from pathlib import Path

import torch

from ..models.build import build_on_meta, count_parameters
from ..run.folder import refuse_changes, refuse_unusable
from ..run.setup import prepare
from ..samples.collate import TOKEN_IDS
from ..settings.configuration import RunConfiguration
from ..settings.deepspeed_file import read, stage_of
from ..settings.optimizers import OPTIMIZERS

GIGABYTE = 2**30


def report(configuration: RunConfiguration, processes: int) -> str:
    """Validate a run and describe it: parameters, memory of each process, steps, tokens.

    Raises:
        UserError: whatever training would refuse.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    refuse_changes(Path(configuration.run.dir), configuration)
    refuse_unusable(Path(configuration.run.dir))
    prepared = prepare(configuration, processes, device)
    model = build_on_meta(prepared.model_configuration, prepared.objective.auto_class)
    parameters, outside = count_parameters(model)
    batch, optim, data = configuration.batch, configuration.optim, prepared.data
    samples = sum(len(dataset) for dataset in data.train)
    tokens = optim.max_steps * batch.samples * data.tokens_per_sample
    unit = "tokens" if TOKEN_IDS in data.manifest.columns else "positions"
    stage = None if configuration.deepspeed is None else stage_of(read(configuration.deepspeed))
    engine = "Accelerate" if stage is None else f"DeepSpeed, ZeRO stage {stage}"
    kept = OPTIMIZERS[optim.name].state_per_parameter
    states = state_bytes(parameters, prepared.precision, stage, processes, kept)
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
    return "\n".join([text, *prepared.notes(model, processes), "this run file is valid"])


def state_bytes(parameters: int, precision: str, stage: int | None, processes: int, kept: int) -> float:
    """Bytes of parameters, gradients and optimizer state in one process (Rajbhandari et al. 2020, section 3.1).

    The optimizer keeps `kept` numbers of each parameter, AdamW two moments. fp32: 4 parameter + 4 gradient + 8 moments;
    16 bit: 2 + 2 + 12 (fp32 master and moments). Stage 1 shares out the optimizer's part, stage 2 also the gradients,
    stage 3 also the parameters.
    """
    parts = (4, 4, 4 * kept) if stage is None or precision == "fp32" else (2, 2, 4 + 4 * kept)
    shared_from = (3, 2, 1)
    return sum(
        size * parameters / (processes if stage is not None and stage >= first else 1)
        for size, first in zip(parts, shared_from, strict=True)
    )


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
