"""Linear layers whose parameters are read in place of a call, and what may stand in the place of such a layer."""

from collections.abc import Iterable

from torch import nn


def are_plain(layers: Iterable[nn.Module]) -> bool:
    """Whether all are nn.Linear and nothing else. Adapters (LoRA), quantised weights and offloading put in their place
    what only a call heeds.
    """
    return all(type(layer) is nn.Linear and not hasattr(layer, "_hf_hook") for layer in layers)
