"""What a run would take on this device, in numbers, and where that is absurd."""

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from ..checkpoints import folders
from ..models.field_check import FROM
from ..processes.cards import CARDS
from ..run.determinism import threads_of
from ..run.memory import kept_per_parameter, state_bytes
from ..run.setup import Prepared
from ..run.trial import Trial
from ..samples.collate import TOKEN_IDS
from ..samples.host_memory import host_memory, processes_here
from ..settings.deepspeed_file import read, stage_of
from ..settings.objectives import OBJECTIVES
from .planning import costs_of_run
from .rounding import about_bytes, about_count, about_time

# Readings of the data after which further ones teach a language model nothing (Muennighoff et al. 2023, arXiv
# 2305.16264, figure 1), and those by which classifiers of images are trained (DeiT: Touvron et al. 2021).
MOST_EPOCHS, MOST_LABELLED_EPOCHS = 40, 300
LONGEST_SECONDS = 3 * 86400.0


@dataclass(frozen=True)
class Expectation:
    """A run on this device.

    Attributes:
        prepared: the run.
        processes: of the run, all over its machines.
        device: of one process.
        trial: what was timed of it; None: nothing was.
        done: steps that its folder has already.
    """

    prepared: Prepared
    processes: int
    device: torch.device
    trial: Trial | None
    done: int

    @classmethod
    def of(cls, prepared: Prepared, processes: int, device: torch.device, trial: Trial | None) -> "Expectation":
        done = max(folders.steps(Path(prepared.configuration.run.dir)), default=0)
        return cls(prepared, processes, device, trial, min(done, prepared.configuration.optim.max_steps))

    # What the run reads.

    @property
    def samples(self) -> int:
        """Of the training data."""
        return sum(len(dataset) for dataset in self.prepared.data.train)

    @property
    def unit(self) -> str:
        return "tokens" if TOKEN_IDS in self.prepared.data.manifest.columns else "positions"

    @property
    def data_tokens(self) -> float:
        """Of the training data."""
        return self.samples * self.prepared.data.tokens_per_sample

    @property
    def epochs(self) -> float:
        configuration = self.prepared.configuration
        return configuration.optim.max_steps * configuration.batch.samples / self.samples

    @property
    def tokens(self) -> float:
        """That the whole run reads."""
        return self.epochs * self.data_tokens

    @property
    def learns_language_anew(self) -> bool:
        """Whether all that the model will know of language is in these data."""
        return self.is_language_model and FROM not in self.prepared.configuration.model

    @property
    def most_epochs(self) -> int:
        return MOST_EPOCHS if self.is_language_model else MOST_LABELLED_EPOCHS

    @property
    def is_language_model(self) -> bool:
        return OBJECTIVES[self.prepared.configuration.objective.name].is_language_model

    # What it holds in memory and on disk.

    @property
    def stage(self) -> int | None:
        """Of ZeRO; None: Accelerate."""
        name = self.prepared.configuration.deepspeed
        return None if name is None else stage_of(read(name))

    @property
    def states(self) -> float:
        """Bytes of parameters, gradients and optimizer in each process."""
        prepared = self.prepared
        kept = kept_per_parameter(prepared)
        return state_bytes(prepared.size.parameters, prepared.precision, self.stage, self.processes, kept)

    @property
    def activations(self) -> float:
        """Bytes that a micro-batch keeps for its backward pass."""
        return self.trial.activations if self.trial is not None else activation_bytes(self.prepared)

    @property
    def memory(self) -> float:
        """Bytes that each process may have: of its GPU, or its share of this machine."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_properties(self.device).total_memory
        return host_memory() / self.local_processes

    @property
    def local_processes(self) -> int:
        """Processes of the run that share this machine: as its launcher says, or all of them."""
        return min(self.processes, processes_here() or self.processes)

    @property
    def checkpoint(self) -> float:
        """Bytes of one: the engine's weights and optimizer, and beside them the model in fp32."""
        weights = 4 if self.stage is None or self.prepared.precision == "fp32" else 2
        master = 0 if self.stage is None else 4
        each = weights + master + 4 * kept_per_parameter(self.prepared) + 4
        return each * self.prepared.size.parameters

    @property
    def checkpoints(self) -> int:
        """How many stand on the disk at most, the one that is being written included."""
        section, steps = self.prepared.configuration.checkpoint, self.prepared.configuration.optim.max_steps
        made = math.ceil(steps / section.every_steps)
        extra = (section.best is not None) + (steps // section.keep_every if section.keep_every else 0)
        return min(made, section.keep + extra + 1)

    @property
    def free_disk(self) -> int | None:
        """Bytes that are free where the run folder would be; None: it cannot be said."""
        folder = Path(self.prepared.configuration.run.dir).absolute()
        try:
            return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        except (OSError, StopIteration):
            return None

    # How long it takes. Processes on CPUs share the cores of this machine, those on GPUs have one each.

    @property
    def crowding(self) -> float:
        """How many times slower a process is than alone, because others on this machine need its cores."""
        if self.device.type == "cuda":
            return 1.0
        threads = self.local_processes * threads_of(self.prepared.configuration.run)
        return max(1.0, threads / len(os.sched_getaffinity(0)))

    @property
    def step_seconds(self) -> float | None:
        if self.trial is None:
            return None
        batch = self.prepared.configuration.batch
        micro_batches = batch.samples // batch.micro_batch // self.processes
        passes = micro_batches * (self.trial.forward + self.trial.backward)
        shared = self.processes if self.stage else 1
        return self.crowding * (passes + self.trial.optimizer / shared)

    @property
    def evaluation_seconds(self) -> float | None:
        """Of all evaluations that are left; a forward pass for each sample."""
        data, configuration = self.prepared.data, self.prepared.configuration
        if self.trial is None or data.evaluation is None:
            return None if self.trial is None else 0.0
        samples = min(len(data.evaluation), configuration.eval.samples or len(data.evaluation))
        every = configuration.eval.every_steps
        times = math.ceil(configuration.optim.max_steps / every) - self.done // every + (self.done == 0)
        each = self.trial.forward / configuration.batch.micro_batch / self.processes
        return self.crowding * times * samples * each

    @property
    def seconds(self) -> float | None:
        """Of the steps and evaluations that are left; None: nothing was timed."""
        if self.trial is None:
            return None
        return (self.prepared.configuration.optim.max_steps - self.done) * self.step_seconds + self.evaluation_seconds

    # What is absurd.

    def warnings(self) -> list[str]:
        """Lines, one for each; none where the run is sensible here."""
        found = []
        size = self.prepared.size
        if self.epochs > self.most_epochs:
            why = (
                "repeats beyond that teach a language model next to nothing"
                if self.is_language_model
                else "more than is usual for labelled data"
            )
            found.append(
                f"{self.epochs:,.0f} epochs: all of the data is read so often, and {self.most_epochs} are many ({why})"
            )
        most = self.data_tokens * self.most_epochs
        if self.learns_language_anew and size.parameters > most:
            found.append(
                f"{about_count(size.parameters)} parameters for {about_count(most)} tokens, all that {MOST_EPOCHS} "
                "epochs of the data hold: language models are trained on 20 and more for each parameter"
            )
        if self.seconds is not None and self.seconds > LONGEST_SECONDS:
            found.append(f"{about_time(self.seconds)} on this device")
        if self.states + self.activations > self.memory:
            found.append(
                f"{about_bytes(self.states + self.activations)} of memory for each process, which has "
                f"{about_bytes(self.memory)}"
            )
        free = self.free_disk
        if free is not None and self.checkpoints * self.checkpoint > free:
            found.append(
                f"{about_bytes(self.checkpoints * self.checkpoint)} of checkpoints, and {about_bytes(free)} are free"
            )
        return found


def activation_bytes(prepared: Prepared) -> float:
    """What a micro-batch keeps for its backward pass, counted as GPUs would keep it."""
    config, configuration = prepared.model_configuration, prepared.configuration
    length, samples = max(1, round(prepared.data.tokens_per_sample)), configuration.batch.micro_batch
    try:
        costs = costs_of_run(
            configuration,
            config,
            prepared.objective,
            prepared.data.manifest,
            prepared.precision,
            CARDS[0],
            length,
            samples,
        )
    except Exception:  # a model of others may take other inputs, or look at their values
        return _rough_activation_bytes(prepared)
    return costs.kept(samples, int(configuration.run.gradient_checkpointing))


def _rough_activation_bytes(prepared: Prepared) -> float:
    """A rough bound: per token and layer 16 hidden and 3 intermediate vectors (one with gradient checkpointing), and
    the logits and their gradient at the labelled positions."""
    config, configuration = prepared.model_configuration, prepared.configuration
    width = getattr(config, "hidden_size", 0)
    inner = getattr(config, "intermediate_size", 4 * width)
    layers = getattr(config, "num_hidden_layers", 0)
    vectors = width if configuration.run.gradient_checkpointing else 16 * width + 3 * inner
    labelled = {"mlm": configuration.objective.mask_probability, "clm": 1}.get(configuration.objective.name, 0)
    logits = 2 * labelled * getattr(config, "vocab_size", 0)
    return 4 * configuration.batch.micro_batch * prepared.data.tokens_per_sample * (layers * vectors + logits)
