"""Fourier transforms of transformers' own models, in precisions that torch has none for."""

import functools

import torch


def transform_in_fp32(model: torch.nn.Module) -> None:
    """Let FNet take its transforms in fp32, its other layers in the precision that they have.

    torch has none of bf16, and on GPUs of fp16 for powers of two alone; autocast changes that on CPUs only.
    """
    for module in model.modules():
        transform = getattr(module, "fourier_transform", None)
        if isinstance(transform, functools.partial) and transform.func is torch.fft.fftn:
            module.fourier_transform = functools.partial(_real_part, **transform.keywords)


def _real_part(rows: torch.Tensor, dim: tuple[int, ...]) -> torch.Tensor:
    """The real part of the transform of (B, N, D), in the dtype of the rows; under autocast in fp32, as on CPUs."""
    keeps = torch.is_autocast_enabled(rows.device.type)
    with torch.autocast(rows.device.type, enabled=False):
        found = torch.fft.fftn(rows.to(torch.promote_types(rows.dtype, torch.float32)), dim=dim).real
    return found if keeps else found.to(rows.dtype)
