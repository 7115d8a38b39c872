"""Random features of the softmax kernel (FAVOR+): their orthogonal projections."""

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


def _normal(*shape: int, generator: torch.Generator) -> torch.Tensor:
    # Converted before it is filled: DeepSpeed's ZeRO-3 context makes every new float tensor half precision.
    return torch.empty(shape, device="cpu").to(torch.float64).normal_(generator=generator)
