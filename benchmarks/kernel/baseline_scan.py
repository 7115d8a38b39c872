"""Converter's parallel scan in plain PyTorch; `baselines.py` says what else was tried."""

import torch
from torch.autograd.function import once_differentiable

from longmix.kernels.givens_mix.own import subtract_own
from longmix.kernels.token_givens.parameters import parameters_of


def givens_mix(
    value: torch.Tensor, upper: torch.Tensor, lower: torch.Tensor, phase: torch.Tensor, without_own: bool = False
) -> torch.Tensor:
    """Converter by the parallel scan of its Algorithm 1, with the tokens that it drops restored (CV-1)."""
    x = torch.view_as_complex(value.contiguous())
    up, down = _rotations(upper), _rotations(lower)
    for order in reversed(range(upper.shape[2])):
        x = _Sweep.apply(x, *up[order], True)
        x = _Sweep.apply(x, *down[order], False)
    x = _Turn.apply(x, torch.polar(torch.ones_like(phase), phase).transpose(1, 2)[..., None])
    for order in range(upper.shape[2]):
        x = _Sweep.apply(x, *_inverse(*down[order]), True)
        x = _Sweep.apply(x, *_inverse(*up[order]), False)
    mixed = torch.view_as_real(x)
    return subtract_own(mixed, value, phase) if without_own else mixed


def token_givens_mix(
    value: torch.Tensor,
    drawn: torch.Tensor,
    coefficients: torch.Tensor | None,
    centres: torch.Tensor,
    ranges: torch.Tensor,
    without_own: bool = False,
) -> torch.Tensor:
    """The same with angles and phases that a linear head has drawn, made as plain PyTorch makes them."""
    return givens_mix(value, *parameters_of(drawn, coefficients, centres, ranges, None), without_own)


def _rotations(angles: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Angles (B, H, L, N - 1, 3) -> for each order the upper row of eq. 6, (B, N - 1, H, 1) complex each.

    The lower row of a rotation is (-conj(other), conj(diagonal)).
    """
    a, b, c = angles.permute(2, 4, 0, 3, 1)[..., None].unbind(1)
    diagonal, other = torch.polar(torch.ones_like(a), -a) * c.cos(), torch.polar(torch.ones_like(b), b) * -c.sin()
    return list(zip(diagonal, other, strict=True))


def _inverse(diagonal: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.conj_physical(diagonal), -other


class _Sweep(torch.autograd.Function):
    """All rotations, one after the other, of the rows (k, k + 1) of x (B, N, H, d): upwards from the last, or down."""

    @staticmethod
    def forward(ctx, x, diagonal, other, upwards):
        carries, result = _sweep(x, diagonal, other, upwards)
        ctx.save_for_backward(x, carries, diagonal, other)
        ctx.upwards = upwards
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, carries, diagonal, other = ctx.saved_tensors
        # Conjugated as a whole: inner products of x with the gradient then take no conjugate of either.
        gradient = _conjugate(gradient)
        carried, result = _sweep(gradient, diagonal, -torch.conj_physical(other), not ctx.upwards)
        # What each rotation read, and the gradients of what it wrote.
        if ctx.upwards:
            first, second, to_first, to_second = x, carries, carried, gradient
        else:
            first, second, to_first, to_second = carries, x, gradient, carried
        first, second, to_first, to_second = first[:, :-1], second[:, 1:], to_first[:, :-1], to_second[:, 1:]
        products = torch.empty_like(first)
        of_diagonal = _dot(first, to_first, products).conj() + _dot(second, to_second, products)
        of_other = _dot(second, to_first, products).conj() - _dot(first, to_second, products)
        return result.conj(), of_diagonal, of_other, None


class _Turn(torch.autograd.Function):
    """x (B, N, H, d) times factors (B, N, H, 1)."""

    @staticmethod
    def forward(ctx, x, factors):
        ctx.save_for_backward(x, factors)
        return x * factors

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, factors = ctx.saved_tensors
        gradient = _conjugate(gradient)
        return (gradient * factors).conj(), _dot(x, gradient, torch.empty_like(x)).conj()


def _conjugate(gradient: torch.Tensor) -> torch.Tensor:
    """Costs nothing where the gradient is a mere mark on its conjugate."""
    return gradient.conj().resolve_conj()


def _dot(left: torch.Tensor, right: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """Sums over the last axis; `products` is memory to use."""
    return torch.mul(left, right, out=products).sum(-1, keepdim=True)


def _sweep(
    x: torch.Tensor, diagonal: torch.Tensor, other: torch.Tensor, upwards: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The values carried from rotation to rotation, and the result; both (B, N, H, d)."""
    carries, result = torch.empty_like(x), torch.empty_like(x)
    conjugate, opposite = _inverse(diagonal, other)
    opposite = torch.conj_physical(opposite)
    if upwards:
        torch.mul(x[:, :-1], diagonal, out=carries[:, :-1])
        carries[:, -1] = x[:, -1]
        _scan_upwards(other, carries)
        result[:, 0] = carries[:, 0]
        torch.mul(x[:, :-1], opposite, out=result[:, 1:]).addcmul_(carries[:, 1:], conjugate)
    else:
        torch.mul(x[:, 1:], conjugate, out=carries[:, 1:])
        carries[:, 0] = x[:, 0]
        _scan_downwards(opposite, carries)
        result[:, -1] = carries[:, -1]
        torch.mul(x[:, 1:], other, out=result[:, :-1]).addcmul_(carries[:, :-1], diagonal)
    return carries, result


def _scan_downwards(factors: torch.Tensor, x: torch.Tensor) -> None:
    """x[:, k + 1] += factors[:, k] x[:, k] for k = 0, 1, ..: Algorithm 1's `expand_`.

    Pairs of rows are joined, their scan is found in the same way, and the rows between are filled in.
    """
    rows = x.shape[1]
    if rows == 1:
        return
    even, odd = x[:, 0::2], x[:, 1::2]
    into_odd, into_even = factors[:, 0::2], factors[:, 1::2]
    pairs = odd.shape[1]
    odd.addcmul_(into_odd, even[:, :pairs])
    _scan_downwards(into_odd[:, 1:] * into_even[:, : pairs - 1], odd)
    even[:, 1:].addcmul_(into_even, odd[:, : even.shape[1] - 1])


def _scan_upwards(factors: torch.Tensor, x: torch.Tensor) -> None:
    """x[:, k] += factors[:, k] x[:, k + 1] for k = N - 2, N - 3, ..: `_scan_downwards` in the mirror."""
    rows = x.shape[1]
    if rows == 1:
        return
    # Rows counted from the last one: 0, 2, .. are even.
    even, odd = x[:, (rows - 1) % 2 :: 2], x[:, rows % 2 :: 2]
    into_odd, into_even = factors[:, rows % 2 :: 2], factors[:, (rows - 1) % 2 :: 2]
    pairs = odd.shape[1]
    odd.addcmul_(into_odd, even[:, -pairs:])
    _scan_upwards(into_odd[:, :-1] * into_even[:, into_even.shape[1] - pairs + 1 :], odd)
    even[:, :-1].addcmul_(into_even, odd[:, odd.shape[1] - even.shape[1] + 1 :])
