"""What a run keeps as it began: its precision, if it leaves that to the device, who multiplies, and its first seed."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from longmix.data_prep.errors import UserError
from longmix.kernels.linear.products import is_chosen

from ..checkpoints import folders
from ..checkpoints.state import ONEDNN, STATE, TORCH, RunState, read_state
from ..engines.elastic import LAYOUT, Layout, read_layout
from ..models.field_check import field_mistakes
from ..processes.precision import choose_precision
from ..settings import reading
from ..settings.configuration import RunConfiguration
from .folder import noted_facts
from .own_files import CONFIG, is_run

_Part = TypeVar("_Part")


def settle_precision(configuration: RunConfiguration, device: torch.device) -> tuple[str, str | None]:
    """The precision of a run, and where it is left to the device a line that says which and why.

    A run that has begun keeps its own, whatever device it goes on with.
    """
    if configuration.precision != "auto":
        return configuration.precision, None
    kept = _kept_precision(Path(configuration.run.dir))
    precision, reason = (kept, "as the run was begun") if kept else choose_precision(device)
    return precision, f"precision: {precision} (auto: {reason})"


def _kept_precision(run: Path) -> str | None:
    """The precision of a run that has begun, by its config.yaml; earlier versions left `auto` there, and wrote it with
    the checkpoints alone. None: nothing says it; what is damaged is told by those who need it."""
    if not is_run(run):
        return None
    try:
        noted = reading.load([str(run / CONFIG)], [], field_mistakes).precision
    except UserError:
        return None
    if noted != "auto":
        return noted
    layout = _last_layout(run)
    return layout.precision if layout else None


def settle_products(run: Path, device: torch.device) -> str:
    """ONEDNN or TORCH, who makes a run's larger products of fp32 matrices: as its last checkpoint says, or whoever
    makes them here. Earlier versions, whose checkpoints do not say it, had none but torch's, but for one that noted it
    in config.yaml."""
    state = _last_state(run)
    if state is None:
        return products_here(device)
    facts = noted_facts(run)
    if state.products is None and (facts.get("products") == ONEDNN or "linear onednn" in str(facts.get("kernels"))):
        return ONEDNN
    return state.products or TORCH


def products_here(device: torch.device) -> str:
    """Who makes them in this process now."""
    return ONEDNN if device.type == "cpu" and is_chosen() else TORCH


def settle_gradients(configuration: RunConfiguration, precision: str) -> str:
    """What the gradients of a run in this precision are summed up in where DeepSpeed's file leaves it open: as in its
    last checkpoint, and in fp32 where there is none. Earlier versions took the run's precision."""
    layout = _last_layout(Path(configuration.run.dir))
    before = (layout.gradients or layout.precision) if layout else "fp32"
    return before if before == precision else "fp32"


def settle_seed(configuration: RunConfiguration) -> int | None:
    """What the generators of a run begin with: run.seed when it began. None: an earlier version did not note it, and
    the run may have another one by now."""
    state = _last_state(Path(configuration.run.dir))
    return configuration.run.seed if state is None else state.seed


def _last_state(run: Path) -> RunState | None:
    return _last(run, STATE, read_state)


def _last_layout(run: Path) -> Layout | None:
    return _last(run, LAYOUT, read_layout)


def _last(run: Path, name: str, read: Callable[[Path], _Part]) -> _Part | None:
    """What `read` finds in a file of the run's last checkpoint in which that is whole: what is damaged is passed over
    when a run goes on, and told by those who need it."""
    for folder in (folders.path_of(run, step) for step in sorted(folders.steps(run), reverse=True)):
        if not folders.has_whole(folder, name):
            continue
        try:
            return read(folder)
        except UserError:
            continue
    return None
