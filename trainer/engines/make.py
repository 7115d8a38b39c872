"""The engine that a run file asks for."""

import torch

from ..processes.world import World
from ..settings.configuration import RunConfiguration
from .accelerate import AccelerateEngine
from .base import Engine
from .deepspeed import DeepSpeedEngine


def make_engine(model: torch.nn.Module, configuration: RunConfiguration, precision: str, world: World) -> Engine:
    """DeepSpeed's with a `deepspeed` file, else Accelerate's."""
    engine = AccelerateEngine if configuration.deepspeed is None else DeepSpeedEngine
    return engine(model, configuration, precision, world)
