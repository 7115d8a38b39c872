"""Heads with rotary positions in plain PyTorch."""

import torch


def rotary_heads(
    projected: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `longmix.kernels.ops.rotary_heads`."""
    # Taken apart as they lie: so the gradients are put together in one pass.
    query, key, value = (part.transpose(1, 2) for part in projected.unbind(2))
    return rotate(query, cosine, sine), rotate(key, cosine, sine), value


def rotate(features: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Queries or keys (B, H, N, d) turned, in their dtype."""
    return _Rotate.apply(features, cosine, sine).to(features.dtype)


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
