"""Heads on the encoder: classification and regression of sequences, pairs and tokens; and what all heads answer."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from transformers.utils import ModelOutput, can_return_tuple

from .configuration import MixerConfig
from .losses import check_labels, classification_loss, count_items, sequence_loss
from .masking import as_mask, keep_valid, masked_mean
from .model import MixerModel, MixerPreTrainedModel


@dataclass
class MixerHeadOutput(ModelOutput):
    """Output of a model with a head.

    Args:
        loss: scalar, when labels are given; in training mode with its share of the auxiliary loss
            (config.auxiliary_loss_weight).
        logits: language models: (labelled, V) in row-major order when labels are given, else (B, N, V);
            classification of sequences and pairs: (B, labels); of tokens: (B, N, labels); forecasts: (B, horizon, C).
        hidden_states: see MixerModelOutput; None for pairs.
        auxiliary_loss: see MixerModelOutput; None of answers, that is without labels and in evaluation mode.
        task_loss: the loss without its share of the auxiliary loss, detached, where it has one.
        is_right: language models asked for no logits: (labelled,) bool, whether the label has the largest logit; of all
            B N positions if `output_all_logits`, False where there is no label.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    auxiliary_loss: torch.Tensor | None = None
    task_loss: torch.Tensor | None = None
    is_right: torch.Tensor | None = None


# Classifiers and regressions: of whole sequences, of pairs of them, of tokens. They read tokens or real values.


class MixerClassifier(MixerPreTrainedModel):
    """Base of the classifiers of sequences and of tokens; each adds its `_logits` and `_loss`."""

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
        segment_offsets: torch.Tensor | None = None,
        longest_segment: int | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
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
            segment_offsets=segment_offsets,
            longest_segment=longest_segment,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        logits = self._logits(outputs.last_hidden_state, attention_mask)
        loss = task_loss = None
        if labels is not None:
            loss = self._loss(logits, labels, num_items_in_batch)
            loss, task_loss = self._training_loss(loss, outputs, count_items(labels), num_items_in_batch)
        auxiliary_loss = self._told_auxiliary_loss(outputs, labels)
        return MixerHeadOutput(loss, logits, outputs.hidden_states, auxiliary_loss, task_loss)

    def _logits(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        raise NotImplementedError

    def _loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None
    ) -> torch.Tensor:
        raise NotImplementedError


class MixerForSequenceClassification(MixerClassifier):
    """The encoder and a classifier, or a regression, of the whole sequence.

    Labels are (B,) int64 classes, or (B,) or (B, labels) float targets; see `losses.sequence_loss`.
    """

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        self.head = SequenceHead(config, config.hidden_size)
        self.post_init()

    def _logits(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        return self.head(pool(hidden_states, attention_mask, self.config.classifier_pooling))

    def _loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None
    ) -> torch.Tensor:
        return sequence_loss(self.config, logits, labels, num_items_in_batch)


class MixerForSequencePairClassification(MixerPreTrainedModel):
    """Two sequences encoded separately, u and v pooled, and a classifier of [u, v, u * v, u - v].

    Labels are (B,) int64 classes, or (B,) or (B, labels) float targets; see `losses.sequence_loss`. transformers
    has no Auto class for it: longmix.modeling.AutoModelForSequencePairClassification is ours.
    """

    encoder_class: ClassVar[type[MixerModel]]

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        self.encoder = self.encoder_class(config)
        self.head = SequenceHead(config, 4 * config.hidden_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        values: torch.Tensor | None = None,
        coordinates: torch.Tensor | None = None,
        input_ids_b: torch.Tensor | None = None,
        attention_mask_b: torch.Tensor | None = None,
        token_type_ids_b: torch.Tensor | None = None,
        inputs_embeds_b: torch.Tensor | None = None,
        values_b: torch.Tensor | None = None,
        coordinates_b: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
    ) -> MixerHeadOutput:
        """Encode both sequences of each sample and classify the pair.

        Args:
            input_ids: (B, N), the first sequence, and input_ids_b (B, N'), the second; likewise the other arguments,
                which are MixerModel's.
            labels: as the class says.
            num_items_in_batch: the loss is the sum over the pairs divided by it; None: by their number.
        """
        first = self.encoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            values=values,
            coordinates=coordinates,
            return_dict=True,
        )
        second = self.encoder(
            input_ids=input_ids_b,
            attention_mask=attention_mask_b,
            token_type_ids=token_type_ids_b,
            inputs_embeds=inputs_embeds_b,
            values=values_b,
            coordinates=coordinates_b,
            return_dict=True,
        )
        pooling = self.config.classifier_pooling
        u = pool(first.last_hidden_state, attention_mask, pooling)
        v = pool(second.last_hidden_state, attention_mask_b, pooling)
        logits = self.head(torch.cat([u, v, u * v, u - v], dim=-1))
        loss = task_loss = None
        if labels is not None:
            loss = sequence_loss(self.config, logits, labels, num_items_in_batch)
            loss, task_loss = self._training_loss(loss, first, count_items(labels), num_items_in_batch)
        auxiliary_loss = self._told_auxiliary_loss(first, labels)
        return MixerHeadOutput(loss, logits, None, auxiliary_loss, task_loss)


class SequenceHead(nn.Module):
    """Linear, tanh, and the logits of the classes, from pooled hidden states."""

    def __init__(self, config: MixerConfig, pooled_size: int):
        super().__init__()
        probability = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(probability)
        self.dense = nn.Linear(pooled_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """(B, pooled_size) -> (B, labels)."""
        return self.classifier(self.dropout(torch.tanh(self.dense(self.dropout(pooled)))))


def pool(hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, pooling: str) -> torch.Tensor:
    """One vector for each sample, (B, N, D) -> (B, D): the mean of its valid tokens, or the first of them."""
    mask = None if attention_mask is None else as_mask(attention_mask)
    if pooling == "mean":
        return masked_mean(hidden_states, mask)
    if mask is None:
        return hidden_states[:, :1].sum(1)  # zero for a sequence without tokens
    return keep_valid(hidden_states, mask & (mask.cumsum(1) == 1)).sum(1)


class MixerForTokenClassification(MixerClassifier):
    """The encoder and a classifier of each token. Labels are (B, N) int64 classes, -100 where there is none."""

    accepts_loss_kwargs = True  # as of language models: labels are counted as the loss counts them

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
        check_labels(labels, logits.shape[:2])
        return classification_loss(logits, labels, num_items_in_batch)
