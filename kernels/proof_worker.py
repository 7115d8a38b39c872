"""The process that proves Triton kernels, started by proving.py: a kernel may hang, or end the process that runs it.

It reads one line of JSON, {"device", "proofs": [[operation, form], ...], "parent",
"measured_positions"}, and writes one line when the device has computed something, then one for each proof.
"""

import ctypes
import dataclasses
import itertools
import json
import os
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from . import ops
from .proving import proof_module, unspell
from .verdicts import Outcome

# Positions and whether the input is hard: a multiple of every block and of 16, and neither.
INPUTS = ((96, False), (67, True))
# Relative errors (root mean square) of a result and of its gradients; the kernels compute in fp32, half precision
# may have factors of 11 binary digits, and round once.
ALLOWED = {torch.float64: (1e-10, 1e-10), torch.float32: (1e-5, 1e-4)}
ALLOWED_IN_HALF = (2e-2, 2e-2)
CALLS, TURNS = 5, 5  # that are timed together, and how often


def prove_form(operation: str, form: tuple, device: torch.device, measured_positions: int = 0) -> Outcome:
    """Compare the Triton kernels with plain PyTorch in float64 on a CPU, results and gradients.

    The kernels run twice on each input, which must not change a bit. Whatever goes wrong is a failure with its reason,
    but for a device without memory, which proves nothing (`decided` is false).

    Args:
        form: of proof.py in the operation's folder.
        measured_positions: N of the inputs on which both implementations are timed behind the proof; 0: not at all.
    """
    outcome = Outcome(False)
    begin = time.monotonic()
    try:
        with _unwritten_memory_is_nan():
            found = [_run("triton", operation, form, case, device) for case in INPUTS]
            outcome.compile_seconds, begin = time.monotonic() - begin, time.monotonic()
            outcome.error, outcome.reason = _compare(operation, form, found, device)
        outcome.passed = outcome.reason is None
        outcome.seconds = time.monotonic() - begin
        if outcome.passed and measured_positions:
            _measure(outcome, operation, form, (measured_positions, False), device)
    except torch.OutOfMemoryError:
        outcome.passed, outcome.decided, outcome.reason = False, False, "the GPU has no memory left for a proof"
    except Exception as error:
        outcome.passed, outcome.reason = False, _one_line(error)
    return outcome


def _compare(operation, form, found, device) -> tuple[float, str | None]:
    """The largest relative error of all inputs and outputs, and what is wrong first, or None."""
    largest, reason = 0.0, None
    for case, first in zip(INPUTS, found, strict=True):
        again = _run("triton", operation, form, case, device)
        truth = _run("portable", operation, form, case, torch.device("cpu"), torch.float64)
        for number, (expected, value, repeated) in enumerate(zip(truth, first, again, strict=True)):
            name = "its result" if number == 0 else f"gradient {number}"
            error = _relative_rms(value, expected)
            largest = max(largest, error)
            dtype = value.dtype if form.dtype in ALLOWED else form.dtype  # rows in half precision touch everything
            bound = ALLOWED.get(dtype, ALLOWED_IN_HALF)[min(number, 1)]
            if reason is None and error > bound:
                reason = f"{name} differs by {error:.1e} (relative; allowed: {bound:.0e})"
            if reason is None and not torch.equal(value, repeated):
                reason = f"{name} is another one each time"
    return largest, reason


def _relative_rms(value: torch.Tensor, truth: torch.Tensor) -> float:
    """|value - truth| / |truth|; the absolute error where the truth is zero; infinite for what is not finite."""
    if not value.isfinite().all():
        return float("inf")
    error, size = ((x.double().square().mean().sqrt()).item() for x in (value.double() - truth.double(), truth))
    return error / size if size > 0 else error


def _call(operation, form, case, device, dtype=None) -> tuple[tuple, list[torch.Tensor]]:
    """The arguments of a case, in `dtype` or, without one, in those of the form, and those that have a gradient.

    A form whose floating arguments are not all of its dtype has `dtypes`: those of the first ones.
    """
    positions, hard = case
    made = proof_module(operation).inputs(operation, form, positions, hard, torch.Generator().manual_seed(positions))
    arguments, leaves = [], []
    dtypes = itertools.chain(getattr(form, "dtypes", ()), itertools.repeat(form.dtype))
    for argument in made:
        if isinstance(argument, torch.Tensor):
            if argument.is_floating_point():
                # Rounded alike for all: what is compared is the arithmetic.
                own = next(dtypes)
                argument = _as_it_lies(argument.to(own), argument.stride(), dtype or own, device).requires_grad_()
                leaves.append(argument)
            argument = argument.to(device)
        arguments.append(argument)
    return tuple(arguments), leaves


def _as_it_lies(tensor, strides, dtype, device) -> torch.Tensor:
    """A copy with those strides: the form of a call may depend on them, and `to` keeps no gaps between rows."""
    return torch.empty_strided(tensor.shape, strides, dtype=dtype, device=device).copy_(tensor)


def _run(name, operation, form, case, device, dtype=None) -> list[torch.Tensor]:
    """Results, one behind the other, and gradients of an implementation on a case, on the CPU."""
    arguments, leaves = _call(operation, form, case, device, dtype)
    with _forced(name):
        results = _results(operation, arguments)
        generator = torch.Generator().manual_seed(1)
        cotangents = [torch.randn(result.shape, generator=generator).to(form.dtype).to(result) for result in results]
        gradients = torch.autograd.grad(results, leaves, cotangents, materialize_grads=True)
    whole = torch.cat([result.detach().cpu().flatten() for result in results])
    return [whole, *(gradient.cpu() for gradient in gradients)]


def _results(operation, arguments) -> tuple[torch.Tensor, ...]:
    """What an operation gives, one tensor or several."""
    found = getattr(ops, operation)(*arguments)
    return found if isinstance(found, tuple) else (found,)


def _measure(outcome, operation, form, case, device) -> None:
    """Note the times of both implementations, unless the device's memory is too small for them."""
    with suppress(torch.OutOfMemoryError):
        outcome.milliseconds = _milliseconds("triton", operation, form, case, device)
        outcome.portable_milliseconds = _milliseconds("portable", operation, form, case, device)


def _milliseconds(name, operation, form, case, device) -> float:
    """The median time of result and gradients."""
    arguments, leaves = _call(operation, form, case, device)

    def turn(calls):
        begin = time.perf_counter()
        for _ in range(calls):
            results = _results(operation, arguments)
            torch.autograd.grad(results, leaves, [*map(torch.ones_like, results)], materialize_grads=True)
        _finish(device)
        return 1e3 * (time.perf_counter() - begin) / calls

    with _forced(name):
        turn(2)
        return statistics.median(turn(CALLS) for _ in range(TURNS))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _unwritten_memory_is_nan() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def _forced(name: str) -> Iterator[None]:
    """Run an implementation by force, whatever the environment says."""
    before = os.environ.get(ops.ENVIRONMENT_VARIABLE)
    os.environ[ops.ENVIRONMENT_VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[ops.ENVIRONMENT_VARIABLE]
        else:
            os.environ[ops.ENVIRONMENT_VARIABLE] = before


# The process: nothing but answers goes to its output, and it ends with the process that has started it.


def main() -> None:
    """Answer the line that is read."""
    answers = os.dup(1)
    os.dup2(2, 1)

    def answer(content: dict) -> None:
        os.write(answers, json.dumps(content).encode() + b"\n")

    asked = json.loads(sys.stdin.readline())
    _end_with(asked["parent"])
    warnings.simplefilter("ignore")
    device = torch.device(asked["device"])
    reason = _fault(device)
    answer({"reason": reason})
    if reason is not None:
        return
    for operation, spelled in asked["proofs"]:
        outcome = prove_form(operation, unspell(operation, spelled), device, asked["measured_positions"])
        answer(dataclasses.asdict(outcome))
        # A kernel that reads or writes where it must not spoils the device for its process: another one goes on.
        if not outcome.passed and _fault(device) is not None:
            return


def _fault(device: torch.device) -> str | None:
    """Why nothing can be computed on the device, or None."""
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        ones = torch.ones(32, 32, device=device)
        found = (ones @ ones).sum().item()
    except Exception as error:
        return _one_line(error)
    return None if found == 32**3 else f"a product of matrices of ones sums to {found}, not to {32**3}"


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _end_with(parent: int) -> None:
    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
