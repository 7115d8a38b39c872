"""Random features of the softmax kernel: orthogonal projections, and the logarithms of positive features (FAVOR+)."""

import math

import torch


def orthogonal_projection(features: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """Rows that are standard normal one by one, and orthogonal within each block of `width` of them.

    Uniformly random orthogonal directions for each block, stretched to lengths drawn as those of normal vectors
    (Choromanski et al., Rethinking Attention with Performers, section 2.4): the estimate stays unbiased, and its
    variance falls.

    Args:
        features: number m of rows.
        width: number d of columns.
        generator: on the CPU.

    Returns:
        (m, d) fp32, on the CPU.
    """
    rows = []
    for start in range(0, features, width):
        directions, stretch = _normal(2, width, min(width, features - start), generator=generator)
        orthogonal, triangular = torch.linalg.qr(directions)
        # The signs of the decomposition are a convention; without them the columns are not uniformly random.
        orthogonal = orthogonal * triangular.diagonal().sign()
        rows.append((stretch.norm(dim=0) * orthogonal).T)
    return torch.cat(rows).to(torch.float32)


def positive_log_features(x: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
    """log phi_m(x) = w_m . x / d^(1/4) - |x|^2 / (2 sqrt d), in fp32 or wider (Performers, lemma 1).

    The mean over normal w of phi(q) phi(k) is exp(q . k / sqrt d). What is constant in m and in the keys cancels in
    attention, so the factor m^(-1/2) is left out.

    Args:
        x: (..., N, d) queries or keys.
        projection: (m, d), or (..., m, d) with one projection for each head.

    Returns:
        (..., N, m).
    """
    width = x.shape[-1]
    wide = torch.promote_types(x.dtype, torch.float32)
    # The features are exponentials of these: half precision here would be an error of percents there.
    with torch.autocast(x.device.type, enabled=False):
        x = x.to(wide)
        projected = (x * width**-0.25) @ projection.to(wide).transpose(-1, -2)
        return projected - x.square().sum(-1, keepdim=True) / (2 * math.sqrt(width))


def _normal(*shape: int, generator: torch.Generator) -> torch.Tensor:
    # Converted before it is filled: DeepSpeed's ZeRO-3 context makes every new float tensor half precision.
    return torch.empty(shape, device="cpu").to(torch.float64).normal_(generator=generator)
