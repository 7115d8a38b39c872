"""A recipe that suits this device and the data at hand, for a run that does not."""

import contextlib
import json
import math
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import torch

import longmix.modeling
from longmix.data_prep.errors import UserError

from ..models.field_check import FROM, field_mistakes
from ..run.folder import refuse_changes
from ..run.settling import settle
from ..run.setup import Prepared, prepare
from ..run.trial import NotTried, Trial
from ..settings import reading
from ..settings.configuration import RunConfiguration
from .expectation import Expectation
from .rounding import about_count, about_time

# Readings of the data after which a further one is worth a third of new text (Muennighoff et al. 2023, arXiv
# 2305.16264, for causal models: exp(-R / 15.4)), and those of the longest recipes of configs/tasks. Little data are
# read more often, for some steps at all.
EPOCHS, LABELLED_EPOCHS = 16, 50
FEWEST_STEPS = 500
# With fewer the optimizer has hardly begun: the batch is too large for the data, or the model for the device.
_TOO_FEW_STEPS = 100
LONGEST_SECONDS = 6 * 3600.0
# The least with which a model can be more than a memory of its data, and a margin.
_TOKENS_PER_PARAMETER = 1.2
# The batch of recipes/small_budget.yaml, 8 rows of 128.
_TOKENS_OF_A_STEP = 1024

TryOut = Callable[[Prepared, torch.device], Trial]


@dataclass(frozen=True)
class Command:
    """A `longmix train` line: run files, changes, and the option --processes (None: without it)."""

    paths: tuple[str, ...]
    changes: tuple[str, ...]
    processes: int | None = None

    def __str__(self) -> str:
        option = () if self.processes is None else ("--processes", str(self.processes))
        return shlex.join(["longmix", "train", *self.paths, *self.changes, *option])

    def changed(self, *changes: str) -> "Command":
        """The same with these changes in the place of others of their keys."""
        keys = {change.partition("=")[0] for change in changes}
        kept = (change for change in self.changes if change.partition("=")[0] not in keys)
        return replace(self, changes=(*kept, *changes))

    def load(self) -> RunConfiguration:
        return reading.load(list(self.paths), list(self.changes), field_mistakes)


def propose(own: Command, expected: Expectation, try_out: TryOut) -> list[str]:
    """Lines with a command that is sensible here, or one that says that there is none.

    Args:
        own: the command that was checked.
        expected: what it would take.
        try_out: times a candidate; see run/trial.py.
    """
    device, why_not = expected.device, "the run starts from a model of its own size"
    for command, processes in _candidates(own, expected):
        # A candidate that is refused, or absurd itself, is none.
        with contextlib.suppress(UserError):
            whole = expected
            if command.paths != own.paths:
                prepared = _prepared(command, processes, device)
                whole = Expectation.of(prepared, processes, device, _tried(prepared, device, try_out))
            command = _shortened(command, whole)
            final = Expectation.of(_prepared(command, processes, device), processes, device, whole.trial)
            faults = _faults(final, expected.prepared.configuration.optim.max_steps)
            if not faults:
                told = (
                    f"{about_count(final.epochs)} epochs, {about_count(final.prepared.size.parameters)} parameters, "
                    f"{about_time(final.seconds)}"
                )
                return [f"a recipe for these data on this machine ({told}):", f"  {command}"]
            if command.paths != own.paths:
                why_not = f"even the smallest has {faults[0]}"
    return [f"no shipped recipe suits these data on this machine: {why_not}"]


def _faults(final: Expectation, wanted: int) -> list[str]:
    """Why a candidate is none, in words; `wanted`: steps of the run that it is to take the place of."""
    if final.trial is None:
        return ["a duration that cannot be estimated here"]
    size, found = final.prepared.size.parameters, final.warnings()
    if final.learns_language_anew and size > final.tokens:
        read = about_count(final.tokens)
        found.append(f"{about_count(size)} parameters for the {read} tokens that there is time to read")
    steps = final.prepared.configuration.optim.max_steps
    if steps < min(_TOO_FEW_STEPS, wanted):
        found.append(f"data or time for {steps} steps alone")
    return found


def _candidates(own: Command, expected: Expectation) -> Iterator[tuple[Command, int]]:
    """Commands from the nearest to the run on, with their numbers of processes; how many steps is left open."""
    configuration = expected.prepared.configuration
    folder = _free_folder(configuration.run.dir)
    yield own.changed(*([f"run.dir={folder}"] if folder != configuration.run.dir else [])), expected.processes
    model_type = expected.prepared.model_configuration.model_type
    mixer = model_type if model_type in longmix.modeling.MODEL_TYPES else "transformer"
    if expected.is_language_model:
        yield _small_budget(configuration, expected, mixer, folder), 1
    elif FROM not in configuration.model:  # else another model would not be what it starts from
        changes = tuple(change for change in own.changes if not change.startswith("model."))
        smaller = Command((*own.paths, shipped(f"mixer/{mixer}.yaml")), changes, own.processes)
        yield smaller.changed(f"run.dir={folder}"), expected.processes


def _small_budget(configuration: RunConfiguration, expected: Expectation, mixer: str, folder: str) -> Command:
    data = configuration.data
    sources = data.train if isinstance(data.train, str) else json.dumps([vars(source) for source in data.train])
    changes = [f"data.train={sources}"]
    changes += [] if data.eval is None else [f"data.eval={data.eval}"]  # no best one is chosen: nothing to test
    if configuration.objective.name != "mlm":
        changes.append(f"objective.name={configuration.objective.name}")
    samples = max(1, round(_TOKENS_OF_A_STEP / expected.prepared.data.tokens_per_sample))
    changes += [f"batch.samples={samples}", f"batch.micro_batch={min(samples, 8)}"] if samples < 8 else []
    devices = torch.cuda.device_count()
    files = [shipped("recipes/small_budget.yaml")]
    if FROM in configuration.model:
        changes.append(f"model.{FROM}={configuration.model[FROM]}")
    else:
        files.append(shipped(f"model/{mixer}_tiny.yaml"))
    return Command(tuple(files), (*changes, f"run.dir={folder}"), 1 if devices > 1 else None)


def shipped(name: str) -> str:
    """The path of a file of configs/: as users of the repository write it, or where it is installed."""
    near = Path("configs") / name
    return str(near if near.is_file() else resources.files("longmix.configs") / name)


def _free_folder(folder: str) -> str:
    """The run folder, or a name beside it if it holds anything."""
    names = (folder, *(f"{folder.rstrip('/')}-{number}" for number in range(2, 100)))
    return next((name for name in names if not os.path.exists(name)), names[-1])


def _prepared(command: Command, processes: int, device: torch.device) -> Prepared:
    """The run of a command, checked as the user's own is."""
    configuration, _ = settle(command.load(), device)
    refuse_changes(Path(configuration.run.dir), configuration)
    return prepare(configuration, processes, device)


def _tried(prepared: Prepared, device: torch.device, try_out: TryOut) -> Trial | None:
    try:
        return try_out(prepared, device)
    except NotTried:
        return None


def _shortened(command: Command, whole: Expectation) -> Command:
    """The command with as many steps as its data and this device allow, and a warm-up that fits them."""
    optim = whole.prepared.configuration.optim
    steps = min(optim.max_steps, sensible_steps(whole))
    command = command.changed(f"optim.max_steps={steps}")
    if optim.warmup_share is None and optim.warmup_steps > steps // 2:
        command = command.changed("optim.warmup_share=0.06", "optim.warmup_steps=null")
    return command


def sensible_steps(whole: Expectation) -> int:
    """Steps for which the data are read often enough and not too often, and which end within six hours, rounded
    down."""
    configuration, data = whole.prepared.configuration, whole.prepared.data
    of_an_epoch = whole.samples / configuration.batch.samples
    least: float = FEWEST_STEPS
    if whole.learns_language_anew:
        tokens = configuration.batch.samples * data.tokens_per_sample
        least = max(least, _TOKENS_PER_PARAMETER * whole.prepared.size.parameters / tokens)
    steps = (EPOCHS if whole.is_language_model else LABELLED_EPOCHS) * of_an_epoch
    steps = max(steps, min(least, whole.most_epochs * of_an_epoch))
    if whole.trial is not None:
        seconds = whole.seconds / max(1, configuration.optim.max_steps - whole.done)
        steps = min(steps, LONGEST_SECONDS / seconds)
    steps = max(1, int(steps))
    digits = 10 ** max(0, math.floor(math.log10(steps)) - 1)
    return steps // digits * digits
