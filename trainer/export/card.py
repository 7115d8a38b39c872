"""The model card: what a model folder says of the model in it."""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from longmix.data_prep.files import write_json, write_text
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.split_names import without_split

from ..checkpoints.state import RunState
from ..models.folder import INPUTS, OBJECTIVE, Inputs
from ..samples.label_scale import LabelScale
from ..samples.windows import characters_of
from ..settings.configuration import RunConfiguration
from ..settings.forecast_figures import variable_of
from ..settings.objectives import OBJECTIVES
from ..settings.optimizers import OPTIMIZERS
from ..tables.text import Markdown, code, escaped, yaml_word
from ..tables.writing import markdown

CARD = "README.md"
# Stands in the card of a model that has no code beside it.
LOAD_WITH_LONGMIX = "Load it after `import longmix.modeling`."

# Arguments of an optimizer, where it takes them.
_SHOWN = ("momentum", "update_rms", "betas")
_DATA_COLUMNS = ("data set", "weight", "samples", "tokens", "sequence length", "packing")
_CARD = """---
library_name: transformers
tags: [{tags}]
{base_model}---

# {name}

Trained with longmix, objective `{configuration.objective.name}`;
{card.parameters:,} parameters. {load}

{origin}## Data

{data}

{notes}## Recipe

{state.step:,} steps of {batch.samples} samples ({state.samples:,} samples in all; {state.skipped} steps dropped as
not finite{empty}). {optimizer}, lr {optim.lr:g} ({optim.schedule}, {optim.steps_of_warmup} warm-up steps){taken},
weight decay {optim.weight_decay:g}, gradient clipping {optim.grad_clip}, seed {configuration.run.seed}. The complete
configuration is the run's `config.yaml`.

## Scores

{scores}
"""

_NOT_EVALUATED = "Not evaluated at this step."
_MOST_CLASSES = 20  # that are named
# Every card of ours begins like this.
_TITLE = re.compile(r"(\A---\nlibrary_name: transformers\ntags: \[longmix(?s:.*?)\n---\n\n)# .*")
# Names of run folders that are alike in many places.
_ONE_OF_MANY = re.compile(r"seed-\d+|lr-[^/]+")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """The facts of a run that hold for each of its checkpoints.

    Attributes:
        model_type: of the model, which a run file that names a start does not say.
        manifests: of the training data sets, in their order.
        parameters: how many the model has.
        notes: one line each for what a reader of the results should know.
        evaluation: of the data set that the figures are of; None where there is none.
    """

    configuration: RunConfiguration
    model_type: str
    manifests: list[Manifest]
    parameters: int
    notes: list[str]
    evaluation: Manifest | None = None

    def write(self, folder: Path, state: RunState, figures: dict[str, Any]) -> None:
        """Write objective.json, inputs.json (see `Inputs`), and README.md: data, packing, steps and recipe of `state`,
        and scores.
        """
        write_json(folder / OBJECTIVE, dataclasses.asdict(self.configuration.objective))
        if (inputs := inputs_of(self.manifests[0])) != Inputs():
            write_json(folder / INPUTS, dataclasses.asdict(inputs))
        configuration = self.configuration
        data = [
            (
                *(_data_name(source.path, manifest), f"{source.weight:g}", f"{manifest.samples:,}"),
                *(f"{manifest.tokens or 0:,}", str(manifest.sequence_length or "-"), manifest.packing or "-"),
            )
            for source, manifest in zip(configuration.data.sources(), self.manifests, strict=True)
        ]
        scores = [
            (name, f"{value:.4f}" if isinstance(value, float) else str(value))
            for name, value in figures.items()
            if variable_of(name.removeprefix("test_")) is None
        ]
        start = configuration.model.get("from")
        row = OPTIMIZERS[configuration.optim.name]
        card = _CARD.format(
            tags=f"longmix, {yaml_word(self.model_type)}",
            base_model=f"base_model: {yaml_word(start)}\n" if start is not None and _is_on_hub(start) else "",
            origin="".join(f"{sentence}\n\n" for sentence in _origin(start, self.manifests[0])),
            card=self,
            configuration=configuration,
            batch=configuration.batch,
            optim=configuration.optim,
            optimizer=row.deepspeed[0],
            taken="".join(f", {key} {getattr(configuration.optim, key)}" for key in _SHOWN if key in row.arguments),
            name=escaped(_name(configuration.run.dir, self.manifests[0])),
            load=LOAD_WITH_LONGMIX,
            data=f"{markdown(_DATA_COLUMNS, data)}{self._rule()}",
            notes="".join(f"{escaped(note)}\n\n" for note in [*self.notes, *_told_of_labels(inputs)]),
            state=state,
            empty=f", {state.empty} passed over with nothing to predict" if state.empty else "",
            scores=f"{self._about(figures)}{markdown(('figure', 'value'), scores)}" if figures else _NOT_EVALUATED,
        )
        write_text(folder / CARD, card)

    def _about(self, figures: Iterable[str]) -> str:
        """Lines that say what the figures of these names are of."""
        return f"{self._split(figures)}{self._hidden()}{self._class_of_f1(figures)}"

    def _split(self, figures: Iterable[str]) -> str:
        """A line that says which split figures of these names are of."""
        if self.evaluation is None:
            return ""
        split, chose = escaped(self.evaluation.split), self.configuration.checkpoint.best is not None
        if chose and _task_of(self.manifests[0]) is not None:
            line = f"On the {split} split, a part of the training data, which chose this checkpoint; "
            line += "the reported figures stand in `results.md` of the fine-tuning"
        else:
            line = f"On the {split} split{', which chose this checkpoint' * chose}"
        tested = "; figures that begin with `test_` on the test set, once"
        return f"{line}{tested if any(name.startswith('test_') for name in figures) else ''}.\n\n"

    def _rule(self) -> str:
        """A line that says how the split was made that the figures are of."""
        if self.evaluation is None:
            return ""
        return f"\n\nHow the {escaped(self.evaluation.split)} split was made: {escaped(self.evaluation.split_rule)}."

    def _class_of_f1(self, figures: Iterable[str]) -> str:
        """A line that says which class an F1 is of, where there is one."""
        names = self.manifests[0].label_names
        if names is None or not {"f1", "test_f1"} & set(figures):
            return ""
        return f"F1 is of the class {escaped(names[1])}.\n\n"

    def _hidden(self) -> str:
        """A line that says what evaluations hide, where they hide anything."""
        if not OBJECTIVES[self.configuration.objective.name].hides_tokens:
            return ""
        # config.yaml of an earlier version has none: its evaluations were at the share of training.
        share = self.configuration.eval.mask_probability or self.configuration.objective.mask_probability
        return f"Evaluations hide {100 * share:g} % of the tokens.\n\n"


def with_title(card: str, name: str) -> str:
    """A card with another title, where it is one that longmix wrote: the name of the folder that it has come to."""
    return _TITLE.sub(lambda found: f"{found[1]}# {escaped(name)}", card, count=1)


def _name(run: str, manifest: Manifest) -> str:
    """What the card calls the model of a run folder, OUTPUT/seed-K of a sweep, OUTPUT/TASK/[lr-X/]seed-K of a
    fine-tuning: the last name, and those above it as far as it is alike in many folders.
    """
    parts = [part for part in Path(os.path.abspath(run)).parts if part != os.sep]
    shown = 1
    while shown < len(parts) and _ONE_OF_MANY.fullmatch(parts[-shown]):
        shown += 1
    if shown > 1 and _task_of(manifest) is not None:
        shown += 1
    return "/".join(parts[-shown:])


def _data_name(path: str, manifest: Manifest) -> str:
    """What the card calls a data set: the task of a fine-tuning, which has `data` in its folder, or the folder."""
    return _task_of(manifest) or without_split(Path(os.path.normpath(path))).name


def _task_of(manifest: Manifest) -> str | None:
    """The task of `longmix finetune` that a data set was written for."""
    task = manifest.report.get("task")
    return task if isinstance(task, str) else None


def _origin(start: str | None, manifest: Manifest) -> Iterator[str]:
    """What the model was before, and what it has been trained for since."""
    task = _task_of(manifest)
    if task is not None and start is not None:
        yield f"Fine-tuned from {_shown_start(start)} on the task {escaped(task)}."
    elif start is not None:
        yield f"Training started from {_shown_start(start)}."
    if names := manifest.label_names:
        more = f", ... ({len(names)} in all)" if len(names) > _MOST_CLASSES else ""
        yield f"Classes, in the order of its outputs: {', '.join(map(escaped, names[:_MOST_CLASSES]))}{more}."


def _is_on_hub(start: str) -> bool:
    """Whether `model.from` is a name on the hub, as far as this machine can tell: no folder here has it."""
    return _HUB_NAME.fullmatch(start) is not None and not Path(start).exists()


def _shown_start(start: str) -> Markdown:
    """A name on the hub, or the last folders of a path, without those that every run has."""
    if _is_on_hub(start):
        return code(start)
    parts = [part for part in Path(start).parts if part not in ("model", "checkpoints", "/", "..")]
    return code("/".join([part for part in parts if not part.startswith("step-")][-2:]) or start)


def _told_of_labels(inputs: Inputs) -> list[str]:
    """A line about what the model's answers mean, where they are no labels as they were given."""
    if inputs.label_scale is None:
        return []
    mean, deviation = inputs.label_scale.mean, inputs.label_scale.deviation
    return [f"Its labels were standardised: an answer of the model times {deviation!r}, plus {mean!r}, is a label."]


def inputs_of(manifest: Manifest) -> Inputs:
    """What a model that was trained on this data set reads, as far as its manifest says more than its columns."""
    columns = manifest.report.get("text_columns")
    if manifest.series is not None:
        task = manifest.report.get("task")
        kept = {key: manifest.series[key] for key in ("names", "mean", "scale")}
        if isinstance(task, dict) and "date_columns" in task:
            kept["date_columns"] = task["date_columns"]
        return Inputs(series=kept)
    if not isinstance(columns, list):
        return Inputs(characters=characters_of(manifest))
    label_column, scale = manifest.report.get("label_column"), LabelScale.of_manifest(manifest)
    return Inputs(columns, label_column, manifest.sequence_length, label_scale=scale)
