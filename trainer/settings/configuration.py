"""The run file as typed sections, every mistake in it reported at once.

`load` reads and checks; nothing here touches data, a device or a model.
"""

import math
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import yaml

from longmix.data_prep.errors import UserError

from .folder_names import folder_mistakes
from .provenance import holds_password
from .run_file import Settings, read_settings
from .typed_maps import Mistake, build, nearest

# The figures of an evaluation by objective: what checkpoint.best.metric can name.
FIGURES = {
    "mlm": ("loss", "perplexity", "masked_accuracy"),
    "clm": ("loss", "token_perplexity", "accuracy"),
    "classification": ("loss", "matthews", "accuracy", "f1", "roc_auc"),
    "regression": ("loss", "pearson", "spearman", "accuracy"),
    "pair_classification": ("loss", "matthews", "accuracy", "f1", "roc_auc"),
    "token_classification": ("loss", "accuracy"),
    "forecasting": ("loss", "mse", "mae"),
}
# Objectives whose labels are the tokens themselves: columns of labels are left alone.
LANGUAGE_MODELS = ("mlm", "clm")
# Fields that every configuration of transformers has, but that something else decides.
_DECIDED_ELSEWHERE = {
    "architectures": "objective.name decides it",
    "dtype": "precision decides it",
    "horizon": "objective.horizon decides it",
    "input_length": "objective.input_length decides it",
    "return_dict": "longmix reads outputs by their names",
    "transformers_version": "it is noted when a model is saved",
}
# About two years: clocks and time-outs hold no more than some hundred.
LONGEST_HANG_MINUTES = 1e6
SHIPPED_DEEPSPEED = ("zero0", "zero1", "zero2", "zero3")


@dataclass
class RunSection:
    dir: str
    seed: int = 0
    gradient_checkpointing: bool = False
    compile: bool = False
    max_hours: float | None = None
    stop_at_step: int | None = None
    hang_minutes: float = 30.0
    check_every: int = 1000
    allow_changes: list[str] = field(default_factory=list)


@dataclass
class DataSource:
    path: str
    weight: float = 1.0


@dataclass
class CacheSection:
    dir: str | None = None
    max_bytes: int | None = None


@dataclass
class DataSection:
    train: str | list[DataSource]
    eval: str | None = None
    test: str | None = None
    partitions: Literal["auto"] | int = "auto"
    cache: CacheSection = field(default_factory=CacheSection)

    def sources(self) -> list[DataSource]:
        return [DataSource(self.train)] if isinstance(self.train, str) else self.train


@dataclass
class ObjectiveSection:
    name: Literal[
        "mlm",
        "clm",
        "classification",
        "regression",
        "pair_classification",
        "token_classification",
        "forecasting",
    ] = "mlm"
    mask_probability: float = 0.15
    whole_word: bool = False
    input_length: int | None = None
    horizon: int | None = None


@dataclass
class BatchSection:
    samples: int = 256
    micro_batch: int = 16


@dataclass
class OptimSection:
    name: Literal["adamw"] = "adamw"
    lr: float = 1e-3
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])
    eps: float = 1e-6
    weight_decay: float = 0.01
    no_decay: list[str] = field(default_factory=lambda: ["bias", "norm"])
    schedule: Literal["linear", "cosine", "constant", "inverse_sqrt"] = "linear"
    warmup_steps: int = 100
    max_steps: int = 1000
    grad_clip: float | None = 1.0
    skip_spikes: bool = False


@dataclass
class EvalSection:
    every_steps: int = 200
    samples: int | None = 1000


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
    asynchronous: bool = False
    max_failures: int = 3


@dataclass
class LogSection:
    every_steps: int = 10
    tensorboard: bool = True


@dataclass
class RunConfiguration:
    """One run, complete. `model` stays a map: its keys are those of the model's own configuration class."""

    run: RunSection
    model: dict[str, Any]
    data: DataSection
    objective: ObjectiveSection = field(default_factory=ObjectiveSection)
    batch: BatchSection = field(default_factory=BatchSection)
    optim: OptimSection = field(default_factory=OptimSection)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    deepspeed: str | None = "zero1"
    eval: EvalSection = field(default_factory=EvalSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    log: LogSection = field(default_factory=LogSection)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


# Written into a run folder's config.yaml for people and ignored when that file is read again.
PROVENANCE_KEY = "provenance"


def load(paths: list[str], overrides: list[str], model_later: bool = False) -> RunConfiguration:
    """Read run files and `dotted.key=value` changes into a checked configuration.

    Args:
        model_later: leave the keys of `model` unchecked if nothing else is wrong: a launcher, whose workers check them
            anyway, starts in a fraction of the time without transformers.

    Raises:
        UserError: all mistakes at once, each with its file, its key and the nearest valid name.
    """
    settings = read_settings(paths, overrides)
    settings.values.pop(PROVENANCE_KEY, None)
    return from_settings(settings, model_later)


def from_settings(settings: Settings, model_later: bool = False) -> RunConfiguration:
    """Build and check; see `load`."""
    mistakes: list[Mistake] = []
    configuration = build(RunConfiguration, settings.values, "", mistakes)
    mistakes += _out_of_range(configuration, {key for key, _ in mistakes})
    if mistakes or not model_later:
        from ..models.build import field_mistakes

        mistakes += field_mistakes(configuration.model)
    if mistakes:
        raise UserError("; ".join(_located(key, text, settings) for key, text in mistakes))
    return configuration


def from_dict(values: dict[str, Any], origin: str) -> RunConfiguration:
    """Build a configuration from a map made by a program (fine-tuning); same checks as for a file."""
    settings = Settings(last=origin)
    settings.merge(values, origin)
    return from_settings(settings)


def dump(configuration: RunConfiguration, provenance: dict[str, Any]) -> str:
    """The resolved configuration as YAML that `load` accepts."""
    return yaml.safe_dump(
        {**configuration.to_dict(), PROVENANCE_KEY: provenance}, sort_keys=False, allow_unicode=True, width=120
    )


def _located(key: str, text: str, settings: Settings) -> str:
    parts = re.sub(r"\[\d+\]", "", key).split(".")
    names = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    where = next((settings.origin[name] for name in names if name in settings.origin), settings.last)
    return f"{where}: {key} {text}"


def _out_of_range(configuration: RunConfiguration, noted: set[str]) -> list[Mistake]:
    """(key, what is wrong) for every value outside its range and every contradiction between keys.

    Keys that are `noted` as mistaken hold a stand-in: nothing is said about them.
    """
    found: list[Mistake] = []

    def check(holds: bool, key: str, text: str, *others: str) -> None:
        if not holds and noted.isdisjoint((key, *others)):
            found.append((key, text))

    batch, optim, data, objective, model = (
        configuration.batch,
        configuration.optim,
        configuration.data,
        configuration.objective,
        configuration.model,
    )
    for key, value, lowest in (
        ("run.seed", configuration.run.seed, 0),
        ("run.stop_at_step", configuration.run.stop_at_step, 1),
        ("run.check_every", configuration.run.check_every, 1),
        ("batch.samples", batch.samples, 1),
        ("batch.micro_batch", batch.micro_batch, 1),
        ("optim.warmup_steps", optim.warmup_steps, 0),
        ("optim.max_steps", optim.max_steps, 1),
        ("data.cache.max_bytes", data.cache.max_bytes, 1),
        ("eval.every_steps", configuration.eval.every_steps, 1),
        ("eval.samples", configuration.eval.samples, 1),
        ("checkpoint.every_steps", configuration.checkpoint.every_steps, 1),
        ("checkpoint.keep", configuration.checkpoint.keep, 1),
        ("checkpoint.keep_every", configuration.checkpoint.keep_every, 1),
        ("checkpoint.max_failures", configuration.checkpoint.max_failures, 0),
        ("log.every_steps", configuration.log.every_steps, 1),
    ):
        check(value is None or value >= lowest, key, f"is {value}, but must be at least {lowest}")
        check(value is None or value < 2**63, key, f"is {value}, but must be below 2^63")
    check(
        batch.samples < 1 or batch.micro_batch < 1 or batch.samples % batch.micro_batch == 0,
        "batch.samples",
        f"is {batch.samples}, which batch.micro_batch {batch.micro_batch} does not divide; "
        f"nearest: {max(1, round(batch.samples / max(1, batch.micro_batch))) * batch.micro_batch}",
        "batch.micro_batch",
    )
    for text in folder_mistakes(configuration.run.dir):
        check(False, "run.dir", text)
    for key, hours in (
        ("run.max_hours", configuration.run.max_hours),
        ("run.hang_minutes", configuration.run.hang_minutes),
    ):
        check(hours is None or _positive(hours), key, f"is {hours}, but must be a positive number")
    minutes = configuration.run.hang_minutes
    check(not LONGEST_HANG_MINUTES < minutes < math.inf, "run.hang_minutes", f"is {minutes}, but must be at most 10^6")
    check(_positive(optim.lr), "optim.lr", f"is {optim.lr}, but must be a positive number")
    check(_positive(optim.eps), "optim.eps", f"is {optim.eps}, but must be a positive number")
    check(
        optim.weight_decay >= 0 and math.isfinite(optim.weight_decay),
        "optim.weight_decay",
        f"is {optim.weight_decay}, but must not be negative",
    )
    check(
        len(optim.betas) == 2 and all(0 <= beta < 1 for beta in optim.betas),
        "optim.betas",
        f"is {optim.betas}, but takes two numbers in [0, 1)",
    )
    check(
        optim.grad_clip is None or _positive(optim.grad_clip),
        "optim.grad_clip",
        f"is {optim.grad_clip}, but must be positive, or null for no clipping",
    )
    check(
        optim.warmup_steps <= optim.max_steps,
        "optim.warmup_steps",
        f"is {optim.warmup_steps}, more than optim.max_steps {optim.max_steps}",
        "optim.max_steps",
    )
    found += [mistake for mistake in objective_mistakes(objective) if mistake[0] not in noted]
    check(
        data.partitions == "auto" or data.partitions >= 1,
        "data.partitions",
        f"is {data.partitions}, but must be auto or at least 1",
    )
    check(len(data.sources()) > 0, "data.train", "is an empty list; name at least one data set")
    for index, source in enumerate(data.sources()):
        check(_positive(source.weight), f"data.train[{index}].weight", f"is {source.weight}, but must be positive")
    check(
        "model_type" in model or "from" in model,
        "model",
        "names neither model_type (a model to build) nor from (a checkpoint to start from)",
    )
    if "from" in model:
        source = model["from"]
        text = f"is {source!r}, but takes a text: a model folder, or a name on the hub"
        check(isinstance(source, str) and source != "", "model.from", text)
    named = {f"data.train[{index}].path": source.path for index, source in enumerate(data.sources())}
    for key, place in {
        **named,
        "data.eval": data.eval,
        "data.test": data.test,
        "model.from": model.get("from"),
    }.items():
        text = (
            "holds a password, which the run folder would keep: leave it to the environment or the storage's own file"
        )
        check(not (isinstance(place, str) and holds_password(place)), key, text)
    for key, reason in _DECIDED_ELSEWHERE.items():
        check(key not in model, f"model.{key}", f"has no place in a run file ({reason}); remove it")
    check(data.cache.dir != "", "data.cache.dir", "is empty; name a folder on this machine's own disk, or null")
    check(
        configuration.checkpoint.best is None or data.eval is not None,
        "checkpoint.best",
        "needs data.eval: the best checkpoint is chosen on it",
    )
    best, figures = configuration.checkpoint.best, FIGURES[objective.name]
    if best is not None:
        check(
            best.metric in figures,
            "checkpoint.best.metric",
            f"is {best.metric!r}, but an evaluation of objective {objective.name} gives: {', '.join(figures)}",
            "checkpoint.best",
            "objective.name",
        )
    check(
        data.test is None or configuration.checkpoint.best is not None,
        "data.test",
        "is read with the best checkpoint's model: set checkpoint.best",
    )
    check(
        configuration.deepspeed in (None, *SHIPPED_DEEPSPEED) or os.path.isfile(configuration.deepspeed),
        "deepspeed",
        f"is {configuration.deepspeed!r}: neither {', '.join(SHIPPED_DEEPSPEED)}, null, nor an existing JSON file",
    )
    keys = set(flatten(configuration.to_dict()))
    for entry in configuration.run.allow_changes:
        known = entry in keys or any(key.startswith(f"{entry}.") for key in keys) or entry.startswith("model.")
        check(known, "run.allow_changes", f"names {entry!r}, which is no key; {nearest(entry, sorted(keys))}")
    return found


def objective_mistakes(objective: ObjectiveSection) -> list[Mistake]:
    """(key, what is wrong) for every value of an objective outside its range."""
    found: list[Mistake] = []
    if not 0 < objective.mask_probability < 1:
        found.append(("objective.mask_probability", f"is {objective.mask_probability}, but must lie between 0 and 1"))
    return [*found, *_window_mistakes(objective)]


def _window_mistakes(objective: ObjectiveSection) -> Iterator[Mistake]:
    for name, least in (("input_length", 2), ("horizon", 1)):
        key, value = f"objective.{name}", getattr(objective, name)
        if objective.name != "forecasting":
            if value is not None:
                yield key, f"is {value}, but is for objective forecasting, and this is {objective.name}: leave it out"
        elif value is None:
            yield key, "is missing: objective forecasting takes a number of time steps, e.g. 96"
        elif not least <= value < 2**31:
            yield key, f"is {value}, but must be at least {least}, and below 2^31"


def _positive(value: float) -> bool:
    return value > 0 and math.isfinite(value)


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested maps as {dotted.key: value}."""
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
