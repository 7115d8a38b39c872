"""Linear attention whose features carry a mask of relative positions."""

import torch
from torch import nn
from torch.nn import functional
from transformers import initialization as init

from longmix.kernels import ops

from ..attention import Attention, orthogonal_projection, positive_log_features
from ..block import buffer_generator
from ..context import BatchContext
from .configuration_flt import FLTConfig
from .neighbours import Neighbours
from .spectral_mask import SpectralMask, biases

# Added to features behind a ReLU: a query for which all of them are zero sees the mean of the values.
RELU_FLOOR = 1e-3


class SpectralAttention(Attention):
    """softmax(N^ + Q K^T / sqrt d) V estimated by m random features at linear cost (FLT, algorithm 1).

    Deviations from the paper, besides those of `SpectralMask`:
    - the features of a position are pairs of real numbers, so that the projection has 2 r + d columns, where the paper
      counts m + r (FL-1);
    - the features of the concatenation [phi(r_i), q_i d^(-1/4)] are those of the content times those of the position;
      in the logarithm a bias that all samples share, and its constant norm cancels (FL-3). The result is the same;
    - the stabiliser is the running maximum of the valid keys, which cancels exactly: no epsilon, no look into the
      future or at padding;
    - frequencies and projections are drawn once and kept; projections are orthogonal blocks (FL-8);
    - `feature_kind="relu"` puts the position into the ReLU beside the content, as the paper does for images: extra
      inputs, no mask in an exponent (FL-9); the features have a floor of 1e-3;
    - documents are counted from their own start: the mask is the same wherever one stands, but an estimate of it by m
      features is not (FL-6);
    - with `exact_reach` the nearest tokens are attended to exactly as well (FL-10), see Neighbours.
    """

    def __init__(self, config: FLTConfig, layer_index: int):
        super().__init__(config)
        self.layer_index = layer_index
        self.mask = SpectralMask(config, layer_index)
        self.neighbours = Neighbours(config) if config.exact_reach else None
        shape = (config.num_random_features, 2 * config.num_frequencies + config.hidden_size // self.heads)
        if config.feature_kind == "relu":
            self.feature_projection = nn.Parameter(torch.empty(shape))
        else:
            self.register_buffer("feature_projection", torch.empty(shape).to(torch.float32))
        self.reset()

    def reset(self) -> None:
        """Draw the projection of positions and content, (m, 2 r + d)."""
        generator = buffer_generator(self.config, self.layer_index, "projection")
        width = 2 * self.config.num_frequencies + self.config.hidden_size // self.heads
        init.copy_(self.feature_projection, orthogonal_projection(self.config.num_random_features, width, generator))

    def use_mask(self, mask: SpectralMask) -> None:
        """Take a mask that another module owns in place of the own one."""
        del self.mask
        # Behind torch's back: it is the encoder's sub-module, and stands in the state once.
        self.__dict__["mask"] = mask

    def weights(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """The matrices that `forward` applies to the values, (B, H, N, N); rows sum to 1, zero on padding."""
        query, key, _ = self.project(hidden_states, context.mask)
        batch, _, positions, _ = query.shape
        wide = torch.promote_types(query.dtype, torch.float32)
        identity = torch.eye(positions, dtype=wide, device=query.device).expand(batch, self.heads, -1, -1)
        return self.attend(query, key, identity, context)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: BatchContext
    ) -> torch.Tensor:
        """Queries and keys (B, H, N, d), values (B, H, N, c) -> (B, H, N, c), zero on padding."""
        mask = self.mask(query, context) if context.shared is None else context.shared
        query_features, key_features = self._features(query, key, *mask)
        operation = ops.linear_attention if self.config.feature_kind == "relu" else ops.feature_attention
        lengths, documents, causal = context.lengths, context.document_ids, self.config.is_causal
        estimate = operation(query_features, key_features, value, lengths, causal=causal, document_ids=documents)
        return estimate if self.neighbours is None else self.neighbours(query, key, value, estimate, context)

    def _features(
        self, query: torch.Tensor, key: torch.Tensor, waves: torch.Tensor, factors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of queries and keys behind a ReLU, else their logarithms: (B, H, N, m), in fp32 or wider."""
        wide = torch.promote_types(query.dtype, torch.float32)
        projection = self.feature_projection.to(wide)
        for_positions, for_content = projection.split([2 * self.config.num_frequencies, query.shape[-1]], dim=1)
        with torch.autocast(query.device.type, enabled=False):
            features = []
            of_positions = biases(waves, factors, for_positions)
            for content, bias, is_query in zip((query, key), of_positions, (True, False), strict=True):
                if self.config.feature_kind == "relu":
                    scaled = content.to(wide) * content.shape[-1] ** -0.25
                    features.append(functional.relu(scaled @ for_content.T + bias) + RELU_FLOOR)
                else:
                    features.append(positive_log_features(content, for_content, bias, relative=is_query))
        return tuple(features)
