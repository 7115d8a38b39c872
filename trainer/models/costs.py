"""What a training pass of a model keeps and takes on a GPU, counted without one: on tensors that hold no data.

The bytes that a forward pass keeps for the backward pass are counted exactly. The time is a roofline's: each operator
takes the longer of the times for its bytes and for its products of matrices, by the card's data sheet, and one launch.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from longmix.kernels.selection import as_on_gpus

from ..processes.cards import Card
from ..processes.precision import DTYPES
from .fourier import transform_in_fp32
from .kept import KeptTensors
from .sizes import with_layers

# Seconds of one launch among many.
LAUNCH_SECONDS = 3e-6
# Operators that read rows of a table, not all of it.
_LOOKUPS = ("embedding", "gather", "index", "index_select")

# Number of samples -> model -> the loss of a micro-batch of so many.
Losses = Callable[[int], Callable[[torch.nn.Module], torch.Tensor]]


@dataclass(frozen=True)
class PassCosts:
    """A forward and a backward pass of one micro-batch on one card.

    Attributes:
        kept: bytes that the forward pass keeps for the backward pass, without parameters.
        seconds: of both.
    """

    kept: float
    seconds: float


@dataclass(frozen=True)
class ModelCosts:
    """Passes of a model by the number of samples: what is `around` the layers, and one of the equal layers.

    Attributes:
        layers: how many there are.
        layer_input: bytes of one sample that go into a layer.
        around, layer: costs for one sample.
        constant, layer_constant: costs whatever the number of samples.
    """

    layers: int
    layer_input: float
    around: PassCosts
    layer: PassCosts
    constant: PassCosts
    layer_constant: PassCosts

    def recomputed(self, every: int) -> int:
        """Layers that the backward pass computes again: every `every`-th, 0 for none."""
        return -(-self.layers // every) if every else 0

    def kept(self, samples: int, every: int = 0) -> float:
        """Bytes at the end of the forward pass. Layers that are computed again keep nothing but their input; one of
        these is there whole when its turn comes."""
        recomputed = self.recomputed(every)
        whole = self.layers - recomputed + (recomputed > 0)
        inputs = recomputed * self.layer_input * samples
        kept = self.around.kept * samples + self.constant.kept
        return kept + whole * (self.layer.kept * samples + self.layer_constant.kept) + inputs

    def widest(self, samples: int) -> float:
        """Bytes of the largest part between two layers: its gradients exist at once, while it is gone through."""
        return samples * max(self.layer.kept, self.around.kept)

    def seconds(self, samples: int, every: int = 0) -> float:
        """Of a micro-batch; a layer that is computed again takes a third more."""
        layers = self.layers + self.recomputed(every) / 3
        return (
            self.around.seconds * samples
            + self.constant.seconds
            + layers * (self.layer.seconds * samples + self.layer_constant.seconds)
        )


def count_costs(
    config: transformers.PreTrainedConfig, auto_class: type, losses: Losses, positions: int, precision: str, card: Card,
    casts: bool, samples: int,
) -> ModelCosts:  # fmt: skip
    """The costs of a model's passes.

    Args:
        losses: for a number of samples the loss of a micro-batch, on the CPU, as a function of the model.
        positions: of a sample.
        precision: fp32, bf16 or fp16.
        casts: the weights are fp32, and cast where they are used (Accelerate); else they are what precision says.
        samples: of a usual micro-batch; counted are so many and twice as many.
    """
    found = {
        (count, times): _count(with_layers(config, count), auto_class, losses(times * samples), precision, card, casts)
        for count in (1, 2)
        for times in (1, 2)
    }

    def bilinear(read: Callable[[PassCosts], float]) -> tuple[float, float, float, float]:
        one, more = read(found[1, 1]), read(found[1, 2])
        other, most = read(found[2, 1]), read(found[2, 2])
        layer = (most - more - other + one) / samples
        around = (more - one) / samples - layer
        layer_constant = other - one - layer * samples
        return around, layer, one - (around + layer) * samples - layer_constant, layer_constant

    kept, seconds = bilinear(lambda one: one.kept), bilinear(lambda one: one.seconds)
    size = 4 if precision == "fp32" else 2
    width = getattr(config, "hidden_size", 0)
    return ModelCosts(config.num_hidden_layers, positions * width * size, *map(PassCosts, kept, seconds))


def _count(
    config: transformers.PreTrainedConfig,
    auto_class: type,
    loss: Callable[[torch.nn.Module], torch.Tensor],
    precision: str,
    card: Card,
    casts: bool,
) -> PassCosts:
    kind = DTYPES[precision]
    fused = sdpa_kernel(SDPBackend.FLASH_ATTENTION)  # whatever a CPU would choose
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        as_on_gpus(),
        fused,
        _NoDropout(),
        _Roofline(card, kind) as roofline,
    ):
        model = auto_class.from_config(config, dtype=torch.float32 if casts else kind).train()
        transform_in_fp32(model)
        roofline.seconds = 0.0
        autocast = torch.autocast("cpu", kind) if casts and precision != "fp32" else contextlib.nullcontext()
        kept = KeptTensors(model)
        with kept, autocast:
            result = loss(model)
        result.backward()
        return PassCosts(kept.bytes, roofline.seconds)


class _NoDropout(TorchFunctionMode):
    """Softmax attention without dropout, with which the fused form for CPUs, unlike that for GPUs, cannot be had."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.nn.functional.scaled_dot_product_attention:
            args = args[:4]
            kwargs["dropout_p"] = 0.0
        return function(*args, **kwargs)


class _Roofline(TorchDispatchMode):
    """Adds up the time of what is dispatched on a card, whose products are of the dtype `kind`."""

    def __init__(self, card: Card, kind: torch.dtype):
        super().__init__()
        self.seconds = 0.0
        self._card = card
        self._kind = kind

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if not function.is_view:
            self.seconds += self._time(function, args, kwargs, result)
        return result

    def _time(self, function: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any], result: Any) -> float:
        read = _tensors([args, list(kwargs.values())])
        written = _tensors([result])
        if not written or function._schema.name.startswith(("aten::empty", "aten::_to_copy_")):
            return 0.0
        if function._schema.name.removeprefix("aten::") in _LOOKUPS:
            read = {place: size for place, size in read.items() if size <= sum(written.values())}
        moved = sum(read.values()) + sum(written.values())
        packet = function._overloadpacket
        operations = 0.0
        if packet in flop_registry:
            operations = flop_registry[packet](*args, **kwargs, out_val=result)
        elif packet in _ATTENTION:
            operations = _ATTENTION[packet](*args)
        halves = any(isinstance(one, torch.Tensor) and one.dtype == self._kind for one in args)
        peak = (self._card.peak("fp16") if self._kind != torch.float32 and halves else None) or self._card.fp32
        return max(moved / self._card.bandwidth, operations / peak) + LAUNCH_SECONDS


def _tensors(values: list) -> dict[int, int]:
    """Bytes of the tensors among values, by what they stand for: no more than is stored of each."""
    found = {}
    for value in torch.utils._pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor):
            found[id(value)] = min(value.numel() * value.itemsize, value.untyped_storage().nbytes())
    return found


_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *_: sdpa_flop_count(
        query.shape, key.shape, value.shape
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda gradient, query, key, value, *_: sdpa_backward_flop_count(
            gradient.shape, query.shape, key.shape, value.shape
        )
    ),
}
