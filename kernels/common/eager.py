"""Calls that torch makes here and now, of tensors as they are."""

import functools
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
    if is_transformed() or torch._C._len_torch_dispatch_stack() or torch.autograd._profiler_enabled():
        return False
    if any(type(mode) is not DeviceContext for mode in _modes()):
        return False
    return all(_is_plain(tensor) for tensor in tensors)


def _is_plain(tensor: torch.Tensor) -> bool:
    # Subclasses compute as they do.
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.device.type == "meta":
        return False
    # Signs that are yet to be changed, zeros without memory, batches of torch's older vmap: all have a key more.
    return not torch._C._dispatch_keys(tensor).raw_repr() & ~_keys_of(tensor.device.type)


@functools.cache
def _keys_of(device: str) -> int:
    """What torch's dispatcher looks at in a tensor that holds its data itself."""
    with torch.inference_mode(False):
        return torch._C._dispatch_keys(torch.empty(0, device=device)).raw_repr()
