"""The linear attentions as operators of torch, computed by their cpu.py or gpu.py."""

from collections.abc import Callable

import torch

from ..selection import kernels
from .inputs import working_dtype


def register(operation: str) -> Callable:
    """The operation, `feature_attention` or `linear_attention`, by hand-written kernels; see its interface.py.

    Registers longmix::<operation> and longmix::<operation>_backward.
    """

    @torch.library.custom_op(f"longmix::{operation}", mutates_args=())
    def forward(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        causal: bool,
    ) -> torch.Tensor:
        """Contiguous arguments, the first three in one dtype, fp32 or float64, the others in int64."""
        return kernels(operation, value.device).forward(query, key, value, lengths, document_ids, causal)

    @forward.register_fake
    def _(query, key, value, lengths, document_ids, causal):
        return torch.empty_like(value)

    @torch.library.custom_op(f"longmix::{operation}_backward", mutates_args=())
    def backward(
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of query, key and value; features and sums are computed anew."""
        run = kernels(operation, value.device).backward
        return run(gradient.contiguous(), query, key, value, lengths, document_ids, causal)

    @backward.register_fake
    def _(gradient, query, key, value, lengths, document_ids, causal):
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    def save(ctx, inputs, output):
        query, key, value, lengths, document_ids, ctx.causal = inputs
        ctx.save_for_backward(query, key, value, lengths, document_ids)

    def differentiate(ctx, gradient):
        return (*backward(gradient, *ctx.saved_tensors, ctx.causal), None, None, None)

    forward.register_autograd(differentiate, setup_context=save)

    def call(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: torch.Tensor | None,
        causal: bool,
        document_ids: torch.Tensor | None,
    ) -> torch.Tensor:
        working = working_dtype(query, key, value)
        tensors = (tensor.to(working).contiguous() for tensor in (query, key, value))
        return forward(*tensors, lengths, document_ids, causal).to(value.dtype)

    return call
