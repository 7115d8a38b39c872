"""The objective of a run: how samples become a micro-batch with labels, the loss, and the figures of an evaluation.

The rows of settings/objectives.py name each objective's maker and the class of its models; here both are found.
"""

from pkgutil import resolve_name
from typing import Protocol

import numpy as np
import torch

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest

from ..samples.collate import VALUES, Batch, Sample, is_pair
from ..samples.order import Draw
from ..settings.objectives import OBJECTIVES
from ..settings.sections import EVALUATION_MASK_PROBABILITY, ObjectiveSection


class Objective(Protocol):
    """The methods by which the loop, the evaluation and the dry run meet every objective.

    Attributes:
        auto_class: class of transformers, or of ours, that builds its models.
        accuracy_name: figure that training shows beside the loss; None: none.
    """

    auto_class: type
    accuracy_name: str | None

    def training_batch(self, samples: list[Sample], draw: Draw) -> Batch:
        """A micro-batch with labels; `draw` says which samples these are, for what is random in it."""

    def evaluation_batch(self, samples: list[Sample], indices: np.ndarray) -> Batch:
        """The same in every evaluation of every run; `indices` (B,) are the samples' places in the data set."""

    def rehearsal_batch(self, samples: list[Sample]) -> Batch:
        """A micro-batch as in training, but without any draw: it has items wherever training could find one."""

    def items(self, batch: Batch) -> int:
        """The number of items over which the loss is a mean; 0: the micro-batch adds nothing to a step."""

    def forward(
        self, model: torch.nn.Module, batch: Batch, items: torch.Tensor | int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(loss, sums): the loss over `items`, and (3,) float32 sums of loss, hits (or errors) and items, detached."""

    def evaluation(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, np.ndarray | None]:
        """Sums as those of `forward` in float64, and whatever else `figures` needs of each item, or None."""

    def figures(self, sums: torch.Tensor, outputs: list[np.ndarray]) -> dict[str, float]:
        """The figures of an evaluation, from the sums of all batches and their outputs."""


def make_objective(
    section: ObjectiveSection,
    seed: int,
    manifest: Manifest,
    load_tokenizer,
    evaluation_mask_probability: float | None = None,
) -> Objective:
    """The objective of a run file over the data set of `manifest`.

    Args:
        load_tokenizer: called without arguments when whole words are to be hidden.
        evaluation_mask_probability: share of the tokens that evaluations hide, for an objective that hides any;
            None: EVALUATION_MASK_PROBABILITY.

    Raises:
        UserError: the data set lacks what the objective needs.
    """
    check_data(section.name, manifest)
    row = OBJECTIVES[section.name]
    arguments = [auto_class(section.name), section, seed, manifest, load_tokenizer]
    if row.hides_tokens:
        arguments.append(evaluation_mask_probability or EVALUATION_MASK_PROBABILITY)
    return resolve_name(row.maker)(*arguments)


def auto_class(name: str) -> type:
    """The class that builds the models of the objective `name`."""
    return resolve_name(OBJECTIVES[name].auto_class)


def check_data(name: str, manifest: Manifest) -> None:
    """Raise UserError unless a data set has what the objective `name` needs.

    That it is a series, for forecasting, is asked where its windows are cut.
    """
    row, columns = OBJECTIVES[name], manifest.columns
    if row.is_language_model and VALUES in columns:
        raise UserError(
            f"objective {name} predicts tokens, but the data set holds real values (column {VALUES}), which are no "
            "classes: choose another objective, or prepare the task as tokens"
        )
    if row.hides_tokens and manifest.mask_token_id is None:
        raise UserError(f"objective {name} needs a data set with a mask token: prepare it with longmix prepare text")
    if row.labelled is None:
        return
    if "labels" not in columns:
        raise UserError(f"objective {name} needs a data set with a column labels; this one has {', '.join(columns)}")
    of_positions = len(columns["labels"]["shape"]) == 1
    labelled = "token" if of_positions else "pair of sequences" if is_pair(columns) else "sample"
    if row.labelled != labelled:
        fitting = " or ".join(other for other in OBJECTIVES if OBJECTIVES[other].labelled == labelled)
        raise UserError(f"objective.name is {name}, but the data set has a label for each {labelled}: {fitting}")
    if not row.takes_real_labels and columns["labels"]["dtype"].startswith("float"):
        raise UserError(f"objective {name} needs classes, but the labels of the data set are real values: regression")
