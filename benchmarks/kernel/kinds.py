"""A thing to measure: its inputs, its calls, and the implementations that compete."""

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
import transformers
from transformers.models.fnet.modeling_fnet import FNetBasicFourierTransform

from longmix.kernels import ops
from longmix.kernels.selection import obstacle
from longmix.modeling import BatchContext  # this import registers the model types

BATCH = 2
LAYER_WIDTH = 256


@dataclass(frozen=True)
class Prepared:
    """A call at one length.

    Attributes:
        call: gives a tensor.
        leaves: what it is differentiable in.
        weights: of the shape of the result.
    """

    call: Callable[[], torch.Tensor]
    leaves: list[torch.Tensor]
    weights: torch.Tensor

    def forward(self) -> torch.Tensor:
        """The result, without keeping what a backward pass needs."""
        with torch.no_grad():
            return self.call()

    def gradients(self) -> list[torch.Tensor]:
        """The result, and the gradients of its weighted sum."""
        result = self.call()
        return [result.detach(), *torch.autograd.grad(result, self.leaves, self.weights)]


@dataclass(frozen=True)
class Operation:
    """An operation, or some in a row.

    Attributes:
        operations: of `longmix.kernels.ops`.
        dimensions: of the shape, without batch and length.
        make: length, generator -> the differentiable inputs, fp32.
        apply: the inputs -> the result.
        values: which of the inputs has the shape of the result.
        linear: the gradients do not depend on the inputs.
        batch: B.
    """

    name: str
    operations: tuple[str, ...]
    dimensions: str
    make: Callable[[int, torch.Generator], list[torch.Tensor]]
    apply: Callable[..., torch.Tensor]
    values: int = 0
    linear: bool = False
    batch: int = BATCH

    def prepare(self, length: int, device: torch.device, dtype: torch.dtype) -> Prepared:
        """The call, with inputs that are the same for all devices, and up to rounding for all dtypes."""
        generator = torch.Generator().manual_seed(0)
        made = self.make(length, generator)
        leaves = [tensor.to(device, dtype).requires_grad_(True) for tensor in made]
        weights = torch.randn(made[self.values].shape, generator=generator).to(device, dtype)
        return Prepared(functools.partial(self.apply, *leaves), leaves, weights)

    def least_moved(self, length: int, dtype: torch.dtype) -> tuple[int, int]:
        """Bytes that any algorithm must move, (forward, forward and backward), if caches hold nothing between calls.

        A call reads its arguments and writes its result; its backward pass reads the cotangent and what the gradients
        depend on, and writes the gradients.
        """
        prepared = self.prepare(length, torch.device("cpu"), dtype)
        arguments, result = sum(leaf.nbytes for leaf in prepared.leaves), prepared.weights.nbytes
        backward = result + arguments + (0 if self.linear else arguments)
        forward = arguments + result
        return len(self.operations) * forward, len(self.operations) * (forward + backward)

    def implementations(self, device: torch.device) -> list[str]:
        """The implementations to compare."""
        return _competing(self.operations, device)


@dataclass(frozen=True)
class Layer:
    """A mixer with its projections, without the residual block around it.

    Attributes:
        model_type: with `fields`, and the defaults for all others.
        operations: that it calls.
    """

    name: str
    model_type: str
    operations: tuple[str, ...] = ()
    fields: tuple[tuple[str, object], ...] = ()

    dimensions = f"D={LAYER_WIDTH}"
    batch = BATCH

    def prepare(self, length: int, device: torch.device, dtype: torch.dtype) -> Prepared:
        """The call, initialised as in a model; differentiable in the input and all parameters."""
        generator = torch.Generator().manual_seed(0)
        x, weights = torch.randn(2, BATCH, length, LAYER_WIDTH, generator=generator).to(device, dtype)
        x = x.clone().requires_grad_(True)
        if self.model_type == "fnet":
            transform = FNetBasicFourierTransform(transformers.FNetConfig(hidden_size=LAYER_WIDTH))
            return Prepared(lambda: transform(x)[0], [x], weights)
        fields = {"vocab_size": 8, "num_hidden_layers": 1, "hidden_size": LAYER_WIDTH, **dict(self.fields)}
        config = transformers.AutoConfig.for_model(self.model_type, max_position_embeddings=length, **fields)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = transformers.AutoModel.from_config(config).to(device, dtype)
        mixer = model.layers[0].mixer
        # What layers share is the model's: the mixer uses it, but does not list it.
        parameters = [*mixer.parameters(), *(model.shared.parameters() if model.shared is not None else ())]
        return Prepared(lambda: mixer(x, BatchContext(embeddings=x)), [x, *parameters], weights)

    def implementations(self, device: torch.device) -> list[str]:
        """The implementations to compare."""
        if not self.operations:
            return ["auto"]
        return _competing(self.operations, device)


def shape_of(case: Operation | Layer, length: int) -> str:
    """All dimensions, as they are recorded."""
    return f"B={case.batch} N={length} {case.dimensions}"


def _competing(operations: tuple[str, ...], device: torch.device) -> list[str]:
    """The implementations that all operations have: hand-written kernels by the choice of LONGMIX_KERNELS."""
    baselines = importlib.import_module("kernel.baselines")
    found = ["baseline"] if all(hasattr(baselines, operation) for operation in operations) else []
    choice, name = ("triton", "triton") if device.type == "cuda" else ("auto", "cpu")
    runs = all(obstacle(operation, name, device.type) is None for operation in operations)
    return [*found, "portable", *([choice] if runs else [])]


@contextmanager
def using(implementation: str) -> Iterator[None]:
    """Let `longmix.kernels.ops` compute by a choice of LONGMIX_KERNELS, or by the baselines."""
    if implementation == "baseline":
        baselines = importlib.import_module("kernel.baselines")
        them = {name: _fitted(name, getattr(baselines, name)) for name in ops.OPERATIONS if hasattr(baselines, name)}
        with mock.patch.multiple(ops, **them):
            yield
    else:
        with mock.patch.dict(os.environ, {ops.ENVIRONMENT_VARIABLE: implementation}):
            yield


def _fitted(operation: str, baseline: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A baseline with all parameters of its operation; those that it lacks must have their defaults."""
    signature = inspect.signature(getattr(ops, operation))
    taken = inspect.signature(baseline).parameters

    def call(*arguments: object, **keywords: object) -> torch.Tensor:
        bound = signature.bind(*arguments, **keywords).arguments
        for name in bound.keys() - taken.keys():
            if bound[name] is not signature.parameters[name].default:
                raise ValueError(f"{name} is {bound[name]!r}; allowed: what the baseline of {operation} assumes")
        return baseline(**{name: value for name, value in bound.items() if name in taken})

    return call
