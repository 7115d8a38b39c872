"""The floating-point operations of a model, counted without computing any of them."""

from dataclasses import dataclass

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from longmix.kernels.selection import plain

from .sizes import with_layers

# Of a model of more layers the first two are counted: all after the first are equal.
_COUNTED_LAYERS = 2


@dataclass(frozen=True)
class Flops:
    """Floating-point operations forward; a multiplication and an addition are two.

    Attributes:
        per_position: of the encoder, for each position of a sequence.
        per_item: of the head, for each item of the loss: a labelled token or a sample.
    """

    per_position: float
    per_item: float

    def of_training(self, positions: float, items: float) -> float:
        """Forward and backward: a backward pass makes two products for each of the forward pass."""
        return 3 * (self.per_position * positions + self.per_item * items)


def count_flops(config: transformers.PreTrainedConfig, auto_class: type, positions: int) -> Flops:
    """The operations of a model for sequences of so many positions, each of one document.

    Counted are what tensor cores can take: products of matrices, convolutions, and softmax attention's scores of all
    pairs, as Chowdhery et al. 2022 (PaLM, appendix B) do. Not counted are rotations, links, taps, Fourier transforms
    and what is elementwise (at most a twentieth of our layers), and what is computed twice to spare memory.
    """
    layers = getattr(config, "num_hidden_layers", 0)
    with FakeTensorMode(), torch.no_grad():
        if not isinstance(layers, int) or layers <= _COUNTED_LAYERS:
            return _count(auto_class.from_config(config), positions)
        one, two = (_count(auto_class.from_config(with_layers(config, count)), positions) for count in (1, 2))
    every_other = two.per_position - one.per_position
    return Flops(one.per_position + (layers - 1) * every_other, one.per_item)


def _count(model: transformers.PreTrainedModel, positions: int) -> Flops:
    encoder = model.base_model
    config = encoder.config
    inputs = {"inputs_embeds": torch.empty(1, positions, config.hidden_size, dtype=model.dtype)}
    if getattr(config, "coordinate_dimensions", 0):
        inputs["coordinates"] = torch.empty(1, positions, config.coordinate_dimensions)
    # The mathematical form is made of products, which the counter knows on every device.
    with plain(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        encoder.eval()(**inputs)
    inside = set(encoder.modules())
    head = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module not in inside]
    return Flops(counter.get_total_flops() / positions, sum(2 * linear.weight.numel() for linear in head))
