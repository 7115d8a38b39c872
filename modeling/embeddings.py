"""Embeddings: tokens or real values, token types and positions, as hidden states (B, N, D)."""

import math

import torch
from torch import nn

from .configuration import MixerConfig
from .masking import keep_valid
from .plain_linear import linear
from .wide_sums import Embedding, LayerNorm


class Embeddings(nn.Module):
    """Embeddings of tokens (or of `values`), token types and positions; zero on padding, whatever lies there.

    The batch is right-padded: position i of a sample is its i-th valid token.
    """

    def __init__(self, config: MixerConfig, normalise: bool):
        super().__init__()
        width = config.hidden_size
        self.config = config
        if config.input_channels is None:
            self.word_embeddings = Embedding(config.vocab_size, width)
        else:
            self.value_projection = nn.Linear(config.input_channels, width)
        if config.type_vocab_size:
            self.token_type_embeddings = Embedding(config.type_vocab_size, width)
        if config.position_embedding_type == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        elif config.position_embedding_type == "gru":
            # A left-to-right network: what a valid token gets never depends on the padding behind it.
            self.position_network = nn.GRU(
                width, width, num_layers=2, batch_first=True, dropout=config.hidden_dropout_prob
            )
        self.norm = LayerNorm(width, eps=config.layer_norm_eps) if normalise else nn.Identity()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def resize_positions(self) -> None:
        """Bring learned positions to the configuration's number; those that exist stay, new ones are drawn."""
        if self.config.position_embedding_type != "learned":
            return
        old = self.position_embeddings.weight
        new = torch.empty(self.config.max_position_embeddings, old.shape[1], dtype=old.dtype, device=old.device)
        new.normal_(std=self.config.initializer_range)[: len(old)] = old.detach()
        self.position_embeddings = nn.Embedding.from_pretrained(new, freeze=not old.requires_grad)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        values: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Embed one of input_ids (B, N), inputs_embeds (B, N, D), values (B, N, C); mask (B, N) bool -> (B, N, D)."""
        if input_ids is not None:
            # Padding may hold any id, even one outside the vocabulary.
            embeddings = self.word_embeddings(keep_valid(input_ids, mask))
        elif values is not None:
            embeddings = linear(self.value_projection, keep_valid(values, mask).to(self.value_projection.weight.dtype))
        else:
            embeddings = keep_valid(inputs_embeds, mask)
        if self.config.type_vocab_size:
            if token_type_ids is None:  # the first type for all, by a call, which offloading heeds
                types = torch.zeros((), dtype=torch.int64, device=embeddings.device)
            else:
                types = keep_valid(token_type_ids, mask)
            embeddings = embeddings + self.token_type_embeddings(types)
        embeddings = self.add_positions(embeddings)
        return keep_valid(self.dropout(self.norm(embeddings)), mask)

    def add_positions(self, embeddings: torch.Tensor) -> torch.Tensor:
        """(B, N, D) -> (B, N, D) with the configured position encoding added."""
        kind = self.config.position_embedding_type
        length = embeddings.shape[1]
        if kind == "learned":
            return embeddings + self.position_embeddings(torch.arange(length, device=embeddings.device))
        if kind == "sinusoidal":
            # The size of a token embedding at initialisation, so that neither drowns the other.
            scale = math.sqrt(2) * self.config.initializer_range
            waves = sinusoids(length, embeddings.shape[2], embeddings.device)
            return embeddings + (scale * waves).to(embeddings.dtype)
        if kind == "gru" and embeddings.numel():  # the network refuses empty tensors
            # Of any half precision torch's autocast makes fp16 on a GPU, in which small gradients are lost.
            with torch.autocast(embeddings.device.type, enabled=False):
                return embeddings + self.position_network(embeddings.to(self.position_network.weight_ih_l0.dtype))[0]
        return embeddings


def sinusoids(length: int, width: int, device: torch.device) -> torch.Tensor:
    """Sines and cosines of geometric wavelengths, 2 pi to 20000 pi positions: (length, width), fp32."""
    rate = torch.exp(torch.arange(0, width, 2, device=device, dtype=torch.float32) * (-math.log(10000.0) / width))
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)
