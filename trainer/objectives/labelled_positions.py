"""Objectives with a class for each labelled position: language modelling, masked and causal, and token classification.

The loss of a micro-batch is a sum over its items divided by the items of the whole global batch, so that adding up
micro-batches and ranks gives the mean over the batch, however it is cut.
"""

import math

import numpy as np
import torch
from torch.nn import functional

from longmix.data_prep.manifest import Manifest
from longmix.data_prep.manifest_fields import IGNORED
from longmix.data_prep.tasks.task_folder import LABEL_PLACES
from longmix.kernels.linear_cross_entropy.portable import are_right, cross_entropy

from ..samples import counter_random
from ..samples.collate import SECOND, Batch, Sample, collate
from ..samples.order import Draw
from ..settings.sections import ObjectiveSection
from .masking import TokenMasker, word_starts
from .model_inputs import accepted, takes

# The entry of a batch beside its labels, by the name under which our language models take it.
TARGET_POSITIONS = "target_positions"
# exp of it is near the largest float.
_LARGEST_LOSS = 700.0
# Beside the numbers by which a mask derives its own keys.
_OF_SECOND = 3


# The makers that the rows of settings/objectives.py name: make(auto_class, section, seed, manifest, load_tokenizer).


def masked_language_modelling(
    auto_class,
    section: ObjectiveSection,
    seed: int,
    manifest: Manifest,
    load_tokenizer,
    evaluation_mask_probability: float,
):
    starts = word_starts(load_tokenizer()) if section.whole_word else None
    tokens = (manifest.mask_token_id, manifest.vocab_size, manifest.special_token_ids, starts)
    masker = TokenMasker(seed, section.mask_probability, *tokens)
    evaluation_masker = TokenMasker(seed, evaluation_mask_probability, *tokens)
    return LabelledPositions(
        auto_class,
        masker,
        manifest.pad_token_id,
        accuracy_name="masked_accuracy",
        evaluation_masker=evaluation_masker,
    )


def causal_language_modelling(auto_class, section: ObjectiveSection, seed: int, manifest: Manifest, load_tokenizer):
    return CausalPositions(auto_class, manifest.pad_token_id)


def token_classification(auto_class, section: ObjectiveSection, seed: int, manifest: Manifest, load_tokenizer):
    return LabelledPositions(auto_class, None, manifest.pad_token_id, "accuracy", manifest.trained_places)


# The classes that they make: one for labels at any position, one for each token as the label of the one before it.


class LabelledPositions:
    """Masked language modelling (with a `masker`) and token classification.

    Args:
        trained_places: see `Manifest`; None: labels have no places.
        evaluation_masker: hides the share of the tokens that evaluations hide.
    """

    def __init__(
        self,
        auto_class: type,
        masker: TokenMasker | None,
        pad_token_id: int | None,
        accuracy_name: str,
        trained_places: int | None = None,
        evaluation_masker: TokenMasker | None = None,
    ):
        assert (masker is None) == (evaluation_masker is None)
        self.auto_class, self.masker, self.pad_token_id = auto_class, masker, pad_token_id
        self.evaluation_masker = evaluation_masker
        self.accuracy_name, self.trained_places = accuracy_name, trained_places
        self.perplexity_name = None if masker is None else "perplexity"

    def training_batch(self, samples: list[Sample], draw: Draw) -> Batch:
        if self.masker is not None:
            samples = _masked(self.masker, samples, self.masker.training_key(draw.source, draw.epoch, draw.sample))
        return self._collated(samples)

    def evaluation_batch(self, samples: list[Sample], indices: np.ndarray) -> Batch:
        if self.evaluation_masker is not None:
            samples = _masked(self.evaluation_masker, samples, self.evaluation_masker.evaluation_key(indices))
        return self._collated(samples)

    def rehearsal_batch(self, samples: list[Sample]) -> Batch:
        if self.masker is not None:
            samples = [self.masker.mask_without_draw(one) for sample in samples for one in _sequences(sample)]
        return self._collated(samples)

    def items(self, batch: Batch) -> int:
        return len(batch[TARGET_POSITIONS])

    def forward(self, model: torch.nn.Module, batch: Batch, items: torch.Tensor | int):
        """(loss, sums): the loss over `items`, and (3,) float32 sums of loss, hits and items, detached."""
        loss, sums, _ = self._forward(model, batch, items)
        return loss, sums

    def _forward(self, model: torch.nn.Module, batch: Batch, items: torch.Tensor | int):
        """Loss and sums of `forward`, and whether the answer to each label is right, (labelled,)."""
        positions = batch[TARGET_POSITIONS]
        # Nothing here waits for the device, as targets[targets != IGNORED] would.
        targets = self._targets(batch["labels"]).flatten().index_select(0, positions)
        shown = None
        if takes(model, "output_logits"):
            output = model(**accepted(model, batch), num_items_in_batch=items, output_logits=False)
            loss, is_right, shown = output.loss, output.is_right, output.task_loss
        elif takes(model, "num_items_in_batch"):
            output = model(**accepted(model, batch), num_items_in_batch=items)
            loss, shown = output.loss, getattr(output, "task_loss", None)
            is_right = are_right(_at(positions, output.logits), targets)
        else:
            logits = _at(positions, model(**accepted(model, batch, without="labels")).logits)
            loss, is_right = cross_entropy(logits, targets) / items, are_right(logits, targets)
        # The task's loss is shown: an auxiliary one is only minimised beside it.
        shown = loss.detach() if shown is None else shown
        count = torch.full_like(shown, len(targets), dtype=torch.float32)
        return loss, torch.stack([shown.float() * items, is_right.sum().float(), count]), is_right

    def _targets(self, labels: torch.Tensor) -> torch.Tensor:
        """What each position predicts, (B, N), IGNORED where nothing."""
        return labels

    def _collated(self, samples: list[Sample]) -> Batch:
        """The micro-batch, with the positions that predict something among all of it, for models that take them."""
        batch = collate(samples, self.pad_token_id)
        found = self._targets(batch["labels"]).flatten() != IGNORED
        return {**batch, TARGET_POSITIONS: found.nonzero().squeeze(1)}

    def evaluation(self, model: torch.nn.Module, batch: Batch):
        """Sums of loss, hits and items; for each label its place and whether the answer is right, (labelled, 2), or
        None.
        """
        _, sums, is_right = self._forward(model, batch, 1)
        if self.trained_places is None:
            return sums.double(), None
        places = batch[LABEL_PLACES].flatten().index_select(0, batch[TARGET_POSITIONS])
        return sums.double(), torch.stack([places, is_right.long()], dim=1).cpu().numpy()

    def figures(self, sums: torch.Tensor, outputs: list[np.ndarray]) -> dict[str, float]:
        """Loss, perplexity (language modelling) and accuracy, from the summed sums; accuracy at each place."""
        loss_sum, hits, items = sums.tolist()
        loss = loss_sum / max(items, 1)
        figures = {"loss": loss}
        if self.perplexity_name is not None:
            figures[self.perplexity_name] = perplexity(loss)
        figures[self.accuracy_name] = hits / max(items, 1)
        if self.trained_places is not None:
            figures |= _of_places(np.concatenate(outputs), self.trained_places)
        return {**figures, "items": int(items)}


def _at(positions: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Logits (B, N, C) at the labelled positions; those that are at these alone, (labelled, C), as they are."""
    return logits if logits.dim() == 2 else logits.flatten(0, 1).index_select(0, positions)


class CausalPositions(LabelledPositions):
    """Causal language modelling: each token is predicted from those before it in its document.

    Not predicted are a row's first token, which has nothing before it, and the first token of each later document of a
    packed row, which would be predicted from another document.
    """

    def __init__(self, auto_class: type, pad_token_id: int | None):
        super().__init__(auto_class, None, pad_token_id, accuracy_name="accuracy")
        self.perplexity_name = "token_perplexity"

    def training_batch(self, samples: list[Sample], draw: Draw) -> Batch:
        return self._batch(samples)

    def evaluation_batch(self, samples: list[Sample], indices: np.ndarray) -> Batch:
        return self._batch(samples)

    def rehearsal_batch(self, samples: list[Sample]) -> Batch:
        return self._batch(samples)

    def _batch(self, samples: list[Sample]) -> Batch:
        return self._collated([_predicting_itself(one) for sample in samples for one in _sequences(sample)])

    def _targets(self, labels: torch.Tensor) -> torch.Tensor:
        return functional.pad(labels[:, 1:], (0, 1), value=IGNORED)[:, : labels.shape[1]]


# Figures of an evaluation.


def with_word_perplexity(figures: dict[str, float], manifest: Manifest) -> dict[str, float]:
    """The figures of causal language modelling with the perplexity per word, if the data set tells its words.

    It is exp(negative log-likelihood of the text / its words), the mean loss of the predicted tokens standing for that
    of all: the data set's tokens but the [CLS] before each row. So the end of a document, [SEP], counts in the
    likelihood, but is no word; words are what white space separates.
    """
    if "token_perplexity" not in figures or not manifest.words or manifest.tokens is None:
        return figures
    word = perplexity(figures["loss"] * (manifest.tokens - manifest.samples) / manifest.words)
    return {**figures, "word_perplexity": word}


def _of_places(answers: np.ndarray, trained: int) -> dict[str, float]:
    """Accuracy at each place that has labels, from 1, after that of trained and of other places where there are both.

    Args:
        answers: (labelled, 2), the place of each label, from 0, and whether its answer is right.
    """
    places, is_right = answers.T
    is_seen = places < trained
    figures = {}
    if is_seen.any() and not is_seen.all():
        figures = {"accuracy_seen": is_right[is_seen].mean(), "accuracy_unseen": is_right[~is_seen].mean()}
    figures |= {f"accuracy_at_{place + 1}": is_right[places == place].mean() for place in np.unique(places)}
    return {name: float(value) for name, value in figures.items()}


def perplexity(loss: float) -> float:
    return math.exp(min(loss, _LARGEST_LOSS))


# Inputs without the labels of a task, and with labels of their own.


def _masked(masker: TokenMasker, samples: list[Sample], keys: np.ndarray) -> list[Sample]:
    """The masked sequences of samples with keys (B,); a pair's second sequence has a key of its own."""
    sequences = [_sequences(sample) for sample in samples]
    if sequences and len(sequences[0]) == 2:
        keys = np.stack([keys, counter_random.key(keys, _OF_SECOND)], axis=1).flatten()
    return masker.mask_all([one for pair in sequences for one in pair], keys)


def _sequences(sample: Sample) -> list[Sample]:
    """The inputs of a sample without its labels: a pair of sequences becomes two samples."""
    inputs = {name: value for name, value in sample.items() if name != "labels"}
    second = {name.removesuffix(SECOND): value for name, value in inputs.items() if name.endswith(SECOND)}
    first = {name: value for name, value in inputs.items() if not name.endswith(SECOND)}
    return [first, second] if second else [first]


def _predicting_itself(sample: Sample) -> Sample:
    """The sample with its own tokens as labels, which the model shifts."""
    labels = np.array(sample["input_ids"], dtype=np.int64)
    labels[:1] = IGNORED
    labels[np.asarray(sample.get("document_starts", [])[1:], dtype=np.int64)] = IGNORED
    return {**sample, "labels": labels}
