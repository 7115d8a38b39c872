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
    if is_transformed() or torch._C._len_torch_dispatch_stack() or torch.autograd._profiler_enabled():
        return False
    if any(type(mode) is not DeviceContext for mode in _modes()):
        return False
    # Subclasses compute as they do.
    return all(type(x) in _OWN and (_keys(x).raw_repr() in _KNOWN or _is_new(x)) for x in tensors)


_OWN = (torch.Tensor, nn.Parameter)
_keys = torch._C._dispatch_keys  # what torch's dispatcher looks at in a tensor
_KNOWN: set[int] = set()  # those of tensors that hold their data themselves, as far as some have been seen


def _is_new(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds its data itself, which is noted.

    Signs that are yet to be changed, zeros without memory, and batches of torch's older vmap have a key more than that.
    """
    if tensor.device.type == "meta":
        return False
    with torch.inference_mode(False):
        plain = _keys(torch.empty(0, device=tensor.device)).raw_repr()
    found = _keys(tensor).raw_repr()
    if found & ~plain:
        return False
    _KNOWN.add(found)
    return True
