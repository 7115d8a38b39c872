"""Attention to the neighbours within a window."""

import torch
from torch.nn import functional

from ..context import BatchContext
from .base import Attention
from .dot_product import dot_product_attention

# Rows that are computed together, unless the window is wider: fewer would make small matrix products.
SMALLEST_BLOCK = 32


class WindowedAttention(Attention):
    """Softmax attention of each token to those at most w // 2 positions away, w = `attention_window`, and to itself.

    The sliding window of Longformer (Beltagy et al., section 3.1) without its global tokens. Blocks of max(w // 2, 32)
    rows look at themselves and at w // 2 rows on either side, so cost and memory are linear in N.
    """

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: BatchContext
    ) -> torch.Tensor:
        """See Attention."""
        batch, _, positions, _ = query.shape
        if positions == 0:
            return value
        reach = outside = self.config.attention_window // 2
        size = max(reach, SMALLEST_BLOCK)
        if positions <= size + 2 * outside:  # one block that sees itself costs no more
            size, outside = positions, 0
        blocks = -(-positions // size)
        missing = blocks * size - positions
        around = (outside, missing + outside)

        query = functional.pad(query, (0, 0, 0, missing)).unflatten(2, (blocks, size))
        key, value = (
            functional.pad(x, (0, 0, *around)).unfold(2, size + 2 * outside, size).transpose(-1, -2)
            for x in (key, value)
        )
        mask = context.mask
        if mask is None:
            mask = torch.ones(1, positions, dtype=torch.bool, device=query.device).expand(batch, -1)
        valid = functional.pad(mask, around).unfold(1, size + 2 * outside, size)
        allowed = self.allowed_pairs(size, outside, reach, valid)
        # Blocks go to the batch, for the kernels of attention know four axes.
        query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
        mixed = dot_product_attention(
            query, key, value, attn_mask=allowed.flatten(0, 1)[:, None], dropout_p=self.dropout_probability
        )
        mixed = mixed.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)
        return mixed[:, :, :positions]

    def allowed_pairs(self, size: int, outside: int, reach: int, valid: torch.Tensor) -> torch.Tensor:
        """Keys that each row of a block sees, bool (B, C, size, keys), of the `valid` ones (B, C, size + 2 outside).

        Every row sees a key, itself on padding, so that no row of the softmax is empty.
        """
        row = torch.arange(size, device=valid.device)[:, None]
        distance = torch.arange(-outside, size + outside, device=valid.device) - row
        return (valid[:, :, None, :] & (distance.abs() <= reach)) | (distance == 0)
