"""Where a model is expected: a model folder, a run folder and a checkpoint mean one model folder each."""

from pathlib import Path

from longmix.data_prep.errors import UserError

from ..models.folder import CONFIGURATION
from ..settings.mistakes import say
from . import contents, folders
from .state import STATE

_DEEPEST = 3  # folders above a run: OUTPUT/TASK/lr-X/seed-K of a fine-tuning
_SHOWN_RUNS = 5


def model_folder(source: str, step: int | None = None, newest: bool = False) -> str:
    """The model folder that `source` means; a folder that is no run and no checkpoint, and a hub name, as they are.

    Of a run it is RUN/model, which a finished run has, or else the model of the newest whole checkpoint; with `newest`
    that of the checkpoint wherever there is one, and with `step` that of the checkpoint of this step.

    Raises:
        UserError: there is no such checkpoint, or it is damaged, or `step` is asked of what is no run, or the folder
            holds several runs, as those of a sweep or of `longmix finetune` do.
    """
    folder = Path(source)
    available = folders.steps(folder)
    if step is not None:
        if not available:
            raise UserError(f"--step is {step}, but {source} is no run folder with checkpoints: leave it out")
        if step not in available:
            raise UserError(f"{source} has no checkpoint of step {step}; it has: {', '.join(map(str, available))}")
        return str(_of_checkpoint(folders.path_of(folder, step), f"the checkpoint of step {step}"))
    if (folder / CONFIGURATION).is_file():
        return source
    if (folder / STATE).is_file() and (folder / folders.MANIFEST).is_file():
        # Its name says its step: `latest` is a link.
        return str(_of_checkpoint(folder.resolve(), f"the checkpoint {folder}"))
    if (folder / contents.MODEL / CONFIGURATION).is_file() and not (newest and available):
        return str(folder / contents.MODEL)
    if not available:
        _refuse_folder_of_runs(folder)
        return source
    chosen = folders.newest(folder)
    if chosen is not None:
        return str(chosen / contents.MODEL)
    if folders.steps(folder) != available:
        return model_folder(source, newest=newest)  # it trains: what was there is gone, and there are newer ones
    raise UserError(f"{source}: every checkpoint is damaged; see the warnings above")


def newest_own_model(run: Path) -> str | None:
    """The model folder of a run's newest checkpoint of which it is whole, whatever else of it is not; None: of none."""
    found = (folders.path_of(run, step) for step in reversed(folders.steps(run)))
    return next((str(folder / contents.MODEL) for folder in found if folders.has_whole(folder, contents.MODEL)), None)


def told_model_folder(source: str) -> str:
    """As `model_folder`; where that is another folder, a line on stderr says which."""
    found = model_folder(source)
    if found != source:
        say(f"longmix: the model of {source} is {found}")
    return found


def _refuse_folder_of_runs(folder: Path) -> None:
    levels = ["*/" * depth for depth in range(1, _DEEPEST + 1)] if folder.is_dir() else []
    found = [path.parent.parent for level in levels for path in folder.glob(f"{level}{contents.MODEL}/{CONFIGURATION}")]
    if found:
        shown = ", ".join(map(str, sorted(found)[:_SHOWN_RUNS]))
        more = f" and {len(found) - _SHOWN_RUNS} more" if len(found) > _SHOWN_RUNS else ""
        raise UserError(f"{folder} is no model, but holds runs: name one of {shown}{more}")


def _of_checkpoint(folder: Path, name: str) -> Path:
    reason = folders.defect(folder)
    if reason is not None:
        raise UserError(f"{name} is damaged: {reason}; choose another")
    return folder / contents.MODEL
