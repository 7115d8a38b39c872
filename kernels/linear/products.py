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

from ..selection import asked, note

# Multiply-adds from which a product gains more than its call costs.
LEAST_WORK = 1 << 21
# Of fewer, torch's own may take less time, whatever the size.
FEWEST_ROWS, FEWEST_CHANNELS = 8, 32
# For `selection.noted_choices`, and in the config.yaml of a run.
NOTED = ("linear", "onednn")
CPU_FACTS = Path("/proc/cpuinfo")


def multiplies(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether oneDNN is to make left (..., I) right (O, I)^T + bias.

    LONGMIX_KERNELS decides: with `auto` it does on AMD's processors with AVX-512, with `cpu` on all.
    """
    if left.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False  # compilers and exported programs have their own
    tensors = [tensor for tensor in (left, right, bias) if tensor is not None]
    if any(tensor.dtype != torch.float32 or tensor.device != left.device for tensor in tensors):
        return False
    if torch.is_autocast_enabled("cpu") or not is_chosen():
        return False
    note(*NOTED)  # whatever the size: a run that goes on goes on so
    fits = right.dim() == 2 and left.dim() > 1 and left.shape[-1] == right.shape[1]  # else torch says what is wrong
    return fits and _is_worth_it(left.numel() // max(left.shape[-1], 1), *right.shape)


def _is_worth_it(rows: int, outputs: int, inputs: int) -> bool:
    is_narrow = rows < FEWEST_ROWS or min(inputs, outputs) < FEWEST_CHANNELS
    return rows * inputs * outputs >= LEAST_WORK and not is_narrow


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
    """Whether this build of torch has it."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


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


def product(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """left (M, I) right (O, I)^T + bias, without a gradient; `left` is copied unless its rows lie side by side."""
    # Parts of wider matrices would be multiplied by a reference that takes a thousand times as long.
    right = right if right.is_contiguous() or right.mT.is_contiguous() else right.contiguous()
    return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")


def product_of_columns(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left (M, O)^T right (M, I), without a gradient, where `multiplies(left.mT, right.mT)`."""
    return _by_the_narrower(product, left, right)


def _by_the_narrower(multiply: Callable, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left (M, O)^T right (M, I), so that the smaller of the two is what `multiply` copies."""
    if right.shape[1] < left.shape[1]:
        return multiply(right.mT, left.mT, None).mT
    return multiply(left.mT, right.mT, None)


class _Linear(torch.autograd.Function):
    """`product` with derivatives of every order, and under torch.func. It keeps what torch's own keeps."""

    @staticmethod
    def forward(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return product(inputs, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        return (
            _Linear.apply(gradient, weight.mT, None) if of_inputs else None,
            _by_the_narrower(_Linear.apply, gradient, inputs) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )

    @staticmethod
    def jvp(ctx, inputs: torch.Tensor | None, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        kept_inputs, kept_weight = ctx.saved_tensors
        parts = [] if inputs is None else [functional.linear(inputs, kept_weight)]
        parts += [] if weight is None else [functional.linear(kept_inputs, weight)]
        parts += [] if bias is None else [bias.expand(len(kept_inputs), -1)]
        return sum(parts[1:], parts[0])

    @staticmethod
    def vmap(_info, dimensions: tuple, *tensors: torch.Tensor | None) -> tuple[torch.Tensor, int]:
        return torch.func.vmap(functional.linear, dimensions)(*tensors), 0
