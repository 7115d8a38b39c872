"""The sections of a run file, each with its keys, their defaults, and the checks of its own values.

`mistakes` of a section yields findings: the key within the section, the text that follows it, and further keys that the
text compares. configuration.py adds the checks across sections and leaves out what follows from a key that is mistaken
itself.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from .folder_names import folder_mistakes
from .objectives import OBJECTIVES
from .optimizers import OPTIMIZERS

# (key, what is wrong with it, further keys that must be sound for that to mean anything)
Finding = tuple[str, ...]

# About two years: clocks and time-outs hold no more than some hundred.
LONGEST_HANG_MINUTES = 1e6
# More than any machine has cores.
MOST_THREADS = 4096
# Of optim, where its keys leave them open; a run of fewer steps than those warms up for a tenth of its own. A fifth of
# the steps suffices for the decay (Hägele et al. 2024, section 3).
WARMUP_STEPS = 100
DECAY_SHARE = 0.2
# Share of the tokens that an evaluation of masked language modelling hides, whatever training hides (as Devlin et al.
# 2019, section 3.1, train): so that models trained at other shares compare.
EVALUATION_MASK_PROBABILITY = 0.15
# Versions of the order of the samples (trainer/samples/order.py): a run keeps the one that it was begun with, and those
# that did not note it have the earlier one.
EARLIER_ORDER, ORDER = 1, 2
# A name that Weights & Biases takes for a project.
_PROJECT = re.compile(r"[^/\\#?%:\x00-\x1f]{1,128}")

# Checks that several sections share: a key that is null has no value that could be wrong.


def _at_least(section: Any, **least: int) -> Iterator[Finding]:
    """Whole numbers by key, each with the least value that it may have."""
    for key, lowest in least.items():
        value = getattr(section, key)
        if value is not None and value < lowest:
            yield key, f"is {value}, but must be at least {lowest}"
        elif value is not None and value >= 2**63:
            yield key, f"is {value}, but must be below 2^63"


def _positive(section: Any, *keys: str, text: str = "must be a positive number") -> Iterator[Finding]:
    for key in keys:
        value = getattr(section, key)
        if value is not None and not (value > 0 and math.isfinite(value)):
            yield key, f"is {value}, but {text}"


# The run itself, and its data.


@dataclass
class RunSection:
    dir: str
    seed: int = 0
    gradient_checkpointing: bool | int = False
    compile: Literal["layer"] | bool = False
    deterministic: bool = False
    threads: int | None = None
    max_hours: float | None = None
    stop_at_step: int | None = None
    hang_minutes: float = 30.0
    check_every: int = 1000
    allow_changes: list[str] = field(default_factory=list)

    def mistakes(self) -> Iterator[Finding]:
        yield from _at_least(self, seed=0, stop_at_step=1, check_every=1, threads=1)
        if self.threads is not None and self.threads > MOST_THREADS:
            yield "threads", f"is {self.threads}, but must be at most {MOST_THREADS}"
        if self.gradient_checkpointing is not False and self.gradient_checkpointing < 1:
            yield "gradient_checkpointing", f"is {self.gradient_checkpointing}, but must be true, false or at least 1"
        if self.deterministic and self.compile:
            text = "is true, but torch.compile chooses kernels by the clock: set run.compile to false"
            yield "deterministic", text, "run.compile"
        for text in folder_mistakes(self.dir):
            yield "dir", text
        yield from _positive(self, "max_hours", "hang_minutes")
        if LONGEST_HANG_MINUTES < self.hang_minutes < math.inf:
            yield "hang_minutes", f"is {self.hang_minutes}, but must be at most 10^6"


@dataclass
class DataSource:
    path: str
    weight: float = 1.0

    def mistakes(self) -> Iterator[Finding]:
        return _positive(self, "weight", text="must be positive")


@dataclass
class CacheSection:
    dir: str | None = None
    max_bytes: int | None = None

    def mistakes(self) -> Iterator[Finding]:
        yield from _at_least(self, max_bytes=1)
        if self.dir == "":
            yield "dir", "is empty; name a folder on this machine's own disk, or null"


@dataclass
class DataSection:
    train: str | list[DataSource]
    eval: str | None = None
    test: str | None = None
    partitions: Literal["auto"] | int = "auto"
    window: int | None = None
    order: int | None = None
    cache: CacheSection = field(default_factory=CacheSection)

    def sources(self) -> list[DataSource]:
        return [DataSource(self.train)] if isinstance(self.train, str) else self.train

    def paths(self) -> dict[str, list[str]]:
        """The data sets that each key of the run file names."""
        named = {"data.eval": self.eval, "data.test": self.test}
        return {
            "data.train": [source.path for source in self.sources()],
            **{key: [] if path is None else [path] for key, path in named.items()},
        }

    def mistakes(self) -> Iterator[Finding]:
        if self.partitions != "auto" and not 1 <= self.partitions < 2**31:
            yield "partitions", f"is {self.partitions}, but must be auto or 1 to {2**31 - 1}"
        if self.window is not None and not 1 <= self.window < 2**31:
            yield "window", f"is {self.window}, but must be null or 1 to {2**31 - 1}"
        if self.order not in (None, EARLIER_ORDER, ORDER):
            yield "order", f"is {self.order}, but must be null, {EARLIER_ORDER} or {ORDER}"
        if not self.sources():
            yield "train", "is an empty list; name at least one data set"


# What is learnt, and how: names stand in the tables of objectives.py and optimizers.py.


@dataclass
class ObjectiveSection:
    name: Literal[*OBJECTIVES] = "mlm"
    mask_probability: float = 0.15
    whole_word: bool = False
    input_length: int | None = None
    horizon: int | None = None

    def mistakes(self) -> Iterator[Finding]:
        if not 0 < self.mask_probability < 1:
            yield "mask_probability", f"is {self.mask_probability}, but must lie between 0 and 1"
        for name, row in OBJECTIVES.items():
            for key, least in row.time_steps.items():
                value = getattr(self, key)
                if name != self.name:
                    if value is not None:
                        text = f"is {value}, but is for objective {name}, and this is {self.name}: leave it out"
                        yield key, text, "objective.name"
                elif value is None:
                    yield key, f"is missing: objective {name} takes a number of time steps, e.g. 96"
                elif not least <= value < 2**31:
                    yield key, f"is {value}, but must be at least {least}, and below 2^31"


@dataclass
class BatchSection:
    samples: int = 256
    micro_batch: int = 16
    group_by_length: bool = False

    def mistakes(self) -> Iterator[Finding]:
        yield from _at_least(self, samples=1, micro_batch=1)
        if self.samples >= 1 and self.micro_batch >= 1 and self.samples % self.micro_batch:
            nearest = max(1, round(self.samples / self.micro_batch)) * self.micro_batch
            text = f"is {self.samples}, which batch.micro_batch {self.micro_batch} does not divide; nearest: {nearest}"
            fits = max(size for size in range(1, min(self.micro_batch, self.samples) + 1) if self.samples % size == 0)
            text += f", or batch.micro_batch={fits}"
            yield "samples", text, "batch.micro_batch"


@dataclass
class OptimSection:
    name: Literal[*OPTIMIZERS] = "adamw"
    lr: float = 1e-3
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])
    eps: float = 1e-6
    momentum: float = 0.95
    update_rms: float = 0.2
    weight_decay: float = 0.01
    no_decay: list[str] = field(default_factory=lambda: ["bias", "norm"])
    lr_factors: dict[str, float] = field(default_factory=dict)
    schedule: Literal["linear", "cosine", "constant", "inverse_sqrt", "wsd"] = "linear"
    decay_share: float | None = None
    warmup_steps: int | None = None
    warmup_share: float | None = None
    max_steps: int = 1000
    grad_clip: float | None = 1.0
    skip_spikes: bool = False

    def __post_init__(self) -> None:
        # What the other keys leave open, resolved here, so that a run keeps what it was begun with.
        if self.decay_share is None and self.schedule == "wsd":
            self.decay_share = DECAY_SHARE
        if self.warmup_steps is None and self.warmup_share is None:
            self.warmup_steps = WARMUP_STEPS if self.max_steps >= WARMUP_STEPS else max(0, self.max_steps // 10)

    @property
    def steps_of_warmup(self) -> int:
        """Steps over which the rate rises; with `warmup_share` never more than `max_steps`."""
        return self.warmup_steps if self.warmup_share is None else round(self.warmup_share * self.max_steps)

    @property
    def steps_before_fall(self) -> int:
        """The step after which a rate that falls to 0 at `max_steps` begins to fall."""
        if self.schedule != "wsd":
            return self.steps_of_warmup
        return max(self.steps_of_warmup, self.max_steps - round(self.decay_share * self.max_steps))

    def mistakes(self) -> Iterator[Finding]:
        yield from _at_least(self, warmup_steps=0, max_steps=1)
        yield from _positive(self, "lr", "eps")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            yield "weight_decay", f"is {self.weight_decay}, but must not be negative"
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            yield "betas", f"is {self.betas}, but takes two numbers in [0, 1)"
        if not 0 <= self.momentum < 1:
            yield "momentum", f"is {self.momentum}, but must lie in [0, 1)"
        yield from _positive(self, "update_rms")
        for key in ("momentum", "update_rms"):
            value, default = getattr(self, key), getattr(OptimSection, key)
            if value != default and key not in OPTIMIZERS[self.name].arguments:
                takers = " or ".join(name for name, row in OPTIMIZERS.items() if key in row.arguments)
                text = f"is {value}, but is for {takers}, and optim.name is {self.name}: leave it out"
                yield key, f"{text}, or undo it with optim.{key}={default}", "optim.name"
        yield from _positive(self, "grad_clip", text="must be positive, or null for no clipping")
        for word, factor in self.lr_factors.items():
            if not isinstance(word, str) or not word:
                yield "lr_factors", f"has the key {word!r}, but takes parts of parameter names, such as 'layers.0'"
            elif not (factor > 0 and math.isfinite(factor)):
                yield f"lr_factors.{word}", f"is {factor}, but must be positive: a multiple of optim.lr"
        yield from self._schedule_mistakes()

    def _schedule_mistakes(self) -> Iterator[Finding]:
        if self.warmup_steps is not None and self.warmup_steps > self.max_steps:
            text = f"is {self.warmup_steps}, more than optim.max_steps {self.max_steps}; optim.warmup_share"
            yield "warmup_steps", f"{text}, a share from 0 to 1, fits any", "optim.max_steps", "optim.warmup_share"
        if self.warmup_share is not None and not 0 <= self.warmup_share <= 1:
            yield "warmup_share", f"is {self.warmup_share}, but must lie between 0 and 1: a share of optim.max_steps"
        elif self.warmup_share is not None and self.warmup_steps is not None:
            text = f"is {self.warmup_share}, and optim.warmup_steps is {self.warmup_steps}: set one of the two to null"
            yield "warmup_share", text, "optim.warmup_steps"
        if self.decay_share is not None and self.schedule != "wsd":
            text = f"is {self.decay_share}, but is for optim.schedule wsd, and this is {self.schedule}: set it to null"
            yield "decay_share", text, "optim.schedule"
        elif self.decay_share is not None and not 0 < self.decay_share <= 1:
            yield "decay_share", f"is {self.decay_share}, but must lie above 0 and at most at 1"
        elif self.decay_share is not None and (self.warmup_share or 0) + self.decay_share > 1:
            text = f"is {self.decay_share}, but beside optim.warmup_share {self.warmup_share} no more than "
            yield "decay_share", f"{text}{1 - self.warmup_share:g} of the steps are left", "optim.warmup_share"


# What is kept and shown of a run.


@dataclass
class EvalSection:
    every_steps: int = 200
    samples: int | None = 1000
    mask_probability: float | None = None

    def mistakes(self) -> Iterator[Finding]:
        yield from _at_least(self, every_steps=1, samples=1)
        if self.mask_probability is not None and not 0 < self.mask_probability < 1:
            yield "mask_probability", f"is {self.mask_probability}, but must lie between 0 and 1"


@dataclass
class BestSection:
    metric: str
    mode: Literal["min", "max"]


@dataclass
class CheckpointSection:
    every_steps: int = 200
    keep: int = 3
    keep_every: int | None = None
    best: BestSection | None = None
    asynchronous: Literal["auto"] | bool = "auto"
    max_failures: int = 3

    def mistakes(self) -> Iterator[Finding]:
        return _at_least(self, every_steps=1, keep=1, keep_every=1, max_failures=0)


@dataclass
class LogSection:
    every_steps: int = 10
    tensorboard: bool = True
    wandb: str | None = None

    def mistakes(self) -> Iterator[Finding]:
        yield from _at_least(self, every_steps=1)
        if self.wandb is not None and _PROJECT.fullmatch(self.wandb) is None:
            yield "wandb", f"is {self.wandb!r}, but takes a project: 1 to 128 characters, none of / \\ # ? % :"
