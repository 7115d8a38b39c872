"""Calls that torch makes here and now, of tensors as they are."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack as _modes
from torch.utils._device import DeviceContext


def makes_a_program() -> bool:
    """Whether torch writes down what is called: in a program sizes may be no numbers, and tensors have no data."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_transformed() -> bool:
    """Whether forward mode, or a transform of `torch.func`, is on."""
    return torch.autograd.forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def are_plain(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all hold their data themselves, and nobody transforms what is dispatched, or looks at it."""
    if is_transformed() or torch._C._len_torch_dispatch_stack():
        return False
    if any(type(mode) is not DeviceContext for mode in _modes()):
        return False
    # Subclasses compute as they do.
    return all(type(tensor) in _OWN and tensor.device.type != "meta" for tensor in tensors)


_OWN = (torch.Tensor, nn.Parameter)
