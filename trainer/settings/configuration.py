"""A run's settings as one checked object: the sections of its run file, and what must hold between them."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal

from longmix.data_prep.typed_maps import Mistake, nearest

from .objectives import OBJECTIVES
from .provenance import holds_password
from .sections import (
    BatchSection,
    CheckpointSection,
    DataSection,
    EvalSection,
    Finding,
    LogSection,
    ObjectiveSection,
    OptimSection,
    RunSection,
)

# Fields that every configuration of transformers has, but that something else decides.
_DECIDED_ELSEWHERE = {
    "architectures": "objective.name decides it",
    "dtype": "precision decides it",
    "horizon": "objective.horizon decides it",
    "input_length": "objective.input_length decides it",
    "return_dict": "longmix reads outputs by their names",
    "transformers_version": "it is noted when a model is saved",
}
SHIPPED_DEEPSPEED = ("zero0", "zero1", "zero2", "zero3")


@dataclass
class RunConfiguration:
    """One run, complete. `model` stays a map: its keys are those of the model's own configuration class.

    Attributes:
        model_defaults: for a model type, the fields of `model` that no run file sets, as the run was begun with them:
            a default that changes later changes no run. Written by longmix (models/defaults.py).
    """

    run: RunSection
    model: dict[str, Any]
    data: DataSection
    model_defaults: dict[str, Any] = field(default_factory=dict)
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

    def model_fields(self) -> dict[str, Any]:
        """`model`, with the noted defaults of its type."""
        return {**self.model_defaults.get(self.model.get("model_type"), {}), **self.model}

    def mistakes(self) -> Iterator[Finding]:
        """Contradictions between sections, and mistakes of the keys outside them."""
        yield from _model_mistakes(self.model)
        for model_type, defaults in self.model_defaults.items():
            if not isinstance(defaults, dict):
                yield "model_defaults", f"has {defaults!r} for {model_type}, but takes a map of its fields"
        yield from _password_mistakes(self)
        yield from _best_mistakes(self)
        share, name = self.eval.mask_probability, self.objective.name
        if share is not None and not OBJECTIVES[name].hides_tokens:
            text = f"is {share}, but is for objective mlm, and this is {name}: leave it out"
            yield "eval.mask_probability", text, "objective.name"
        if self.deepspeed not in (None, *SHIPPED_DEEPSPEED) and not os.path.isfile(self.deepspeed):
            names = ", ".join(SHIPPED_DEEPSPEED)
            yield "deepspeed", f"is {self.deepspeed!r}: neither {names}, null, nor an existing JSON file"
        keys = set(flatten(self.to_dict()))
        for entry in self.run.allow_changes:
            if not (entry in keys or any(key.startswith(f"{entry}.") for key in keys) or entry.startswith("model.")):
                yield "run.allow_changes", f"names {entry!r}, which is no key; {nearest(entry, sorted(keys))}"


def section_mistakes(section: Any, prefix: str = "", noted: frozenset[str] | set[str] = frozenset()) -> list[Mistake]:
    """(dotted key, what is wrong) for every value outside its range and every contradiction, in and below a section.

    Keys that are `noted` as mistaken, and all below them, hold a stand-in: nothing is said about them, nor about what
    follows from a key that is mistaken itself.
    """
    found = list(_findings(section, prefix))
    wrong = {*noted, *(key for key, _, *others in found if not others)}
    return [
        (key, text)
        for key, text, *others in found
        if noted.isdisjoint(_with_those_above(key)) and wrong.isdisjoint(_with_those_above(*others))
    ]


def _with_those_above(*keys: str) -> list[str]:
    """Dotted keys, and the sections that they stand in."""
    parts = [key.split(".") for key in keys]
    return [".".join(each[:depth]) for each in parts for depth in range(1, len(each) + 1)]


def _findings(section: Any, prefix: str) -> Iterator[Finding]:
    """What `mistakes` of a section, and of those below it, yield, with dotted keys."""
    for entry in fields(section):
        value = getattr(section, entry.name)
        parts = {f"[{index}]": one for index, one in enumerate(value)} if isinstance(value, list) else {"": value}
        for place, part in parts.items():
            if is_dataclass(part):
                yield from _findings(part, f"{prefix}{entry.name}{place}.")
    for key, *rest in section.mistakes() if hasattr(section, "mistakes") else ():
        yield f"{prefix}{key}", *rest


# What must hold between sections.


def _model_mistakes(model: dict[str, Any]) -> Iterator[Finding]:
    """Mistakes that show without the model's own fields, which models/field_check.py checks."""
    if "model_type" not in model and "from" not in model:
        yield "model", "names neither model_type (a model to build) nor from (a checkpoint to start from)"
    source = model.get("from", "a folder")
    if not isinstance(source, str) or source == "":
        yield "model.from", f"is {source!r}, but takes a text: a model folder, or a name on the hub"
    for key, reason in _DECIDED_ELSEWHERE.items():
        if key in model:
            yield f"model.{key}", f"has no place in a run file ({reason}); remove it"


def _password_mistakes(configuration: RunConfiguration) -> Iterator[Finding]:
    data = configuration.data
    places = {f"data.train[{index}].path": source.path for index, source in enumerate(data.sources())}
    places |= {"data.eval": data.eval, "data.test": data.test, "model.from": configuration.model.get("from")}
    text = "holds a password, which the run folder would keep: leave it to the environment or the storage's own file"
    for key, place in places.items():
        if isinstance(place, str) and holds_password(place):
            yield key, text


def _best_mistakes(configuration: RunConfiguration) -> Iterator[Finding]:
    """Mistakes about the best checkpoint, which is chosen on data.eval and reported on data.test."""
    data, best, objective = configuration.data, configuration.checkpoint.best, configuration.objective.name
    if best is not None and data.eval is None:
        yield "checkpoint.best", "needs data.eval: the best checkpoint is chosen on it", "data.eval"
    figures = OBJECTIVES[objective].figures
    if best is not None and best.metric not in figures:
        text = f"is {best.metric!r}, but an evaluation of objective {objective} gives: {', '.join(figures)}"
        yield "checkpoint.best.metric", text, "checkpoint.best", "objective.name"
    if best is None and data.test is not None:
        yield "data.test", "is read with the best checkpoint's model: set checkpoint.best", "checkpoint.best"


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested maps as {dotted.key: value}."""
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
