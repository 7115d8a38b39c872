"""A value's own part taken out of the result: passes over large tensors, with a gradient written by hand."""

import torch


def subtract_own(mixed: torch.Tensor, value: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
    """mixed - exp(i phase) value: pairs (B, N, H, d, 2), phase (B, H, N) -> (B, N, H, d, 2), which lies in planes."""
    return _SubtractOwn.apply(mixed, value, phase.to(value.dtype))


class _SubtractOwn(torch.autograd.Function):
    """`subtract_own` with half of the passes over memory that autograd would take.

    Who differentiates the gradient gets its factors made anew, as functions of the phase.
    """

    @staticmethod
    def forward(ctx, mixed: torch.Tensor, value: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
        cosine, sine = _factors(phase, value.shape[:-1])
        ctx.save_for_backward(value, phase, cosine, sine)
        real, imaginary = value.unbind(-1)
        mixed_real, mixed_imaginary = mixed.unbind(-1)
        return _planes(
            mixed_real.addcmul(real, cosine, value=-1).addcmul_(imaginary, sine),
            mixed_imaginary.addcmul(real, sine, value=-1).addcmul_(imaginary, cosine, value=-1),
        )

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        value, phase, cosine, sine = ctx.saved_tensors
        if torch.is_grad_enabled():
            cosine, sine = _factors(phase, value.shape[:-1])
        (real, imaginary), (of_real, of_imaginary) = value.unbind(-1), gradient.unbind(-1)
        # -exp(-i phase) times the gradient; its product with i value is that of the phase.
        back_real = (of_real * cosine).addcmul_(of_imaginary, sine).neg_()
        back_imaginary = (of_real * sine).addcmul_(of_imaginary, cosine, value=-1)
        of_phase = (back_imaginary * real).addcmul_(back_real, imaginary, value=-1).sum(-1).transpose(1, 2)
        return gradient, _planes(back_real, back_imaginary), of_phase


def _factors(phase: torch.Tensor, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of phase (B, H, N), written out for every channel: (B, N, H, d) each.

    Heads may be narrow, and a broadcast product is slow then.
    """
    tables = (table.transpose(1, 2)[..., None].expand(shape) for table in (phase.cos(), phase.sin()))
    cosine, sine = (table.contiguous() for table in tables)
    return cosine, sine


def _planes(real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    """Parts (B, N, H, d) -> pairs (B, N, H, d, 2) of which all real parts come before all imaginary ones."""
    return torch.stack((real, imaginary), 2).permute(0, 1, 3, 4, 2)
