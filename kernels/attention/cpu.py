"""The linear attentions in C++ (attention.h)."""

import torch

from ..build import call, library


class AttentionLibrary:
    """The compiled kernels of `operation`, feature_attention or linear_attention, from its folder's cpu.cpp."""

    def __init__(self, operation: str):
        self.source = f"{operation}/cpu.cpp"

    def load(self) -> None:
        """Compile the first kernel unless that has been done. Raises BuildError."""
        library(self.source, "forward", torch.float32)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        causal: bool,
    ) -> torch.Tensor:
        """The operation on query and key (B, H, N, m) and value (B, H, N, d); see operator.py."""
        result = torch.empty_like(value)
        arguments = (query, key, value, lengths, document_ids, result, *_shape(query, value, causal))
        call(self.source, "forward", value.dtype, *arguments)
        return result

    def backward(
        self,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: torch.Tensor | None,
        document_ids: torch.Tensor | None,
        causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of query, key and value."""
        gradients = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        call(
            self.source,
            "backward",
            value.dtype,
            *(gradient, query, key, value, lengths, document_ids, *gradients),
            *_shape(query, value, causal),
        )
        return gradients


def _shape(query: torch.Tensor, value: torch.Tensor, causal: bool) -> tuple[int, ...]:
    return (*query.shape, value.shape[3], int(causal))
