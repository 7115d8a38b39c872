"""Heads on the encoder: masked language modelling, sequence and token classification, regression."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.utils import ModelOutput, can_return_tuple

from .configuration import MixerConfig
from .masking import as_mask, keep_valid, masked_mean
from .model import MixerModel, MixerPreTrainedModel

IGNORED_LABEL = -100


@dataclass
class MixerHeadOutput(ModelOutput):
    """What a model with a head returns.

    Args:
        loss: scalar, when labels are given.
        logits: masked language model: (labelled, V) in row-major order when labels are given, else (B, N, V);
            sequence classification: (B, labels); token classification: (B, N, labels).
        hidden_states: see MixerModelOutput.
        auxiliary_loss: see MixerModelOutput; not part of loss.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    auxiliary_loss: torch.Tensor | None = None


class MixerForMaskedLM(MixerPreTrainedModel):
    """The encoder and a masked-language-model head whose output matrix is the token embedding.

    Raises:
        ValueError: at construction, if the model reads real values instead of tokens.
    """

    _tied_weights_keys: ClassVar[dict[str, str]] = {"head.decoder.weight": "encoder.embeddings.word_embeddings.weight"}
    encoder_class: ClassVar[type[MixerModel]]

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        if config.input_channels is not None:
            config.require("input_channels", False, "null (tokens) for a masked language model")
        self.encoder = self.encoder_class(config)
        self.head = MaskedLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        """The layer that gives the logits."""
        return self.head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the layer that gives the logits."""
        self.head.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        coordinates: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        output_all_logits: bool = False,
        output_hidden_states: bool | None = None,
    ) -> MixerHeadOutput:
        """Encode a batch and predict tokens.

        Args:
            labels: (B, N) int64, -100 where nothing is predicted. Logits are then computed at the other positions only.
            num_items_in_batch: the loss is the sum over the labelled positions divided by it; None: by their number.
            output_all_logits: logits (B, N, V) although labels are given.

        The other arguments are MixerModel's.
        """
        outputs = self.encoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            document_ids=document_ids,
            coordinates=coordinates,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden_states = outputs.last_hidden_state
        loss = None
        if labels is None:
            logits = self.head(hidden_states)
        elif output_all_logits:
            logits = self.head(hidden_states)
            loss = classification_loss(logits, labels, num_items_in_batch)
        else:
            labelled = (labels.flatten() != IGNORED_LABEL).nonzero().squeeze(1)
            logits = self.head(hidden_states.flatten(0, 1).index_select(0, labelled))
            loss = classification_loss(logits, labels.flatten().index_select(0, labelled), num_items_in_batch)
        return MixerHeadOutput(loss, logits, outputs.hidden_states, outputs.auxiliary_loss)


class MaskedLMHead(nn.Module):
    """Linear, activation, norm, and the logits of the vocabulary."""

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(..., D) -> (..., V)."""
        return self.decoder(self.norm(self.activation(self.dense(hidden_states))))


class MixerClassifier(MixerPreTrainedModel):
    """What classifiers of sequences and of tokens share; each adds its `_logits` and `_loss`."""

    encoder_class: ClassVar[type[MixerModel]]

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        self.encoder = self.encoder_class(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        values: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        coordinates: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> MixerHeadOutput:
        """Encode a batch and classify it.

        Args:
            labels: as the class says.
            num_items_in_batch: the loss is the sum over what has a label, divided by it; None: by the number of labels.

        The other arguments are MixerModel's.
        """
        outputs = self.encoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            values=values,
            document_ids=document_ids,
            coordinates=coordinates,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self._logits(outputs.last_hidden_state, attention_mask)
        loss = None if labels is None else self._loss(logits, labels, num_items_in_batch)
        return MixerHeadOutput(loss, logits, outputs.hidden_states, outputs.auxiliary_loss)

    def _logits(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        raise NotImplementedError

    def _loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None
    ) -> torch.Tensor:
        raise NotImplementedError


class MixerForSequenceClassification(MixerClassifier):
    """The encoder and a classifier, or a regression, of the whole sequence.

    Labels are (B,) int64 classes, or (B,) or (B, labels) float targets.
    config.problem_type: regression | single_label_classification | multi_label_classification; None: regression for one
    label, single-label for integer labels of shape (B,), else multi-label.
    """

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        self.head = SequenceHead(config)
        self.post_init()

    def _logits(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        return self.head(hidden_states, None if attention_mask is None else as_mask(attention_mask))

    def _loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None
    ) -> torch.Tensor:
        kind = self.config.problem_type
        if kind is None:
            if self.config.num_labels == 1:
                kind = "regression"
            else:
                kind = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
        if kind == "single_label_classification":
            return classification_loss(logits, labels, num_items_in_batch)
        targets = labels.view(logits.shape).to(torch.promote_types(logits.dtype, torch.float32))
        wide = logits.to(targets.dtype)
        if kind == "regression":
            losses = functional.mse_loss(wide, targets, reduction="none")
        else:
            losses = functional.binary_cross_entropy_with_logits(wide, targets, reduction="none")
        return losses.mean(1).sum() / _divisor(num_items_in_batch, losses, len(losses))


class SequenceHead(nn.Module):
    """Pooling, linear, tanh, and the logits of the classes."""

    def __init__(self, config: MixerConfig):
        super().__init__()
        probability = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.pooling = config.classifier_pooling
        self.dropout = nn.Dropout(probability)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """(B, N, D) and its mask (B, N) or None -> (B, labels)."""
        if self.pooling == "mean":
            pooled = masked_mean(hidden_states, mask)
        elif mask is None:
            pooled = hidden_states[:, 0]
        else:
            first = mask & (mask.cumsum(1) == 1)
            pooled = keep_valid(hidden_states, first).sum(1)
        return self.classifier(self.dropout(torch.tanh(self.dense(self.dropout(pooled)))))


class MixerForTokenClassification(MixerClassifier):
    """The encoder and a classifier of each token. Labels are (B, N) int64 classes, -100 where there is none."""

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        probability = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(probability)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def _logits(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        return self.classifier(self.dropout(hidden_states))

    def _loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None
    ) -> torch.Tensor:
        return classification_loss(logits, labels, num_items_in_batch)


def classification_loss(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None = None
) -> torch.Tensor:
    """Cross entropy, logits (..., C) and labels (...), summed over the labels that are not -100 and divided.

    The divisor is num_items_in_batch, or the number of those labels. Without any the loss is 0 and has gradients 0.
    Computed in fp32 or wider.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
    labels = labels.flatten()
    total = functional.cross_entropy(wide, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    return total / _divisor(num_items_in_batch, total, (labels != IGNORED_LABEL).sum())


def _divisor(
    num_items_in_batch: int | torch.Tensor | None, like: torch.Tensor, own_count: int | torch.Tensor
) -> int | torch.Tensor:
    """What a summed loss is divided by, at least 1."""
    count = own_count if num_items_in_batch is None else num_items_in_batch
    return count.to(like.device).clamp(min=1) if isinstance(count, torch.Tensor) else max(count, 1)
