"""The model card: what a model folder says of the model in it."""

import dataclasses
from pathlib import Path
from typing import Any

from longmix.data_prep.files import write_json, write_text
from longmix.data_prep.manifest import Manifest

from ..checkpoints.state import RunState
from ..models.folder import INPUTS, OBJECTIVE, Inputs
from ..samples.label_scale import LabelScale
from ..samples.windows import characters_of
from ..settings.configuration import RunConfiguration
from ..settings.forecast_figures import variable_of
from ..settings.objectives import OBJECTIVES
from ..settings.optimizers import OPTIMIZERS
from ..tables.text import escaped, yaml_word
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
---

# {name}

Trained with longmix, objective `{configuration.objective.name}`;
{card.parameters:,} parameters. {load}

## Data

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


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """The facts of a run that hold for each of its checkpoints.

    Attributes:
        manifests: of the training data sets, in their order.
        parameters: how many the model has.
        notes: one line each for what a reader of the results should know.
    """

    configuration: RunConfiguration
    manifests: list[Manifest]
    parameters: int
    notes: list[str]

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
                *(Path(source.path).name, f"{source.weight:g}", f"{manifest.samples:,}", f"{manifest.tokens or 0:,}"),
                *(str(manifest.sequence_length or "-"), manifest.packing or "-"),
            )
            for source, manifest in zip(configuration.data.sources(), self.manifests, strict=True)
        ]
        scores = [
            (name, f"{value:.4f}" if isinstance(value, float) else str(value))
            for name, value in figures.items()
            if variable_of(name.removeprefix("test_")) is None
        ]
        model_type = configuration.model.get("model_type", "")
        row = OPTIMIZERS[configuration.optim.name]
        card = _CARD.format(
            tags=f"longmix, {yaml_word(model_type)}" if model_type else "longmix",
            card=self,
            configuration=configuration,
            batch=configuration.batch,
            optim=configuration.optim,
            optimizer=row.deepspeed[0],
            taken="".join(f", {key} {getattr(configuration.optim, key)}" for key in _SHOWN if key in row.arguments),
            name=escaped(Path(configuration.run.dir).name),
            load=LOAD_WITH_LONGMIX,
            data=markdown(_DATA_COLUMNS, data),
            notes="".join(f"{escaped(note)}\n\n" for note in [*self.notes, *_told_of_labels(inputs)]),
            state=state,
            empty=f", {state.empty} passed over with nothing to predict" if state.empty else "",
            scores=f"{self._hidden()}{markdown(('figure', 'value'), scores)}" if figures else _NOT_EVALUATED,
        )
        write_text(folder / CARD, card)

    def _hidden(self) -> str:
        """A line that says what evaluations hide, where they hide anything."""
        if not OBJECTIVES[self.configuration.objective.name].hides_tokens:
            return ""
        # config.yaml of an earlier version has none: its evaluations were at the share of training.
        share = self.configuration.eval.mask_probability or self.configuration.objective.mask_probability
        return f"Evaluations hide {100 * share:g} % of the tokens.\n\n"


def _told_of_labels(inputs: Inputs) -> list[str]:
    """A line about what the model's answers mean, where they are no labels as they were given."""
    if inputs.label_scale is None:
        return []
    mean, deviation = inputs.label_scale.mean, inputs.label_scale.deviation
    return [f"Its labels were standardised: an answer of the model times {deviation:g}, plus {mean:g}, is a label."]


def inputs_of(manifest: Manifest) -> Inputs:
    """What a model that was trained on this data set reads, as far as its manifest says more than its columns."""
    columns = manifest.report.get("text_columns")
    if manifest.series is not None:
        return Inputs(series={key: manifest.series[key] for key in ("names", "mean", "scale")})
    if not isinstance(columns, list):
        return Inputs(characters=characters_of(manifest))
    label_column, scale = manifest.report.get("label_column"), LabelScale.of_manifest(manifest)
    return Inputs(columns, label_column, manifest.sequence_length, label_scale=scale)
