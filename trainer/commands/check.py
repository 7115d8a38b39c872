"""`longmix train --check`: what a run would be and take, without running it."""

import os
from pathlib import Path

import torch

from longmix.data_prep.errors import UserError

from ..checkpoints.wandb_log import require_wandb
from ..run.folder import refuse_changes, refuse_unusable
from ..run.memory import refuse_beyond_memory
from ..run.settling import settle
from ..run.setup import Prepared, prepare
from ..run.speed import device_name
from ..run.trial import NotTried, try_out
from ..settings.configuration import RunConfiguration
from ..settings.mistakes import say
from .expectation import Expectation
from .proposal import Command, propose
from .rounding import about_bytes, about_time

# Of the twenty seconds that a check may compute.
OWN_SECONDS, PROPOSED_SECONDS = 15.0, 5.0

# Programs for each core that compute at the same time, this one included, from which on times say little.
_BUSY = 1.5


def report(configuration: RunConfiguration, processes: int, own: Command) -> str:
    """Validate a run and describe it: its size, what it reads, and what it takes on this device; where that is absurd,
    warnings, and a command that is not.

    Args:
        own: the command that is checked.

    Raises:
        UserError: whatever training would refuse.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    configuration, chosen = settle(configuration, device)
    refuse_changes(Path(configuration.run.dir), configuration)
    refuse_unusable(Path(configuration.run.dir))
    if configuration.log.wandb is not None:
        require_wandb(configuration.log.wandb)
    prepared = prepare(configuration, processes, device)
    say(f"longmix: timing a micro-batch on {device_name(device.type)}, 20 seconds at most")
    trial, untimed = None, ""
    try:
        trial = try_out(prepared, device, OWN_SECONDS)
    except NotTried as reason:
        untimed = str(reason)
    expected = Expectation.of(prepared, processes, device, trial)
    warnings = expected.warnings()
    proposal = propose(own, expected, lambda *run: try_out(*run, PROPOSED_SECONDS)) if warnings else []
    return "\n".join(
        [
            *(f"{name:<11}{value}" for name, value in _figures(expected, untimed)),
            *([chosen] if chosen else []),
            *prepared.notes(prepared.size.model, processes),
            *_told_of_memory(prepared, processes, device),
            *(f"WARNING: {warning}" for warning in warnings),
            *proposal,
            "this run file is valid",
        ]
    )


def _figures(expected: Expectation, untimed: str) -> list[tuple[str, str]]:
    """(name, what it is) of each line; `untimed`: why nothing was timed."""
    prepared, processes, unit = expected.prepared, expected.processes, expected.unit
    configuration, size = prepared.configuration, prepared.size
    batch, optim, data = configuration.batch, configuration.optim, prepared.data
    engine = "Accelerate" if expected.stage is None else f"DeepSpeed, ZeRO stage {expected.stage}"
    measured = "measured" if expected.trial is not None else "roughly"
    free = expected.free_disk
    return [
        (
            "model",
            f"{prepared.model_configuration.model_type}, {size.parameters:,} parameters "
            f"({size.parameters - size.embeddings:,} outside embeddings)",
        ),
        (
            "data",
            f"{expected.samples:,} samples, {data.tokens_per_sample:,.0f} {unit} each on average, "
            f"{expected.data_tokens:,.0f} in all",
        ),
        (
            "batch",
            f"{batch.samples} samples = {processes} processes x {batch.samples // batch.micro_batch // processes} "
            f"micro-batches of {batch.micro_batch}",
        ),
        ("engine", f"{engine}, {prepared.precision}, on {expected.device.type}"),
        (
            "memory",
            f"{about_bytes(expected.states)} of parameters, gradients and optimizer in each process, and "
            f"{about_bytes(expected.activations)} of activations ({measured}); it has {about_bytes(expected.memory)}",
        ),
        (
            "disk",
            f"{about_bytes(expected.checkpoint)} for a checkpoint, of which {expected.checkpoints} stand there at most"
            + ("" if free is None else f"; {about_bytes(free)} are free"),
        ),
        (
            "steps",
            f"{optim.max_steps:,} = {expected.epochs:,.2f} epochs, {expected.tokens:,.0f} {unit}",
        ),
        ("duration", f"not estimated: {untimed}" if expected.trial is None else _duration(expected)),
        ("run folder", configuration.run.dir),
    ]


def _duration(expected: Expectation) -> str:
    trial, optim = expected.trial, expected.prepared.configuration.optim
    step, passes = expected.step_seconds, trial.forward + trial.backward
    if expected.done == optim.max_steps:
        return f"none: {expected.prepared.configuration.run.dir} has all {optim.max_steps:,} steps"
    shares = expected.crowding * trial.optimizer / (expected.processes if expected.stage else 1) / step
    forward = (1 - shares) * trial.forward / passes
    text = (
        f"{about_time(expected.seconds)} {_where(expected)}: {about_time(step)} for a step (forward {forward:.0%}, "
        f"backward {1 - shares - forward:.0%}, optimizer {shares:.0%})"
    )
    if expected.evaluation_seconds > 0.05 * expected.seconds:
        text += f", {about_time(expected.evaluation_seconds)} of it evaluations"
    if expected.done:
        text += f"; {optim.max_steps - expected.done:,} steps are left"
    if not trial.is_whole:
        longer = " (longer ones may take more than in proportion)" if trial.length < trial.usual_length else ""
        text += (
            f"; timed on {trial.samples} of {trial.micro_batch} samples, {trial.length:,} of {trial.usual_length:,} "
            f"{expected.unit} of each{longer}"
        )
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    if expected.device.type == "cpu" and load > _BUSY * cores:
        text += f"; the machine is busy now (load {load:.1f} on {cores} cores), so it may be quicker"
    return text


def _where(expected: Expectation) -> str:
    """For which device, and how many of them, an estimate is."""
    device, processes = expected.device, expected.processes
    name = device_name(device.type)
    if device.type == "cpu":
        sharing = expected.local_processes
        machines = f" on each of {-(-processes // sharing)} machines" if sharing < processes else ""
        shared = f", which {sharing} processes share{machines}; on GPUs it would be another" if processes > 1 else ""
        return f"on this CPU ({name}{shared})"
    here = torch.cuda.device_count()
    missing = f", of which this machine has {here}" if processes > here else ""
    return f"on {processes} x {name}{missing}, the exchange between them left out" if processes > 1 else f"on {name}"


def _told_of_memory(prepared: Prepared, processes: int, device: torch.device) -> list[str]:
    """A line if the run would be refused here; it may be meant for another machine."""
    try:
        refuse_beyond_memory(prepared, processes, device)
    except UserError as error:
        return [f"note: on this machine it would be refused: {error}"]
    return []
