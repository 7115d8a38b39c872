"""The registration of hand-written kernels as operators of torch, which compilers, autograd and export can see.

An operation's operator.py declares its operators; cpu_kernels.py and gpu_kernels.py beside it compute them. Torch's
dispatcher takes as long for an operator in Python as for several of its own; so calls at which nobody looks go past it.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.library import CustomOpDef

from .common.eager import are_plain, makes_a_program

Tensors = tuple[torch.Tensor | None, ...]


class Operator:
    """An operator of torch, longmix::name.

    Args:
        registered: the operator as torch's dispatcher has it.
        compute: what it computes, of the same arguments.
    """

    def __init__(self, registered: CustomOpDef, compute: Callable[..., object]):
        self.registered, self.compute = registered, compute
        # Computes too, and has a derivative.
        self.function: type[torch.autograd.Function] | None = None

    def __call__(self, kernels: str, *arguments: object) -> object:
        """Its results, for the kernels of a module beside its declaration."""
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        if makes_a_program() or not are_plain(tensors):
            return self.registered(kernels, *arguments)
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            return self.compute(kernels, *arguments)
        # What has no derivative is refused by torch, once somebody asks for it.
        return (self.registered if self.function is None else self.function.apply)(kernels, *arguments)


def operator(package: str, name: str) -> Callable[[Callable], Operator]:
    """Decorator that registers longmix::`name`, computed by the functions `name` of two modules in `package`.

    What it decorates declares the operator: its annotated arguments, of which the first, `kernels`, names the module
    that computes, "cpu_kernels" or "gpu_kernels", and is not handed on to it; and, as its body, empty results of the
    right shapes and dtypes for those who trace.
    """

    def register(declaration: Callable) -> Operator:
        def compute(kernels: str, *arguments: object) -> object:
            with on_their_card(arguments):
                return getattr(importlib.import_module(f"{package}.{kernels}"), name)(*arguments)

        @functools.wraps(declaration)
        def declare(*arguments: object, **named: object) -> object:
            _refuse_several_devices(name, [*arguments, *named.values()])
            return declaration(*arguments, **named)

        schema = torch.library.infer_schema(declaration, mutates_args=())
        registered = torch.library.custom_op(f"longmix::{name}", compute, mutates_args=(), schema=schema)
        registered.register_fake(declare)
        return Operator(registered, compute)

    return register


def _refuse_several_devices(name: str, arguments: Sequence[object]) -> None:
    """Torch takes one argument without data for a call of which nothing is wanted but its result's shape."""
    devices = sorted({value.device.type for value in arguments if isinstance(value, torch.Tensor)})
    if len(devices) > 1:
        raise ValueError(f"{name} has tensors on {' and '.join(devices)}; allowed: all on one device")


def on_their_card(arguments: tuple[object, ...]) -> AbstractContextManager:
    """Context whose current GPU is that of the tensors: Triton launches on the current one, wherever tensors lie."""
    cards = (value.device for value in arguments if isinstance(value, torch.Tensor) and value.is_cuda)
    card = next(cards, None)
    # Where none is initialised, the tensors only pretend to lie on one.
    return nullcontext() if card is None or not torch.cuda.is_initialized() else torch.cuda.device(card)


def keep_arguments(output: torch.Tensor, *arguments: object) -> tuple[object, ...]:
    """The arguments, which cost nothing to keep for the derivative: the caller holds them too."""
    return arguments


def differentiate(
    forward: Operator,
    derivative: Callable[..., Tensors],
    keep: Callable[..., tuple[object, ...]] = keep_arguments,
) -> None:
    """Register how an operator is differentiated.

    Args:
        forward: the operator; only its first result has a gradient, more are for `keep`.
        derivative: (kernels, needed, gradient of the result, contiguous, *kept) -> gradients of the first arguments
            behind `kernels`; all later ones have none. `needed` says for each argument whether anybody asks.
        keep: (result or results, *arguments without `kernels`) -> kept, tensors and others.
    """

    def save(ctx, inputs, output):
        ctx.set_materialize_grads(False)  # results that are for `keep` get none
        ctx.kernels, *arguments = inputs
        kept = keep(output, *arguments)
        ctx.others = [None if isinstance(value, torch.Tensor) else value for value in kept]
        ctx.save_for_backward(*(value if isinstance(value, torch.Tensor) else None for value in kept))

    def backward(ctx, gradient, *of_others):
        _, *needed = ctx.needs_input_grad
        if gradient is None:
            return None, *[None] * len(needed)
        pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
        kept = (other if tensor is None else tensor for tensor, other in pairs)
        gradients = derivative(ctx.kernels, needed, gradient.contiguous(), *kept)
        return None, *gradients, *[None] * (len(needed) - len(gradients))

    forward.registered.register_autograd(backward, setup_context=save)

    def compute(ctx, kernels, *arguments):
        output = forward.compute(kernels, *arguments)
        save(ctx, (kernels, *arguments), output)
        return output

    methods = {"forward": staticmethod(compute), "backward": staticmethod(backward)}
    # The name is what a result's `grad_fn` shows, and anomaly mode.
    forward.function = type(forward.registered._name, (torch.autograd.Function,), methods)
