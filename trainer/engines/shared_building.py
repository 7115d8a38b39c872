"""Building a model for ZeRO stage 3 in shares: no rank holds more of it at a time than its share and one module."""

import contextlib
from collections.abc import Iterator

import torch

from longmix.modeling.model import MixerPreTrainedModel

from ..processes.world import World
from ..settings import deepspeed_file
from ..settings.configuration import RunConfiguration
from .deepspeed import import_deepspeed, naming_refusals


@contextlib.contextmanager
def in_shares(configuration: RunConfiguration, parameters: int, world: World) -> Iterator[None]:
    """Context in which models of longmix are built in shares, with the weights that they have without it.

    DeepSpeed's own context for this, zero.Init, is not entered: on GPUs it draws other numbers than the host does, and
    the initialisation that follows finds parameters without values. Every rank must build the same model, with the same
    seed.

    Args:
        parameters: of the model, from which DeepSpeed's file is filled.

    Raises:
        UserError: the file asks for what DeepSpeed cannot do.
    """
    deepspeed = import_deepspeed(world)
    values = deepspeed_file.fill(configuration, "fp32", world.size, parameters)
    values.pop("optimizer", None)
    with naming_refusals(configuration.deepspeed):
        shared = deepspeed.zero.Init(config_dict_or_path=values)
    if shared.mem_efficient_linear:
        # As for models that are whole. Else a linear layer keeps its gathered weight until its backward pass.
        shared._enable_mem_efficient_linear()

    def share(parent: torch.nn.Module, name: str, module: torch.nn.Module | None) -> None:
        # What is given to its parent is complete, and its own parts are in shares already.
        if module is not None:
            shared._convert_to_zero_parameters(module.parameters())

    initialise = MixerPreTrainedModel._init_weights

    def initialise_whole(model: MixerPreTrainedModel, module: torch.nn.Module) -> None:
        # A module with a `reset` may set what its parts hold.
        own = list(module.parameters(recurse=hasattr(module, "reset")))
        with deepspeed.zero.GatheredParameters(own, modifier_rank=0), _on_host(own):
            initialise(model, module)

    registered = torch.nn.modules.module.register_module_module_registration_hook(share)
    MixerPreTrainedModel._init_weights = initialise_whole
    try:
        yield
    finally:
        registered.remove()
        MixerPreTrainedModel._init_weights = initialise


@contextlib.contextmanager
def _on_host(parameters: list[torch.nn.Parameter]) -> Iterator[None]:
    """Context in which parameters are in the host's memory, where random numbers are those of any other machine."""
    devices = [parameter.device for parameter in parameters]
    for parameter in parameters:
        parameter.data = parameter.data.cpu()
    yield
    for parameter, device in zip(parameters, devices, strict=True):
        parameter.data = parameter.data.to(device)
