"""The paper's residual block: PostScaleNorm around the convolution and a gated feed-forward network."""

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ..context import BatchContext
from ..masking import keep_valid
from .configuration_converter import ConverterConfig
from .layers import GatedFeedForward, ScaleNorm


class ConverterBlock(GradientCheckpointingLayer):
    """z = norm(convolution(x) + x), complex, then norm(GFFN(z) + zeta Re z + (1 - zeta) Im z) (Converter, section 4.3).

    Read as the published code has it: the sum inside the second norm is over real tokens (CV-10). The first block
    normalises the embeddings, which nothing else does.
    """

    normalises_embeddings = False
    needs_final_norm = False

    def __init__(self, config: ConverterConfig, mixer: nn.Module):
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.embedding_norm = ScaleNorm(width, eps) if mixer.layer_index == 0 else nn.Identity()
        self.mixer = mixer
        self.mixer_norm = ScaleNorm(width, eps)
        self.feed_forward = GatedFeedForward(width, config.intermediate_size, config.hidden_dropout_prob)
        self.feed_forward_norm = ScaleNorm(width, eps)

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """(B, N, D) -> (B, N, D); the context is handed to the mixer."""
        hidden_states = self.embedding_norm(keep_valid(hidden_states, context.mask))
        mixed = self.mixer(hidden_states, context, as_pairs=True)
        residual = torch.stack([hidden_states, torch.zeros_like(hidden_states)], 2)
        mixed = self.mixer_norm(mixed + residual)
        hidden_states = self.feed_forward_norm(self.feed_forward(mixed) + self.mixer.readout(mixed))
        return keep_valid(hidden_states, context.mask)
