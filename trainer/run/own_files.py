"""Whose the files of a run folder are: what a run writes, renames or removes there must be its own.

A folder that holds `config.yaml` as longmix writes it is a run, and all names below are its own. In any other folder
they are somebody else's, unless their content shows that a start which was killed early has left them.
"""

from collections.abc import Callable
from pathlib import Path

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import LOCK
from longmix.data_prep.made_folders import MODEL, refuse_foreign
from longmix.data_prep.state_files import read_json
from longmix.kernels.common.safe_files import read_input

from ..checkpoints import folders
from ..export.earlier import earlier_model
from ..processes.watchdog import is_written_by_ranks
from ..settings.reading import PROVENANCE_KEY
from ..settings.run_file import MOST_BYTES, parse_yaml

CONFIG = "config.yaml"
MODEL_FOLDER = "model"


def is_run(run: Path) -> bool:
    """Whether a folder is that of a run: its config.yaml is one that longmix wrote, or checkpoints stand in it."""
    return has_own_configuration(run) or bool(folders.steps(run))


def has_own_configuration(run: Path) -> bool:
    """Whether config.yaml is as longmix writes it: resolved, with what is known of the start."""
    try:
        values = parse_yaml(read_input(run / CONFIG, MOST_BYTES).decode(), CONFIG)
    except (OSError, ValueError, UserError):
        return False
    return isinstance(values, dict) and {"run", PROVENANCE_KEY} <= set(values)


def refuse_foreign_files(run: Path) -> None:
    """Raise UserError if the folder of a run to be holds what somebody else has put there. Changes nothing.

    Files that no run touches, beside the names of `_WRITTEN`, are no obstacle.
    """
    if is_run(run):
        refuse_foreign(run / MODEL_FOLDER, MODEL, earlier_model, is_quick=True)
        return
    for name, is_own in _WRITTEN.items():
        if _is_there(run / name) and not is_own(run / name):
            raise UserError(
                f"run.dir is {run}, which is no run of longmix but holds {name}, a name that runs write to: move it "
                "away, or name another run.dir"
            )


def _is_there(path: Path) -> bool:
    """False, too, for an empty folder, which may have been made for the run."""
    if path.is_dir():
        return any(path.iterdir())
    return path.is_symlink() or path.exists()


def _is_map_of(*keys: str) -> Callable[[Path], bool]:
    def is_own(path: Path) -> bool:
        try:
            values = read_json(path)
        except (OSError, ValueError):
            return False
        return isinstance(values, dict) and set(values) == set(keys)

    return is_own


def _never(path: Path) -> bool:
    return False


# The names in a run folder that a run, or what starts and ends runs, writes to, renames or removes; and whether what
# stands there was written before there was a config.yaml.
_WRITTEN: dict[str, Callable[[Path], bool]] = {
    CONFIG: _never,
    "metrics.jsonl": _never,
    "checkpoints": _never,
    MODEL_FOLDER: _never,
    "tensorboard": _never,
    "wandb": _never,
    "STOP": _never,
    "SAVE": _never,
    LOCK: lambda path: path.is_file() and not path.is_symlink() and path.stat().st_size == 0,
    "heartbeats": is_written_by_ranks,
    "stacks": is_written_by_ranks,
    "requeue.json": _is_map_of("job", "checkpoint", "endings"),
    "failure.json": _is_map_of("exit_code", "reason"),
}
