"""The frame of a model as objectives meet it: which parts of a batch it takes, and its auxiliary loss."""

import inspect
from typing import Any

import torch

from longmix.modeling.losses import mix_auxiliary_loss

from ..samples.collate import Batch


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside any wrapper (DeepSpeed's engine, DDP)."""
    while isinstance(getattr(model, "module", None), torch.nn.Module):
        model = model.module
    return model


def takes(model: torch.nn.Module, name: str) -> bool:
    """Whether the model's forward names such an argument."""
    return name in _parameters(model)


def accepted(model: torch.nn.Module, batch: Batch, without: str | None = None) -> dict[str, Any]:
    """The part of a batch that the model's forward names: document ids are left out where a model cannot use them.

    Coordinates are for models with coordinate_dimensions; one with 0 of them takes indices as positions.
    """
    names = _parameters(model) - {without}
    if not getattr(unwrapped(model).config, "coordinate_dimensions", 0):
        names -= {"coordinates", "coordinates_b"}
    return {name: value for name, value in batch.items() if name in names}


def with_auxiliary_loss(
    model: torch.nn.Module, loss: torch.Tensor, auxiliary: torch.Tensor | None, samples: int, items: torch.Tensor | int
) -> torch.Tensor:
    """`loss` over `items` mixed with the model's auxiliary loss of these `samples`, if it has one."""
    if auxiliary is None:
        return loss
    return mix_auxiliary_loss(loss, auxiliary, unwrapped(model).config.auxiliary_loss_weight, samples, items)


def _parameters(model: torch.nn.Module) -> set[str]:
    return set(inspect.signature(unwrapped(model).forward).parameters)
