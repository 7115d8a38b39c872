"""The engine that a run file asks for."""

import torch

from ..processes.world import World
from ..settings.configuration import RunConfiguration
from .accelerate import AccelerateEngine
from .base import Engine
from .deepspeed import DeepSpeedEngine


def make_engine(
    model: torch.nn.Module, configuration: RunConfiguration, precision: str, gradients: str, world: World
) -> Engine:
    """DeepSpeed's with a `deepspeed` file, else Accelerate's.

    Args:
        gradients: what DeepSpeed sums them up in (see settings.deepspeed_file.fill); Accelerate's are in fp32.
    """
    if configuration.deepspeed is None:
        return AccelerateEngine(model, configuration, precision, world)
    return DeepSpeedEngine(model, configuration, precision, gradients, world)
