"""Resuming with another number of ranks: what wrote a checkpoint, and its conversion where DeepSpeed needs it.

At ZeRO stages 1 to 3 every rank holds a part of the optimizer's state: for another number of ranks, or for the other of
stages 1 and 2, rank 0 converts these parts to DeepSpeed's universal form, which any number of ranks can load.
"""

import argparse
import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from longmix.data_prep.errors import UserError, reason_of
from longmix.data_prep.state_files import read_json

from ..optimization.optimizer import set_fused
from ..processes.shared_files import see_together
from ..processes.world import World, agree, fault_of

LAYOUT = "layout.json"
# The engine's part of a checkpoint; DeepSpeed calls it a tag.
ENGINE = "engine"
_CONVERTED = ".universal-"
_OF_CONVERTED = {ENGINE, "latest_universal"}  # the latter is DeepSpeed's
STAGES = (0, 1, 2, 3)
PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Layout:
    """The engine and ranks that wrote a checkpoint, or that a run resumes with.

    Attributes:
        stage: of ZeRO; None without DeepSpeed.
        ranks: how many there are.
        precision: fp32, bf16 or fp16.
        fused: whether torch's fused steps are taken. Either way can go on from the other's state, with other last bits:
            a run keeps its own. Earlier versions took none, and do not say so.
        gradients: what they are summed up in over micro-batches and ranks. None in earlier versions, which took the
            run's precision.
    """

    stage: int | None
    ranks: int
    precision: str
    fused: bool = field(default=False, compare=False)
    gradients: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        engine = "without DeepSpeed" if self.stage is None else f"at ZeRO stage {self.stage}"
        return f"{engine}, in {self.precision}, by {self.ranks} process{'es' * (self.ranks != 1)}"


def read_layout(folder: Path) -> Layout:
    """The layout that a checkpoint was written by. Raises UserError if it does not say so."""
    try:
        values = read_json(folder / LAYOUT)
        return Layout(**_checked(values))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder / LAYOUT} does not say what the checkpoint was written by ({error})") from None


def _checked(values: Any) -> dict[str, Any]:
    """The fields of a layout. Raises ValueError for other values."""
    names = {entry.name for entry in fields(Layout)}
    if not isinstance(values, dict) or {*values, "fused", "gradients"} != names:
        raise ValueError(f"it must be a map of {', '.join(sorted(names))}")
    stage, ranks, precision = (values[name] for name in ("stage", "ranks", "precision"))
    # JSON's true equals 1, and 1.0 does.
    if stage is not None and (type(stage) is not int or stage not in STAGES):
        raise ValueError(f"stage is {stage!r}, but takes null or one of {', '.join(map(str, STAGES))}")
    if type(ranks) is not int or ranks < 1:
        raise ValueError(f"ranks is {ranks!r}, but takes a whole number from 1 on")
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}, but takes one of {', '.join(PRECISIONS)}")
    if type(values.get("fused", False)) is not bool:
        raise ValueError(f"fused is {values['fused']!r}, but takes true or false")
    if values.get("gradients") not in (None, *PRECISIONS):
        raise ValueError(f"gradients is {values['gradients']!r}, but takes null or one of {', '.join(PRECISIONS)}")
    return values


# Before loading: whether this run can use the checkpoint at all, as it is or converted.


def must_convert(saved: Layout, now: Layout, folder: Path, allowed: list[str]) -> bool:
    """Whether the checkpoint in `folder` is of use only when converted. `allowed`: the run's `allow_changes`.

    Raises:
        UserError: it is of no use.
    """
    if saved.precision != now.precision and "precision" not in allowed:
        raise UserError(
            f"{folder} was written {saved}, and this run is in {now.precision}: set precision={saved.precision}, or "
            "allow the change with 'run.allow_changes=[precision]'"
        )
    if saved.stage != now.stage and {saved.stage, now.stage} != {1, 2}:
        raise UserError(
            f"{folder} was written {saved}, and this run goes on {now}; DeepSpeed converts its state between stages 1 "
            f"and 2 alone: {_way_round(folder)}"
        )
    if saved.stage == 0 and saved.precision != now.precision:
        raise UserError(
            f"{folder} was written {saved}, and at stage 0 DeepSpeed cannot load that in {now.precision}: set "
            f"precision={saved.precision}, or {_way_round(folder)}"
        )
    return saved.stage not in (None, 0) and saved != now


def _way_round(folder: Path) -> str:
    return f"start anew from its weights, with a fresh optimizer: model.from={folder}/model and another run.dir"


@dataclass(frozen=True)
class Source:
    """A folder to load an engine's state from.

    Attributes:
        folder: a checkpoint, or a copy that is gone afterwards.
        is_converted: whether it is such a copy.
        saved: the layout that the checkpoint was written by.
    """

    folder: Path
    is_converted: bool
    saved: Layout


@contextlib.contextmanager
def loadable(folder: Path, now: Layout, world: World, names: set[str], allowed: list[str]) -> Iterator[Source]:
    """Context with the source to load from, to resume from the checkpoint in `folder`.

    Every rank must enter, and all must have loaded when rank 0 leaves. `names`: the model's parameters and buffers.
    `allowed`: the run's `allow_changes`.

    Raises:
        UserError: on every rank: the checkpoint is of no use to this run, or cannot be converted.
    """
    saved = world.from_first(agree(world, lambda: read_layout(folder) if world.is_first else None))
    is_converted = must_convert(saved, now, folder, allowed)
    if world.is_first:
        _remove_converted(folder)
    source = folder
    try:
        if is_converted:
            made = agree(world, lambda: _convert(folder, saved, now, names) if world.is_first else None)
            source = world.from_first(made)
            see_together(world, source)
        with _plainly_named(source) as plain:
            yield Source(plain, is_converted, saved)
    finally:
        if world.is_first:
            _remove_converted(folder)


# The conversion itself, by DeepSpeed's own tool, whose paths and names are not trusted.


@contextlib.contextmanager
def _plainly_named(folder: Path) -> Iterator[Path]:
    """Another path to a folder: DeepSpeed takes paths for patterns, and finds nothing below `runs[1]` or `c++`.

    It leads through this process's open files, and is gone with it, however that ends.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _remove_converted(folder: Path) -> None:
    """Remove the copies made by this start, or by an earlier one that was killed; nothing reads them again."""
    for made in folder.parent.glob(f"{_CONVERTED}*"):
        # Whatever else has such a name holds other files.
        if not made.is_symlink() and made.is_dir() and {path.name for path in made.iterdir()} <= _OF_CONVERTED:
            shutil.rmtree(made, ignore_errors=True)


def _convert(folder: Path, saved: Layout, now: Layout, names: set[str]) -> Path:
    """A folder with the checkpoint's engine in DeepSpeed's universal form. Raises UserError if there is none."""
    from deepspeed.checkpoint import ds_to_universal

    try:
        _refuse_other_names(folder / ENGINE, names)
        made = Path(tempfile.mkdtemp(prefix=_CONVERTED, dir=folder.parent))
        # Mapped: the files of all ranks go through rank 0, each as large as what a rank holds.
        mapped = torch.utils.serialization.config.patch("load.mmap", True)
        with _plainly_named(folder) as source, _plainly_named(made) as target, _silence(), mapped:
            ds_to_universal.main(
                argparse.Namespace(
                    input_folder=str(source / ENGINE),
                    output_folder=str(target / ENGINE),
                    num_extract_workers=1,
                    num_merge_workers=1,
                    keep_temp_folder=False,
                    strict=True,
                    inject_missing_state=False,
                )
            )
            if saved.stage == 3:
                _drop_unread_state(target / ENGINE / "zero" / "optimizer_state.pt")
    except Exception as error:
        if (fault := fault_of(error)) is not None:
            raise fault from error
        # The files are whole: it is DeepSpeed that refuses.
        raise UserError(
            f"{folder} was written {saved}; to go on {now}, it cannot be converted: "
            f"{reason_of(error)}; resume as it was written, or {_way_round(folder)}"
        ) from error
    return made


def _drop_unread_state(path: Path) -> None:
    """Leave what DeepSpeed reads of this file again, the counts of steps and the settings: at stage 3 it puts all that
    the first rank held into it, and each rank would load that whole."""
    saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    optimizer = saved["optimizer_state_dict"]
    steps = {index: {"step": moments["step"].clone()} for index, moments in optimizer["state"].items()}
    kept = {name: value for name, value in saved.items() if name != "fp32_flat_groups"}
    torch.save({**kept, "optimizer_state_dict": {**optimizer, "state": steps}}, short := path.with_suffix(".short"))
    short.replace(path)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _refuse_other_names(engine: Path, names: set[str]) -> None:
    """The converter makes a folder of every name that it finds in the files: none may lead out of its own."""
    for path in sorted(engine.glob("*.pt")):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        optimizer = state.get("optimizer_state_dict") or {}
        groups = [*(state.get("param_shapes") or []), *(optimizer.get("param_slice_mappings") or [])]
        found = {str(name) for group in [*groups, state.get("module") or {}] for name in group}
        if found - names:
            raise UserError(f"{path} holds {min(found - names)!r}, which the model does not have")


# After loading: what DeepSpeed leaves out, shares or overwrites when it loads a converted checkpoint.


def separate_steps(optimizer: torch.optim.Optimizer) -> None:
    """Let every parameter count its own steps: those converted from stage 3 share one count, which all would raise."""
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()


def go_on_as(saved: Layout, now: Layout, optimizer: torch.optim.Optimizer) -> Layout:
    """Let a loaded optimizer step as the one that wrote the checkpoint did, and return the layout of that."""
    set_fused(optimizer, saved.fused)
    return replace(now, fused=saved.fused)


def load_buffers(module: torch.nn.Module, folder: Path) -> None:
    """Load the buffers of an engine's checkpoint, which a converted one is loaded without.

    Parameters that are not trained have no state either: they stay as the model was made.
    """
    path = min((folder / ENGINE).glob("*model_states.pt"))
    saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["module"]
    for name, buffer in module.named_buffers():
        buffer.data.copy_(saved[name])


@contextlib.contextmanager
def keeping_settings(optimizer: Any, has_other_precision: bool) -> Iterator[None]:
    """A checkpoint brings the optimizer settings that it was written with: let those of this run hold.

    DeepSpeed gives all groups the first one's, weight decay too, when it loads what was converted from stage 3. In
    another precision the loss is scaled otherwise.
    """
    kept = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    names = ["clip_grad", *(["loss_scaler", "dynamic_loss_scale"] if has_other_precision else [])]
    own_settings = {name: getattr(optimizer, name) for name in names if hasattr(optimizer, name)}
    yield
    for group, own in zip(optimizer.param_groups, kept, strict=True):
        group.update(own)
    for name, value in own_settings.items():
        setattr(optimizer, name, value)
