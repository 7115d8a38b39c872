"""Linear layers whose parameters are read in place of a call, and what may stand in the place of such a layer."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from longmix.kernels import ops


def linear(layer: nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    """`layer(hidden_states)`, (..., I) -> (..., O); by `ops.linear` where a call does no more than that."""
    # Symbols of torch.fx are no tensors, and have no device.
    is_here = isinstance(hidden_states, torch.Tensor) and hidden_states.device.type == "cpu"
    if is_here and not torch.compiler.is_compiling() and are_bare([layer]):
        return ops.linear(hidden_states, layer.weight, layer.bias)
    return layer(hidden_states)


def are_bare(layers: Sequence[nn.Module]) -> bool:
    """Whether all are nn.Linear and nothing else, and unwatched. Adapters (LoRA), quantised weights and offloading put
    in their place what only a call heeds.
    """
    plain = all(type(layer) is nn.Linear and not hasattr(layer, "_hf_hook") for layer in layers)
    return plain and are_unwatched(layers)


def are_unwatched(modules: Iterable[nn.Module]) -> bool:
    """Whether a call of each does nothing but its `forward`: hooks watch, prune or change what it computes."""
    if nn.modules.module._has_any_global_hook():
        return False
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any("forward" in vars(module) or any(vars(module)[name] for name in hooks) for module in modules)
