"""`run.deterministic`: what torch must be told, and what must stay as it is, so that equal runs give equal bits."""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import torch

from longmix.data_prep.errors import UserError

from ..processes.precision import keep_digits_of_fp32
from ..settings.changes import is_free
from ..settings.sections import RunSection

# cuBLAS keeps its workspaces apart, and its results equal, with one of these; it reads them at its first product.
CUBLAS_VARIABLE, CUBLAS_VALUES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
# Which thread adds up what depends on how many there are: a deterministic run has a number of its own.
DETERMINISTIC_THREADS = 1


def refuse_impossible(run: RunSection, device: torch.device) -> None:
    """Raise UserError if the environment keeps a run from being deterministic."""
    found = os.environ.get(CUBLAS_VARIABLE, CUBLAS_VALUES[0])
    if run.deterministic and device.type == "cuda" and found not in CUBLAS_VALUES:
        raise UserError(
            f"run.deterministic is true, but the environment says {CUBLAS_VARIABLE}={found}: unset it, or set it to "
            f"{' or '.join(CUBLAS_VALUES)}"
        )


def threads_of(run: RunSection) -> int:
    """CPU threads that a process of the run computes with."""
    return run.threads or (DETERMINISTIC_THREADS if run.deterministic else torch.get_num_threads())


@contextlib.contextmanager
def computing(run: RunSection, device: torch.device) -> Iterator[None]:
    """Context in which torch computes with `run.threads`, in fp32 with all of its digits, and deterministically if
    `run.deterministic` says so.

    Enter it before the first product on a GPU.
    """
    threads = threads_of(run)
    with contextlib.ExitStack() as before:
        before.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
        if "OMP_NUM_THREADS" not in os.environ:
            # Accelerate, which finds no number, would set one of its own.
            before.callback(os.environ.pop, "OMP_NUM_THREADS", None)
            os.environ["OMP_NUM_THREADS"] = str(threads)
        backends = torch.backends
        if device.type == "cuda":
            before.callback(setattr, backends.cudnn, "allow_tf32", backends.cudnn.allow_tf32)
            keep_digits_of_fp32()
        if run.deterministic:
            if device.type == "cuda":
                os.environ.setdefault(CUBLAS_VARIABLE, CUBLAS_VALUES[0])
            before.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
            before.callback(setattr, backends.cudnn, "deterministic", backends.cudnn.deterministic)
            before.callback(setattr, backends.cudnn, "benchmark", backends.cudnn.benchmark)
            before.callback(backends.cuda.enable_cudnn_sdp, backends.cuda.cudnn_sdp_enabled())
            torch.use_deterministic_algorithms(True)
            backends.cudnn.deterministic, backends.cudnn.benchmark = True, False
            # The other backends of attention have a deterministic backward pass, which the line above asks for.
            backends.cuda.enable_cudnn_sdp(False)
        yield


def operation_refused(error: Exception) -> str | None:
    """The operation that torch refused because it has no deterministic form; None for any other error."""
    found = re.match(r"(\S+) does not have a deterministic implementation", str(error))
    return found[1] if found and torch.are_deterministic_algorithms_enabled() else None


def changed_circumstances(run: RunSection, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Lines about what lets a run that goes on differ from an uninterrupted one.

    Args:
        before, now: what is noted of it in its config.yaml; an earlier version noted less.

    Raises:
        UserError: `run.deterministic` is on, and says that nothing may.
    """
    changed = {
        name: (_without_cores(before[name]), _without_cores(now[name]))
        for name in ("threads", "processes", "device", "kernels", "products")
        if name in before and _comparable(before[name]) != _comparable(now[name])
    }
    if "kernels" in changed:  # none of ours: those of PyTorch
        changed["kernels"] = tuple(value or "of plain PyTorch" for value in changed["kernels"])
    if run.deterministic and changed and not is_free("run.deterministic", run.allow_changes):
        listed = "; ".join(f"{name} was {old} and is now {new}" for name, (old, new) in changed.items())
        raise UserError(
            f"run.deterministic: the run in {run.dir} cannot go on to the same bits: {listed}. Bring that back, or "
            "allow it with 'run.allow_changes=[run.deterministic]'"
        )
    notes = {
        "threads": ("{} threads in each process", "run.threads, or OMP_NUM_THREADS, sets the number"),
        "kernels": ("the kernels {}", "LONGMIX_KERNELS sets them; longmix doctor says what keeps some from running"),
        "products": ("fp32 products by {}", "LONGMIX_KERNELS and the processor decide; longmix doctor says which"),
    }
    return [
        f"note: until here this run computed with {what.format(changed[name][0])}, and now with {changed[name][1]}: "
        f"sums are rounded otherwise, and weights differ in their last bits ({remedy})"
        for name, (what, remedy) in notes.items()
        if name in changed
    ]


def _without_cores(value: Any) -> Any:
    """The name of a processor without its number of cores, which the threads' number stands for."""
    return re.sub(r", \d+ cores$", "", value) if isinstance(value, str) else value


def _comparable(value: Any) -> Any:
    """What is noted, so that what gives the same bits is equal.

    Where Converter's rotations run as token_givens_mix, earlier versions noted givens_mix; only in Triton do the two
    compute angles otherwise. And they noted nothing of the loss and of rotary positions, which were plain PyTorch's.
    """
    value = _without_cores(value)
    if not isinstance(value, str):
        return value
    value = re.sub(r"\btoken_(?=givens_mix (cpu|portable)(,|$))", "", value)
    not_noted = ("linear_cross_entropy portable", "rotary_heads portable")
    return ", ".join(part for part in value.split(", ") if part not in not_noted)
