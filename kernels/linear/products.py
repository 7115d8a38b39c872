"""Products of fp32 matrices by oneDNN, where torch's own take twice as long.

Torch multiplies fp32 with MKL, which uses AVX2 on every processor that is not Intel's, also where AVX-512 does twice as
much in the same time (docs/learning.md has the figures). oneDNN, by which torch multiplies half precision, takes what
there is.
"""

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.nn import functional

from ..common.eager import are_plain, is_transformed, makes_a_program
from ..selection import asked, is_installed

# Multiply-adds from which a product gains more than its call costs, with one thread or several.
LEAST_WORK = 1 << 23
# Of fewer, torch's own may take less time, whatever the size.
FEWEST_ROWS, FEWEST_CHANNELS = 8, 32
# oneDNN compiles, and keeps, a program for every number of rows: numbers of at most so many binary digits are few.
DIGITS = 4
CPU_FACTS = Path("/proc/cpuinfo")


def multiplies(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether oneDNN is to make left (..., I) right (O, I)^T + bias.

    LONGMIX_KERNELS decides: with `auto` it does on AMD's processors with AVX-512, with `cpu` on all.
    """
    if makes_a_program():
        return False
    fits = right.dim() == 2 and left.dim() > 1 and left.shape[-1] == right.shape[1]  # else torch says what is wrong
    if not fits or (bias is not None and bias.shape != right.shape[:1]):
        return False
    rows = left.numel() // max(left.shape[-1], 1)
    return _is_worth_it(rows, *right.shape) and is_chosen() and _are_fp32(left, right, bias)


def _is_worth_it(rows: int, outputs: int, inputs: int) -> bool:
    is_narrow = rows < FEWEST_ROWS or min(inputs, outputs) < FEWEST_CHANNELS
    return rows * inputs * outputs >= LEAST_WORK and not is_narrow and few_rows(rows) == rows


def few_rows(rows: int) -> int:
    """The smallest number of DIGITS binary digits, with zeros behind them, that is not smaller."""
    unit = 1 << max(0, rows.bit_length() - DIGITS)
    return -(-rows // unit) * unit


def _are_fp32(*tensors: torch.Tensor | None) -> bool:
    """Whether all are plain fp32 on a CPU, and nobody casts them."""
    given = [tensor for tensor in tensors if tensor is not None]
    if torch.is_autocast_enabled("cpu") or not are_plain(given):
        return False
    return all(
        tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.layout == torch.strided
        for tensor in given
    )


def is_chosen() -> bool:
    """Whether oneDNN makes the larger products of this process. Raises ValueError as `selection.asked` does."""
    choice = asked()
    return not _by_torch and ((choice == "cpu" and is_there()) or (choice == "auto" and gains()))


_by_torch: list[None] = []  # one for each context below that is open


@contextmanager
def by_torch() -> Iterator[None]:
    """Context in which torch makes all products its own way: for a run that has begun so."""
    _by_torch.append(None)
    try:
        yield
    finally:
        _by_torch.pop()


@functools.cache
def is_there() -> bool:
    """Whether this build of torch has it. Code that stands alone beside a model is plain PyTorch, to the last bit."""
    return is_installed() and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@functools.cache
def gains() -> bool:
    """Whether torch's own products use less than this processor has."""
    if not is_there() or not torch.backends.mkl.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        facts = CPU_FACTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"^vendor_id\s*: AuthenticAMD$", facts, re.MULTILINE) is not None


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """See `longmix.kernels.ops.linear`; arguments for which `multiplies`."""
    return _Linear.apply(inputs.flatten(0, -2), weight, bias).unflatten(0, inputs.shape[:-1])


def weight_gradient(gradient: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """gradient (M, O)^T inputs (M, I), a linear layer's gradient by its weight; by the library that makes the layer."""
    sizes = len(inputs), gradient.shape[1], inputs.shape[1]
    if not makes_a_program() and _is_worth_it(*sizes) and is_chosen() and _are_fp32(gradient, inputs):
        return _by_the_narrower(_Linear.apply, gradient, inputs)
    return gradient.mT @ inputs


def product(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """left (M, I) right (O, I)^T + bias, without a gradient; `left` is copied unless its rows lie side by side."""
    # Parts of wider matrices would be multiplied by a reference that takes a thousand times as long.
    right = right if right.is_contiguous() or right.mT.is_contiguous() else right.contiguous()
    bias = None if bias is None else bias.contiguous()  # it is read as if it were
    return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")


def _by_the_narrower(multiply: Callable, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left (M, O)^T right (M, I), so that the smaller of the two is what `multiply` copies."""
    if right.shape[1] < left.shape[1]:
        return multiply(right.mT, left.mT, None).mT
    return multiply(left.mT, right.mT, None)


class _Linear(torch.autograd.Function):
    """`product` with derivatives of every order. It keeps what they need, as torch's own does."""

    @staticmethod
    def forward(ctx, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        of_inputs, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(inputs if of_weight else None, weight if of_inputs else None)
        return product(inputs, weight, bias)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        # Tangents, or transforms, that were begun since: torch's own products have a rule for them.
        multiply = functional.linear if is_transformed() else _Linear.apply
        return (
            multiply(gradient, weight.mT, None) if of_inputs else None,
            _by_the_narrower(multiply, gradient, inputs) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )
