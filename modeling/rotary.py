"""Rotary positions: queries and keys turned by angles that grow with their position (Su et al., RoFormer, 2021)."""

from typing import NamedTuple

import torch

from longmix.kernels.common.documents import document_starts


class Rotation(NamedTuple):
    """The angles of positions, as `rotate` reads them: (N, d) or (B, 1, N, d) each, fp32 or wider.

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


def rotate(features: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Turn each pair (i, i + d / 2) of features by the angle of its position (RoFormer, eq. 34).

    Pairs are made of two halves, as in transformers' Llama and ModernBERT, where the paper has neighbours: an order of
    the features, which the projections before them learn anyway. Products of queries and keys depend on the distance of
    their positions alone.

    Args:
        features: (B, H, N, d).

    Returns:
        (B, H, N, d) of the same dtype, computed in that of the rotation.
    """
    return _Rotate.apply(features, *rotation).to(features.dtype)


class _Rotate(torch.autograd.Function):
    """x cos + (x with its halves exchanged) sin: three passes over x each way, and nothing kept but the angles."""

    @staticmethod
    def forward(features: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        half = features.shape[-1] // 2
        turned = features * cosine
        for here, there in ((0, half), (half, 0)):  # narrowed: fake tensors of a GPU that is not there refuse an index
            turned.narrow(-1, here, half).addcmul_(features.narrow(-1, there, half), sine.narrow(-1, here, half))
        return turned

    @staticmethod
    def setup_context(ctx, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        features, *rotation = inputs
        ctx.save_for_backward(*rotation)
        ctx.dtype = features.dtype

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _Rotate.apply(gradient, cosine, -sine).to(ctx.dtype), None, None
