"""What a run learns: how samples become a micro-batch with labels, the loss, and the figures of an evaluation.

The loss of a micro-batch is a sum over its items divided by the items of the whole global batch, so that adding up
micro-batches and ranks gives the mean over the batch, however it is cut.
"""

import inspect
import math
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn import functional

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.modeling.losses import mix_auxiliary_loss

from .collate import collate
from .configuration import ObjectiveSection
from .masking import IGNORED, TokenMasker, word_starts
from .order import Draw


class LabelledPositions:
    """Objectives with a class for each labelled position: masked language modelling and token classification."""

    def __init__(self, auto_class: type, masker: TokenMasker | None, pad_token_id: int | None, accuracy_name: str):
        self.auto_class, self.masker, self.pad_token_id = auto_class, masker, pad_token_id
        self.accuracy_name = accuracy_name

    def training_batch(self, samples: list[dict[str, Any]], draw: Draw) -> dict[str, torch.Tensor]:
        if self.masker is not None:
            keys = map(self.masker.training_key, draw.source.tolist(), draw.epoch.tolist(), draw.sample.tolist())
            samples = [self.masker.mask(sample, key) for sample, key in zip(samples, keys, strict=True)]
        return collate(samples, self.pad_token_id)

    def evaluation_batch(self, samples: list[dict[str, Any]], indices: np.ndarray) -> dict[str, torch.Tensor]:
        if self.masker is not None:
            keys = map(self.masker.evaluation_key, indices.tolist())
            samples = [self.masker.mask(sample, key) for sample, key in zip(samples, keys, strict=True)]
        return collate(samples, self.pad_token_id)

    def items(self, batch: dict[str, torch.Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def forward(self, model: torch.nn.Module, batch: dict[str, torch.Tensor], items: torch.Tensor | int):
        """(loss, sums): the loss over `items`, and (3,) float32 sums of loss, hits and items, detached."""
        labels = batch["labels"]
        chosen = labels[labels != IGNORED]
        if _takes(model, "num_items_in_batch"):
            output = model(**_accepted(model, batch), num_items_in_batch=items)
            loss, logits = output.loss, output.logits
            shown = getattr(output, "task_loss", None)
            if logits.dim() == 3:
                logits = logits[labels != IGNORED]
        else:
            logits = model(**_accepted(model, batch, without="labels")).logits[labels != IGNORED]
            loss = functional.cross_entropy(logits.float(), chosen, reduction="sum") / items
            shown = None
        # The same places as those of argmax, which takes several times as long on a CPU.
        hits = (logits.detach().max(dim=-1).indices == chosen).sum()
        # What is shown is the task's loss: an auxiliary one is part of what is minimised alone.
        shown = loss.detach() if shown is None else shown
        return loss, torch.stack([shown.float() * items, hits.float(), (chosen != IGNORED).sum().float()])

    def evaluation(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, None]:
        return self.forward(model, batch, 1)[1].double(), None

    def figures(self, sums: torch.Tensor, outputs: list[np.ndarray]) -> dict[str, float]:
        """Loss, perplexity (masked language modelling) and accuracy from the summed sums."""
        loss_sum, hits, items = sums.tolist()
        loss = loss_sum / max(items, 1)
        figures = {"loss": loss}
        if self.masker is not None:
            figures["perplexity"] = math.exp(min(loss, 700.0))
        return {**figures, self.accuracy_name: hits / max(items, 1), "items": int(items)}


class LabelledSamples:
    """Objectives with one label for each sample: classification and regression."""

    accuracy_name = "accuracy"

    def __init__(self, auto_class: type, pad_token_id: int | None, is_regression: bool):
        self.auto_class = auto_class
        self.pad_token_id, self.is_regression = pad_token_id, is_regression

    def training_batch(self, samples: list[dict[str, Any]], draw: Draw) -> dict[str, torch.Tensor]:
        return collate(samples, self.pad_token_id)

    def evaluation_batch(self, samples: list[dict[str, Any]], indices: np.ndarray) -> dict[str, torch.Tensor]:
        return collate(samples, self.pad_token_id)

    def items(self, batch: dict[str, torch.Tensor]) -> int:
        return len(batch["input_ids"])

    def forward(self, model: torch.nn.Module, batch: dict[str, torch.Tensor], items: torch.Tensor | int):
        """(loss, sums): the loss over `items`, and (3,) float32 sums of loss, hits and items, detached."""
        logits, loss_sum, auxiliary_loss = self._loss_sum(model, batch)
        loss = loss_sum / items
        if auxiliary_loss is not None:
            weight = _unwrapped(model).config.auxiliary_loss_weight
            loss = mix_auxiliary_loss(loss, auxiliary_loss, weight, len(batch["labels"]), items)
        return loss, self._sums(logits, loss_sum, batch["labels"])

    def evaluation(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, np.ndarray]:
        """Sums of loss, hits and items, and (B, classes + 1) outputs: logits beside the label."""
        logits, loss_sum, _ = self._loss_sum(model, batch)
        outputs = torch.cat([logits, batch["labels"][:, None].float()], dim=1).cpu().numpy()
        return self._sums(logits, loss_sum, batch["labels"]).double(), outputs

    def _loss_sum(
        self, model: torch.nn.Module, batch: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Logits, the loss summed over the samples, and the model's auxiliary loss if it has one."""
        output = model(**_accepted(model, batch, without="labels"))
        logits, labels = output.logits.float(), batch["labels"]
        auxiliary_loss = getattr(output, "auxiliary_loss", None)
        if self.is_regression:
            return logits, functional.mse_loss(logits.squeeze(-1), labels.float(), reduction="sum"), auxiliary_loss
        return logits, functional.cross_entropy(logits, labels, reduction="sum"), auxiliary_loss

    def _sums(self, logits: torch.Tensor, loss_sum: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss_sum = loss_sum.detach()
        hits = torch.zeros_like(loss_sum) if self.is_regression else (logits.argmax(dim=-1) == labels).sum().float()
        return torch.stack([loss_sum, hits, torch.full_like(loss_sum, len(labels))])

    def figures(self, sums: torch.Tensor, outputs: list[np.ndarray]) -> dict[str, float]:
        """Loss and the metrics of the task: correlations, or accuracy, Matthews and (two classes) F1."""
        from . import task_metrics  # imports scikit-learn, which pre-training can do without

        loss_sum, _, items = sums.tolist()
        stacked = np.concatenate(outputs)
        logits, labels = stacked[:, :-1], stacked[:, -1]
        if self.is_regression:
            values = task_metrics.evaluate(task_metrics.REGRESSION_METRICS, labels, logits[:, 0]).values
        else:
            names = task_metrics.CLASSIFICATION_METRICS if logits.shape[1] == 2 else ("matthews", "accuracy")
            values = task_metrics.evaluate(names, labels.astype(np.int64), logits.argmax(axis=1)).values
        return {"loss": loss_sum / max(items, 1), **values, "items": int(items)}


Objective = LabelledPositions | LabelledSamples

AUTO_CLASSES = {
    "mlm": transformers.AutoModelForMaskedLM,
    "classification": transformers.AutoModelForSequenceClassification,
    "regression": transformers.AutoModelForSequenceClassification,
    "token_classification": transformers.AutoModelForTokenClassification,
}


def make_objective(section: ObjectiveSection, seed: int, manifest: Manifest, load_tokenizer) -> Objective:
    """The objective of a run file over the data set of `manifest`.

    Args:
        load_tokenizer: called without arguments when whole words are to be hidden.

    Raises:
        UserError: the data set lacks what the objective needs.
    """
    auto_class = AUTO_CLASSES[section.name]
    if section.name == "mlm":
        if manifest.mask_token_id is None:
            raise UserError("objective mlm needs a data set with a mask token: prepare it with longmix prepare text")
        starts_word = word_starts(load_tokenizer()) if section.whole_word else None
        masker = TokenMasker(
            seed,
            section.mask_probability,
            manifest.mask_token_id,
            manifest.vocab_size,
            manifest.special_token_ids,
            starts_word,
        )
        return LabelledPositions(auto_class, masker, manifest.pad_token_id, accuracy_name="masked_accuracy")
    if "labels" not in manifest.columns:
        raise UserError(
            f"objective {section.name} needs a data set with a column labels; "
            f"this one has {', '.join(manifest.columns)}"
        )
    of_positions = len(manifest.columns["labels"]["shape"]) == 1
    if of_positions != (section.name == "token_classification"):
        others = "token_classification" if of_positions else "classification or regression"
        whose = "token" if of_positions else "sample"
        raise UserError(f"objective.name is {section.name}, but the data set has a label for each {whose}: {others}")
    if section.name == "token_classification":
        return LabelledPositions(auto_class, None, manifest.pad_token_id, accuracy_name="accuracy")
    return LabelledSamples(auto_class, manifest.pad_token_id, is_regression=section.name == "regression")


def _parameters(model: torch.nn.Module) -> set[str]:
    """Names of the model's forward arguments."""
    return set(inspect.signature(_unwrapped(model).forward).parameters)


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside any wrapper (DeepSpeed's engine, DDP)."""
    while isinstance(getattr(model, "module", None), torch.nn.Module):
        model = model.module
    return model


def _takes(model: torch.nn.Module, name: str) -> bool:
    return name in _parameters(model)


def _accepted(model: torch.nn.Module, batch: dict[str, torch.Tensor], without: str | None = None) -> dict[str, Any]:
    """The part of a batch that the model's forward names: document ids are left out where a model cannot use them."""
    names = _parameters(model)
    return {name: value for name, value in batch.items() if name in names and name != without}
