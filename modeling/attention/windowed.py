"""Attention to the neighbours within a window."""

import torch

from longmix.kernels.common.windows import Windows

from ..context import BatchContext
from .base import Attention
from .dot_product import dot_product_attention


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
        windows = Windows.over(positions, self.config.attention_window // 2)
        query = windows.rows(query)
        key, value = (windows.around(x) for x in (key, value))
        mask = context.mask
        if mask is None:
            mask = torch.ones(1, positions, dtype=torch.bool, device=query.device).expand(batch, -1)
        allowed = self.allowed_pairs(windows, windows.around_flags(mask))
        # Blocks go to the batch, for the kernels of attention know four axes.
        query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
        mixed = dot_product_attention(
            query, key, value, attn_mask=allowed.flatten(0, 1)[:, None], dropout_p=self.dropout_probability
        )
        return windows.join(mixed.unflatten(0, (batch, windows.blocks)).transpose(1, 2))

    def allowed_pairs(self, windows: Windows, valid: torch.Tensor) -> torch.Tensor:
        """Keys that each row of a block sees, bool (B, C, size, keys), of the `valid` ones (B, C, size + 2 outside).

        Every row sees a key, itself on padding, so that no row of the softmax is empty.
        """
        distance = windows.distance(valid.device)
        return (valid[:, :, None, :] & (distance.abs() <= windows.reach)) | (distance == 0)
