"""The precision of a run that leaves it to the device, and who multiplies: chosen once, and kept with the run."""

from pathlib import Path

import torch

from longmix.data_prep.errors import UserError
from longmix.kernels.linear.products import is_chosen

from ..checkpoints import folders
from ..checkpoints.state import ONEDNN, TORCH, read_state
from ..engines.elastic import Layout, read_layout
from ..models.field_check import field_mistakes
from ..processes.precision import choose_precision
from ..settings import reading
from ..settings.configuration import RunConfiguration
from .own_files import CONFIG, is_run


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
    """ONEDNN or TORCH, who makes a run's larger products of fp32 matrices: as its last checkpoint says that can be
    read, or whoever makes them here."""
    for step in reversed(folders.steps(run)):
        try:
            return read_state(folders.path_of(run, step)).products
        except UserError:
            continue
    return products_here(device)


def products_here(device: torch.device) -> str:
    """Who makes them in this process now."""
    return ONEDNN if device.type == "cpu" and is_chosen() else TORCH


def settle_gradients(configuration: RunConfiguration, precision: str) -> str:
    """What the gradients of a run in this precision are summed up in where DeepSpeed's file leaves it open: as in its
    last checkpoint, and in fp32 where there is none. Earlier versions took the run's precision."""
    layout = _last_layout(Path(configuration.run.dir))
    before = (layout.gradients or layout.precision) if layout else "fp32"
    return before if before == precision else "fp32"


def _last_layout(run: Path) -> Layout | None:
    """The layout of the last checkpoint of a run that says it; what is damaged is told by those who need it."""
    for step in sorted(folders.steps(run), reverse=True):
        try:
            return read_layout(folders.path_of(run, step))
        except UserError:
            continue
    return None
