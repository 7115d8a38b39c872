"""The linear attentions as one operator of torch."""

import functools

import torch

from ..operators import differentiate, operator
from .inputs import working_dtype


@operator(__package__, "attention")
def _forward(
    kernels: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    causal: bool,
    kind: str,
) -> torch.Tensor:
    """The result for query and key (B, H, N, m) and value (B, H, N, d).

    `kind`: features are "given", or their "logarithms", or, on CPUs, what one of FEATURE_MAPS makes features of. All
    are contiguous, the first two in one dtype, fp32 or float64, the integers in int64. The value has that dtype, or in
    Triton, beside fp32, half precision.
    """
    return torch.empty_like(value)


@operator(__package__, "attention_backward")
def _backward(
    kernels: str,
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None,
    document_ids: torch.Tensor | None,
    causal: bool,
    kind: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value; features and sums are computed anew."""
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


differentiate(_forward, lambda kernels, needed, *arguments: _backward(kernels, *arguments))


def attention(
    kernels: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | None,
    causal: bool,
    document_ids: torch.Tensor | None,
    kind: str,
) -> torch.Tensor:
    working = working_dtype(query, key, value)
    of_value = value.dtype if kernels == "gpu_kernels" and working == torch.float32 else working
    tensors = (
        tensor.to(dtype, memory_format=torch.contiguous_format).contiguous()  # either, in one pass
        for tensor, dtype in ((query, working), (key, working), (value, of_value))
    )
    return _forward(kernels, *tensors, lengths, document_ids, causal, kind).to(value.dtype)


feature_attention = functools.partial(attention, kind="logarithms")
linear_attention = functools.partial(attention, kind="given")
