"""The angles of rotary positions, by which queries and keys are turned (Su et al., RoFormer, 2021)."""

from typing import NamedTuple

import torch

from longmix.kernels.common.documents import document_starts


class Rotation(NamedTuple):
    """The angles of positions, as `ops.rotary_heads` reads them: (N, d) or (B, 1, N, d) each, fp32 or wider.

    Args:
        cosine: of the angle of each feature's pair.
        sine: its sine, negative for the first half of the features.
    """

    cosine: torch.Tensor
    sine: torch.Tensor


def positions_in_documents(document_ids: torch.Tensor | None, length: int, device: torch.device) -> torch.Tensor:
    """The position of each token in its document, (N,) int64 of one document a row, else (B, N) of `document_ids`.

    The batch is right-padded, as every mixer sees it; what positions padding has makes no difference.
    """
    within = torch.arange(length, device=device)
    return within if document_ids is None else within - document_starts(document_ids)


def make_rotation(positions: torch.Tensor, size: int, theta: float, dtype: torch.dtype) -> Rotation:
    """The angles m * theta^(-2 i / d) of positions m and pairs i of d features (RoFormer, eq. 15).

    Args:
        positions: (N,) or (B, N), whole numbers.
        size: d, the features of a head, an even number.
        theta: base of the wavelengths, 2 pi to 2 pi theta positions.
        dtype: of the queries and keys; angles in half precision would be wrong from some hundred positions on, so they
            are computed in fp32 at least.
    """
    wide = torch.promote_types(dtype, torch.float32)
    frequencies = 1 / theta ** (torch.arange(0, size, 2, device=positions.device).to(wide) / size)
    angles = positions.to(wide).unsqueeze(-1) * frequencies
    cosine, sine = angles.cos(), angles.sin()
    rotation = torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)
    return Rotation(*(part.unsqueeze(1) if positions.dim() == 2 else part for part in rotation))
