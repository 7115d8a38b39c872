"""Random features of the softmax kernel: orthogonal projections, and the logarithms of positive features (FAVOR+)."""

import math

import torch
from torch.autograd.function import once_differentiable


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


def positive_log_features(
    x: torch.Tensor, projection: torch.Tensor, bias: torch.Tensor | None = None, relative: bool = False
) -> torch.Tensor:
    """log phi_m(x) = w_m . x / d^(1/4) - |x|^2 / (2 sqrt d) + bias, in fp32 or wider (Performers, lemma 1).

    The mean over normal w of phi(q) phi(k) is exp(q . k / sqrt d). What is constant in m and in the keys cancels in
    attention, so the factor m^(-1/2) is left out.

    Args:
        x: (..., N, d) queries or keys.
        projection: (m, d), or (..., m, d) with one projection for each head.
        bias: (..., N, m), of as many axes as x, that may be 1 in the first one; None: nothing.
        relative: without |x|^2 / (2 sqrt d), which for queries cancels in attention too.

    Returns:
        (..., N, m).
    """
    # The features are exponentials of these: half precision here would be an error of percents there.
    with torch.autocast(x.device.type, enabled=False):
        return _LogFeatures.apply(x, projection, bias, relative)


class _LogFeatures(torch.autograd.Function):
    """`positive_log_features` with half of the passes over memory that autograd would take."""

    @staticmethod
    def forward(
        ctx, x: torch.Tensor, projection: torch.Tensor, bias: torch.Tensor | None, relative: bool
    ) -> torch.Tensor:
        width, wide = x.shape[-1], torch.promote_types(x.dtype, torch.float32)
        scaled = (projection.to(wide) * width**-0.25).transpose(-1, -2)
        inputs = x.to(wide, memory_format=torch.contiguous_format)  # of half precision, in one pass
        features = inputs @ scaled
        if bias is not None:
            features += bias
        if not relative:
            features -= torch.linalg.vector_norm(inputs, dim=-1, keepdim=True).square() / (2 * math.sqrt(width))
        ctx.save_for_backward(x, projection, bias)
        ctx.relative = relative
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, projection, bias = ctx.saved_tensors
        of_projection, of_bias = None, None
        width = x.shape[-1]
        of_x = gradient @ (projection.to(gradient.dtype) * width**-0.25)
        if not ctx.relative:
            of_x.addcmul_(x, gradient.sum(-1, keepdim=True), value=-1 / math.sqrt(width))
        if ctx.needs_input_grad[1]:
            of_projection = (gradient.mT @ x.to(gradient.dtype)).mul_(width**-0.25).sum_to_size(projection.shape)
        if bias is not None and ctx.needs_input_grad[2]:
            of_bias = gradient.sum_to_size(bias.shape).to(bias.dtype)
        return of_x.to(x.dtype), of_projection, of_bias, None


def _normal(*shape: int, generator: torch.Generator) -> torch.Tensor:
    # Converted before it is filled: DeepSpeed's ZeRO-3 context makes every new float tensor half precision.
    return torch.empty(shape, device="cpu").to(torch.float64).normal_(generator=generator)
