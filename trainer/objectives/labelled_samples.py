"""Objectives with one label for each sample: classification of sequences and of pairs, and regression."""

import numpy as np
import torch
from torch.nn import functional

from longmix.data_prep.manifest import Manifest

from ..samples.collate import Batch, Sample, collate
from ..samples.order import Draw
from ..settings.sections import ObjectiveSection
from .model_inputs import accepted, with_auxiliary_loss


def labelled_samples(auto_class, section: ObjectiveSection, seed: int, manifest: Manifest, load_tokenizer):
    """The maker that the rows of settings/objectives.py name."""
    return LabelledSamples(auto_class, manifest.pad_token_id, section.name == "regression", manifest.tolerance)


class LabelledSamples:
    """Cross entropy with classes, or squared error with values, of whole samples.

    Args:
        tolerance: a predicted value less than it away from its label is right; None: none is.
    """

    def __init__(self, auto_class: type, pad_token_id: int | None, is_regression: bool, tolerance: float | None):
        self.auto_class = auto_class
        self.pad_token_id, self.is_regression, self.tolerance = pad_token_id, is_regression, tolerance
        # Training tells none where no answer counts as right.
        self.accuracy_name = None if is_regression and tolerance is None else "accuracy"

    def training_batch(self, samples: list[Sample], draw: Draw) -> Batch:
        return collate(samples, self.pad_token_id)

    def evaluation_batch(self, samples: list[Sample], indices: np.ndarray) -> Batch:
        return collate(samples, self.pad_token_id)

    def rehearsal_batch(self, samples: list[Sample]) -> Batch:
        return collate(samples, self.pad_token_id)

    def items(self, batch: Batch) -> int:
        return len(batch["labels"])

    def forward(self, model: torch.nn.Module, batch: Batch, items: torch.Tensor | int):
        """(loss, sums): the loss over `items`, and (3,) float32 sums of loss, hits and items, detached."""
        logits, loss_sum, auxiliary_loss = self._loss_sum(model, batch)
        loss = with_auxiliary_loss(model, loss_sum / items, auxiliary_loss, len(batch["labels"]), items)
        return loss, self._sums(logits, loss_sum, batch["labels"])

    def evaluation(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, np.ndarray]:
        """Sums of loss, hits and items, and (B, classes + 1) outputs: logits beside the label."""
        logits, loss_sum, _ = self._loss_sum(model, batch)
        outputs = torch.cat([logits, batch["labels"][:, None].float()], dim=1).cpu().numpy()
        return self._sums(logits, loss_sum, batch["labels"]).double(), outputs

    def _loss_sum(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Logits, the loss summed over the samples, and the model's auxiliary loss if it has one."""
        output = model(**accepted(model, batch, without="labels"))
        logits, labels = output.logits.float(), batch["labels"]
        auxiliary_loss = getattr(output, "auxiliary_loss", None)
        if self.is_regression:
            return logits, functional.mse_loss(logits.squeeze(-1), labels.float(), reduction="sum"), auxiliary_loss
        return logits, functional.cross_entropy(logits, labels, reduction="sum"), auxiliary_loss

    def _sums(self, logits: torch.Tensor, loss_sum: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss_sum = loss_sum.detach()
        return torch.stack([loss_sum, self._hits(logits, labels).float(), torch.full_like(loss_sum, len(labels))])

    def _hits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The number of right answers."""
        if not self.is_regression:
            return (logits.argmax(dim=-1) == labels).sum()
        tolerance = 0.0 if self.tolerance is None else self.tolerance
        return ((logits.squeeze(-1).double() - labels.double()).abs() < tolerance).sum()

    def figures(self, sums: torch.Tensor, outputs: list[np.ndarray]) -> dict[str, float]:
        """Loss and the task's metrics: correlations and (with a tolerance) accuracy, or accuracy, Matthews, macro F1
        and (two classes) F1 and ROC AUC.
        """
        from . import metrics  # imports scikit-learn, which pre-training can do without

        loss_sum, hits, items = sums.tolist()
        stacked = np.concatenate(outputs)
        logits, labels = stacked[:, :-1], stacked[:, -1]
        if self.is_regression:
            values = metrics.evaluate(metrics.CORRELATIONS, labels, logits[:, 0]).values
            if self.tolerance is not None:
                values = {**values, "accuracy": hits / max(items, 1)}
        else:
            labels = labels.astype(np.int64)
            values = metrics.evaluate(metrics.of_classes(logits.shape[1]), labels, logits.argmax(axis=1)).values
            if logits.shape[1] == 2:
                values = {**values, "roc_auc": metrics.roc_auc(labels, logits[:, 1] - logits[:, 0])}
        return {"loss": loss_sum / max(items, 1), **values, "items": int(items)}
