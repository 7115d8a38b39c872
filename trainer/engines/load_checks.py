"""Checks of a checkpoint's files. A hash beside a file protects it from damage, not from malice: files are checked
before an engine unpickles them, and so is what it has loaded."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from longmix.data_prep.errors import MachineFault, UserError, reason_of

from ..processes.world import LoneFault, LoneMistake, fault_of, is_lost_rank

_REMEDY = "move this checkpoint out of the run folder, and the run goes on from the one before it"

_SHAPES_DIFFER = re.compile(r"size mismatch|(Missing|Unexpected) key\(s\) in state_dict")
_OTHER_SHAPE = (
    "the run's model has another shape than the checkpoint's: take back what was changed of model, or begin a new run "
    f"that starts from this one's model (model.from); if nothing was changed, {_REMEDY}"
)


def refuse_foreign_names(folder: Path) -> None:
    """Raise UserError if a pickle below `folder` names a function or class that no checkpoint of ours does.

    Nothing is unpickled. torch, which must only have been told the safe names, then executes none but those.
    """
    for path in sorted(folder.rglob("*.pt")):
        try:
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        except Exception as error:  # torch stumbles over such files in many ways
            raise UserError(f"{path} is no file of a checkpoint ({_in_a_line(error)}): {_REMEDY}") from None
        if names:
            listed = ", ".join(sorted(names)[:3])
            raise UserError(
                f"{path} is a pickle that would run {listed}, which no checkpoint does: nothing of it was executed; "
                f"find out who has written it, or {_REMEDY}"
            )


@contextlib.contextmanager
def loading(folder: Path) -> Iterator[None]:
    """Context in which an engine loads: what it fails at comes from the files, unless the machine is at fault.

    Raises:
        LoneMistake: other ranks may wait in an exchange of the engine's.
        LoneFault: no memory, a disk or a device that fails; the files may be whole.
    """
    try:
        yield
    except (UserError, MachineFault):
        raise
    except Exception as error:
        if is_lost_rank(error):
            raise
        if (fault := fault_of(error)) is not None:
            raise LoneFault(f"{folder} could not be loaded: {fault}") from error
        remedy = _OTHER_SHAPE if _SHAPES_DIFFER.search(str(error)) else _REMEDY
        raise LoneMistake(f"{folder} cannot be loaded ({_in_a_line(error)}): {remedy}") from error


def refuse_not_finite(folder: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise UserError if what this rank has loaded is spoilt: such a run would only drop its steps."""
    for name, parameter in module.named_parameters():
        # At ZeRO stage 3 each rank holds its share.
        if not torch.isfinite(getattr(parameter, "ds_tensor", parameter)).all():
            raise UserError(f"{folder}: the weights hold NaN or infinity, first in {name}: {_REMEDY}")
    for name, buffer in module.named_buffers():
        if torch.isnan(buffer).any():
            raise UserError(f"{folder}: the buffer {name} holds NaN: {_REMEDY}")
    for master, moments in optimizer.state.items():
        tensors = [master, *(value for value in moments.values() if isinstance(value, torch.Tensor))]
        if any(torch.isnan(tensor).any() for tensor in tensors):
            raise UserError(f"{folder}: the optimizer's state holds NaN: {_REMEDY}")


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {reason_of(error)[:300]}"
