"""The matrices of a model's layers: what Muon moves. Everything else is AdamW's."""

import math

from torch import nn
from transformers.pytorch_utils import Conv1D

# (matrices, rows, columns) that a parameter holds, one after the other in memory.
View = tuple[int, int, int]


def matrix_views(model: nn.Module) -> dict[int, View]:
    """The matrices in the layers of a model's encoder, by the id of the parameter that holds them.

    They are the weights of linear layers, and what a module's own `stacked_matrices` says: parameters that hold several
    matrices, or one in another shape. Layers are what stands in a list of modules, here and in transformers.
    Embeddings, heads and parameters that are no matrices (taps, spectra, angles, tables of positions) are left out.
    """
    views: dict[int, View] = {}
    for layers in getattr(model, "base_model", model).modules():
        if not isinstance(layers, nn.ModuleList):
            continue
        for module in layers.modules():
            stacked = module.stacked_matrices() if hasattr(module, "stacked_matrices") else {}
            for name, view in stacked.items():
                views[id(module.get_parameter(name))] = view
            if isinstance(module, nn.Linear | Conv1D):
                views.setdefault(id(module.weight), (1, *module.weight.shape))
    return views


def matrix_entries(model: nn.Module) -> int:
    """How many of a model's parameters stand in the matrices of its layers."""
    return sum(math.prod(view) for view in matrix_views(model).values())
