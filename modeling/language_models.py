"""Language models on the encoder, masked and causal.

Logits are computed where there is a label alone: with a large vocabulary, those of all positions would be the largest
tensor of the whole model. Who asks for none gets none, and on a CPU only some hundred rows of them are there at a time.
"""

import copy
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional
from transformers import GenerationMixin
from transformers.activations import ACT2FN
from transformers.utils import can_return_tuple

from longmix.kernels.linear.products import few_rows, is_chosen
from longmix.kernels.linear_cross_entropy.portable import are_right
from longmix.kernels.selection import stands_for

from .configuration import MixerConfig
from .heads import MixerHeadOutput
from .losses import IGNORED_LABEL, check_labels, classification_loss, count_items, decoded_loss
from .model import MixerModel, MixerPreTrainedModel
from .plain_linear import are_bare, are_unwatched, linear
from .precision import dtype_of_products
from .wide_sums import LayerNorm

# On a CPU oneDNN compiles every product of matrices in half precision for the number of rows that it meets, which takes
# several times as long as the product itself, and every batch hides another number of tokens. A head gets multiples of:
ROWS = 64


class MixerLanguageModel(MixerPreTrainedModel):
    """Base of both language models: logits at the labelled positions, and their loss."""

    encoder_class: ClassVar[type[MixerModel]]
    accepts_loss_kwargs = True  # transformers' Trainer then hands over num_items_in_batch

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        if config.input_channels is not None:
            config.require("input_channels", False, "null (tokens) for a language model")
        self.encoder = self.encoder_class(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        coordinates: torch.Tensor | None = None,
        segment_offsets: torch.Tensor | None = None,
        longest_segment: int | None = None,
        labels: torch.Tensor | None = None,
        target_positions: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        output_all_logits: bool = False,
        output_logits: bool = True,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> MixerHeadOutput:
        """Encode a batch and predict tokens.

        Args:
            labels: (B, N) int64, -100 where nothing is predicted. Logits are then computed at the other positions only.
            target_positions: (labelled,) int64, in ascending order the indices of the positions among all B N, row by
                row, that predict something: those of the labels, in a causal model those before them. Without it the
                model waits for the device once to find them. Its values are trusted: to check them would wait too.
            num_items_in_batch: the loss is the sum over the labelled positions divided by it; None: by their number.
            output_all_logits: logits (B, N, V) although labels are given.
            output_logits: False, with labels: the answer has `is_right` in place of logits. On a CPU this takes less
                memory and less time.

        The other arguments are MixerModel's.
        """
        outputs = self.encoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            document_ids=document_ids,
            coordinates=coordinates,
            segment_offsets=segment_offsets,
            longest_segment=longest_segment,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        hidden_states = outputs.last_hidden_state
        if labels is None:
            auxiliary_loss = self._told_auxiliary_loss(outputs, labels)
            return MixerHeadOutput(None, self.head(hidden_states), outputs.hidden_states, auxiliary_loss)
        check_labels(labels, hidden_states.shape[:2])
        labels = self._targets(labels, document_ids)
        if not output_all_logits:
            if target_positions is None:
                target_positions = (labels.flatten() != IGNORED_LABEL).nonzero().squeeze(1)
            hidden_states = hidden_states.flatten(0, 1).index_select(0, target_positions)
            labels = labels.flatten().index_select(0, target_positions)
        logits = is_right = None
        if output_logits:
            logits = self.head(hidden_states)
            loss = classification_loss(logits, labels, num_items_in_batch)
        else:
            padded = in_few_sizes(hidden_states.flatten(0, -2), labels.flatten())
            loss, is_right = self._loss_alone(*padded, num_items_in_batch)
            is_right = is_right[: labels.numel()]
        loss, task_loss = self._training_loss(loss, outputs, count_items(labels), num_items_in_batch)
        auxiliary_loss = self._told_auxiliary_loss(outputs, labels)
        return MixerHeadOutput(loss, logits, outputs.hidden_states, auxiliary_loss, task_loss, is_right)

    def _targets(self, labels: torch.Tensor, document_ids: torch.Tensor | None) -> torch.Tensor:
        """Labels of what each position predicts, (B, N)."""
        return labels

    def _loss_alone(
        self, hidden_states: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of hidden states (M, D) for labels (M,), and which of these have the largest logit, (M,) bool."""
        decoding = self._decoding(hidden_states)
        if decoding is not None:
            return decoded_loss(*decoding, labels, num_items_in_batch)
        logits = self.head(hidden_states)
        return classification_loss(logits, labels, num_items_in_batch), are_right(logits, labels)

    def _decoding(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, nn.Linear] | None:
        """What the head's last layer reads of hidden states (M, D), and that layer; None where something else stands in
        its place, and only a call of the head does what is wanted.
        """
        raise NotImplementedError


def in_few_sizes(hidden_states: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states (M, D) and labels (M,), with rows that do not count behind them where it saves time (`ROWS`)."""
    dtype, missing = dtype_of_products(hidden_states), 0
    if stands_for(hidden_states.device) == "cpu" and dtype in (torch.bfloat16, torch.float16):
        missing = -len(labels) % ROWS
    elif stands_for(hidden_states.device) == "cpu" and dtype == torch.float32 and is_chosen():
        missing = few_rows(len(labels)) - len(labels)
    if missing == 0:
        return hidden_states, labels
    return functional.pad(hidden_states, (0, 0, 0, missing)), functional.pad(labels, (0, missing), value=IGNORED_LABEL)


class MixerForMaskedLM(MixerLanguageModel):
    """The encoder and a masked-language-model head whose output matrix is the token embedding.

    Raises:
        ValueError: at construction, if the model reads real values instead of tokens.
    """

    _tied_weights_keys: ClassVar[dict[str, str]] = {"head.decoder.weight": "encoder.embeddings.word_embeddings.weight"}

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        self.head = MaskedLMHead(config)
        self.post_init()

    def _decoding(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, nn.Linear] | None:
        if type(self.head) is not MaskedLMHead or not are_unwatched([self.head]) or not are_bare([self.head.decoder]):
            return None
        return self.head.before_decoder(hidden_states), self.head.decoder

    def get_output_embeddings(self) -> nn.Linear:
        """The layer that gives the logits."""
        return self.head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the layer that gives the logits."""
        self.head.decoder = new_embeddings


class MixerForCausalLM(MixerLanguageModel, GenerationMixin):
    """The encoder, made causal (it sets config.is_causal), and the logits of the next token.

    `labels` are the input ids, -100 where nothing is predicted; they are shifted here. With `document_ids` the first
    token of a document is not predicted; for transformers' Trainer, which counts labels and smooths them by itself,
    give these -100, too. `generate` works without a cache: every new token encodes the whole text, as
    one document.

    Raises:
        ValueError: at construction, if the mixer cannot be causal or the model reads real values instead of tokens; by
            `generate`, for document_ids, coordinates and position_ids.
    """

    _tied_weights_keys: ClassVar[dict[str, str]] = {"head.weight": "encoder.embeddings.word_embeddings.weight"}

    def __init__(self, config: MixerConfig):
        config = copy.deepcopy(config)  # the caller's stays as it is, for other models
        config.is_causal = True
        config.use_cache = False
        super().__init__(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _decoding(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, nn.Linear] | None:
        return (hidden_states, self.head) if are_bare([self.head]) else None

    def get_output_embeddings(self) -> nn.Linear:
        """The layer that gives the logits."""
        return self.head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the layer that gives the logits."""
        self.head = new_embeddings

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs
    ) -> dict[str, torch.Tensor | None]:
        """The whole text so far; there is no cache."""
        for name in ("document_ids", "coordinates", "position_ids"):
            if kwargs.get(name) is not None:
                raise ValueError(f"generate was given {name}; allowed: input_ids, attention_mask, token_type_ids")
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": kwargs.get("token_type_ids"),
        }

    def _targets(self, labels: torch.Tensor, document_ids: torch.Tensor | None) -> torch.Tensor:
        targets = labels[:, 1:]
        if document_ids is not None:
            targets = targets.where(document_ids[:, 1:] == document_ids[:, :-1], IGNORED_LABEL)
        return functional.pad(targets, (0, 1), value=IGNORED_LABEL)[:, : labels.shape[1]]


class MaskedLMHead(nn.Module):
    """Linear, activation, norm, and the logits of the vocabulary."""

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(..., D) -> (..., V)."""
        return linear(self.decoder, self.before_decoder(hidden_states))

    def before_decoder(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(..., D) -> (..., D), of which `decoder` makes the logits."""
        return self.norm(self.activation(linear(self.dense, hidden_states)))
