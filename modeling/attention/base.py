"""Base of every kind of attention: projections, heads and the padding contract."""

import torch
from torch import nn

from longmix.kernels import ops

from ..configuration import MixerConfig
from ..context import BatchContext
from ..masking import keep_valid
from ..plain_linear import linear


class Attention(nn.Module):
    """Queries, keys and values of H heads, one way to `attend`, and an output projection.

    A function of the valid tokens only, as every Mixer is. `width` is the number of channels that come in and go out,
    where it is not hidden_size; queries, keys and values have hidden_size channels in any case.
    """

    def __init__(self, config: MixerConfig, width: int | None = None):
        super().__init__()
        self.config = config
        self.heads = config.num_attention_heads
        width = config.hidden_size if width is None else width
        self.projection = nn.Linear(width, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, width)

    def stacked_matrices(self) -> dict[str, tuple[int, int, int]]:
        """Queries, keys and values: (matrices, rows, columns) of the parameter that stacks them."""
        rows, columns = self.projection.weight.shape
        return {"projection.weight": (3, rows // 3, columns)}

    def forward(self, hidden_states: torch.Tensor, context: BatchContext) -> torch.Tensor:
        """(B, N, D) -> (B, N, D), zero on padding."""
        return self.join(self.attend(*self.placed(hidden_states, context), context), context.mask)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: BatchContext
    ) -> torch.Tensor:
        """(B, H, N, d) each, finite everywhere -> (B, H, N, d), finite everywhere."""
        raise NotImplementedError

    def extend(self, positions: int) -> None:
        """Make room for sequences of up to `positions` tokens; shorter ones keep their results.

        Nothing to do unless a kind has parameters for each position.
        """

    def project(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(B, N, D) -> queries, keys and values (B, H, N, d); on padding they are the projection's bias."""
        return self.heads_of(self.projected(hidden_states, attention_mask))

    def placed(
        self, hidden_states: torch.Tensor, context: BatchContext
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`project`, with rotary positions where the configuration says so."""
        projected = self.projected(hidden_states, context.mask)
        if self.config.position_embedding_type != "rope":
            return self.heads_of(projected)
        parts = self._parts_of(projected)
        return ops.rotary_heads(parts, *context.rotation(parts, self.config.rope_theta))

    def projected(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """(B, N, D) -> (B, N, 3 D), on padding the bias."""
        return linear(self.projection, keep_valid(hidden_states, attention_mask))

    def heads_of(self, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What `projection` makes, (B, N, 3 D) -> queries, keys and values (B, H, N, d)."""
        # Taken apart as they lie: so the gradients are put together in one pass.
        parts = self._parts_of(projected).unbind(2)
        return tuple(part.transpose(1, 2) for part in parts)

    def _parts_of(self, projected: torch.Tensor) -> torch.Tensor:
        """(B, N, 3 D) -> (B, N, 3, H, d)."""
        return projected.unflatten(2, (3, self.heads, -1))

    def join(self, mixed: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """(B, H, N, d) -> (B, N, D) through the output projection, zero on padding."""
        return keep_valid(linear(self.output, mixed.transpose(1, 2).flatten(2)), attention_mask)

    @property
    def dropout_probability(self) -> float:
        """Dropout of the attention weights at present: zero in evaluation."""
        return self.config.attention_probs_dropout_prob if self.training else 0.0
