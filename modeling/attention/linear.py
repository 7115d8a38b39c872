"""Attention of linear cost through features of queries and keys: elu + 1, and Performer's random features."""

import math

import torch
from torch import nn
from transformers import initialization as init

from longmix.kernels import ops

from ..block import buffer_generator
from ..configuration import MixerConfig
from ..context import BatchContext
from ..wide_sums import LayerNorm
from .base import Attention
from .features import orthogonal_projection


class LinearAttention(Attention):
    """phi(Q) (phi(K)^T V) / phi(Q) (phi(K)^T 1) with phi(x) = elu(x) + 1.

    Katharopoulos et al., Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention, eqs. 5 and 7.
    Padded keys are left out of both sums, and nothing is added to the denominator, which is positive.
    """

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: BatchContext
    ) -> torch.Tensor:
        """See Attention."""
        return ops.feature_map_attention(query, key, value, "elu", context.lengths)


class PerformerAttention(Attention):
    """Softmax attention estimated from m positive random features (Performers: FAVOR+, eq. 4 and lemma 1).

    Deviations from the paper and its code:
    - projections are drawn once, orthogonal in blocks, and kept as a buffer: no redrawing while training;
    - no constant is added to the features, which would make them depend on the padding through the maximum that they
      are divided by: sums are kept on the scale of their largest terms instead.
    """

    def __init__(self, config: MixerConfig, layer_index: int, *names: str | int, width: int | None = None):
        super().__init__(config, width)
        self.layer_index = layer_index
        self.names = names
        size = config.hidden_size // config.num_attention_heads
        features = config.num_random_features
        if features is None:
            features = max(1, int(size * math.log(size)))
        # A conversion after creation: DeepSpeed's ZeRO-3 context makes every new float tensor half precision.
        self.register_buffer("directions", torch.empty(features, size).to(torch.float32))
        self.reset()

    def reset(self) -> None:
        """Draw the projection, the same in every head."""
        generator = buffer_generator(self.config, self.layer_index, "performer", *self.names)
        init.copy_(self.directions, orthogonal_projection(*self.directions.shape, generator))

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: BatchContext
    ) -> torch.Tensor:
        """See Attention."""
        return ops.random_feature_attention(query, key, value, self.directions, lengths=context.lengths)


class ReluPerformerAttention(Attention):
    """Linear attention with features relu(x / d^(1/4)) + 1e-3 of normalised queries and keys (Performers, section 2.3).

    What the code published with WavSpA runs under the name of Performer, without any random projection (WS-5):
    queries, keys and values are layer-normalised in each head first.
    """

    def __init__(self, config: MixerConfig, width: int | None = None):
        super().__init__(config, width)
        size = config.hidden_size // config.num_attention_heads
        self.norms = nn.ModuleList(LayerNorm(size, eps=config.layer_norm_eps) for _ in range(3))

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: BatchContext
    ) -> torch.Tensor:
        """See Attention."""
        query, key, value = (norm(x) for norm, x in zip(self.norms, (query, key, value), strict=True))
        return ops.feature_map_attention(query, key, value, "relu", context.lengths)
