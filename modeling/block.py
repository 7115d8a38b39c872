"""The mixer's contract and the residual blocks around it."""

import hashlib
from collections.abc import Sequence

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration import MixerConfig
from .context import BatchContext
from .plain_linear import linear
from .wide_sums import LayerNorm


class PreNormBlock(GradientCheckpointingLayer):
    """x + mixer(norm(x)), then x + feed_forward(norm(x))."""

    normalises_embeddings = True
    needs_final_norm = True

    def __init__(self, config: MixerConfig, mixer: "Mixer"):
        super().__init__()
        self.mixer_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mixer = mixer
        self.feed_forward_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """(B, N, D) -> (B, N, D); the context is handed to the mixer."""
        mixed = self.mixer(self.mixer_norm(hidden_states), context)
        hidden_states = hidden_states + self.dropout(mixed)
        return hidden_states + self.dropout(self.feed_forward(self.feed_forward_norm(hidden_states)))


class BarePreNormBlock(PreNormBlock):
    """The pre-norm block on embeddings that are not normalised, as in the Long Range Arena code of S3Attention."""

    normalises_embeddings = False


class PostNormBlock(PreNormBlock):
    """norm(x + mixer(x)), then norm(x + feed_forward(x)): the block of the Transformer and of BERT."""

    needs_final_norm = False

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """(B, N, D) -> (B, N, D); the context is handed to the mixer."""
        mixed = self.mixer(hidden_states, context)
        hidden_states = self.mixer_norm(hidden_states + self.dropout(mixed))
        return self.feed_forward_norm(hidden_states + self.dropout(self.feed_forward(hidden_states)))


class FeedForward(nn.Module):
    """Linear, activation, linear, on each position."""

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.inner = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.outer = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(B, N, D) -> (B, N, D)."""
        return linear(self.outer, self.activation(linear(self.inner, hidden_states)))


class Mixer(nn.Module):
    """Base of every mixer: a function of the valid tokens only.

    mixer(x, BatchContext(mask))[b, :n_b] == mixer(x[b : b + 1, :n_b], BatchContext())[0] whatever lies in the padding,
    and padded rows come out zero. A batch is right-padded (`masking.Compaction` makes it so).
    """

    supports_causal = False
    isolates_documents = False
    # Block(config, mixer): a module with PreNormBlock's forward and class attributes, and the mixer as `mixer`.
    paper_block: type[nn.Module] = PreNormBlock

    def __init__(self, config: MixerConfig, layer_index: int):
        super().__init__()
        if config.is_causal and not self.supports_causal:
            because = config.why_not_causal(vars(config))
            config.require("is_causal", False, f"false for {config.model_type}, because {because}")
        self.config = config
        self.layer_index = layer_index

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """Mix the tokens of each sample.

        Args:
            hidden_states: (B, N, D).
            context: the rest of the batch; a mixer reads what it needs of it.

        Returns:
            (B, N, D), zero on padding.
        """
        raise NotImplementedError

    @classmethod
    def auxiliary_loss(cls, mixers: Sequence["Mixer"]) -> torch.Tensor | None:
        """A scalar of the parameters of the layers' mixers, summed over these, or None."""
        return None

    @classmethod
    def shared_module(cls, config: MixerConfig) -> nn.Module | None:
        """A module that all layers of one encoder share and the encoder owns, or None.

        In each forward pass the encoder calls it once, as module(embeddings, context), and hands the tuple of tensors
        that it returns to all layers, as `shared` of their context.
        """
        return None

    @classmethod
    def share(
        cls, mixers: Sequence["Mixer"], hidden_states: torch.Tensor, context: BatchContext
    ) -> Sequence[tuple[torch.Tensor, ...]] | None:
        """What each layer of one encoder reads of a batch beside the hidden states, without parameters, or None.

        The encoder calls it once in each forward pass, with all layers' mixers in their order, the embeddings (B, N, D)
        and a context that has what `shared_module` returned, and hands to each layer its tensors, as `shared` of its
        context. A layer that chose them itself, by its number, would be compiled apart from the others.
        """
        return None

    def use_shared(self, module: nn.Module) -> None:
        """Take the encoder's `shared_module` in place of an own one, without owning it."""
        raise NotImplementedError


def buffer_generator(config: MixerConfig, layer_index: int, *names: str | int) -> torch.Generator:
    """A private CPU generator that depends on nothing but (buffer_seed, layer) and names of the buffer."""
    digest = hashlib.sha256(" ".join(map(str, (config.buffer_seed, layer_index, *names))).encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
