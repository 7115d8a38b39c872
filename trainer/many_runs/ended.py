"""Whether a run has come to its end, so that its command has nothing left to do but to say so."""

import filecmp
from pathlib import Path

from longmix.data_prep.errors import UserError

from ..checkpoints import folders
from ..checkpoints.contents import MODEL
from ..checkpoints.state import read_state
from ..export.card import CARD
from ..run.final_model import final_step, finished_line
from ..run.folder import is_in_work, is_unchanged
from ..run.own_files import refuse_foreign_files
from ..run.stop_conditions import StopConditions
from ..samples.run_data import open_data
from ..settings.configuration import RunConfiguration
from .read import is_finished


def ending(configuration: RunConfiguration) -> str | None:
    """The line that a finished run ends with; None where a run that begins would do, or tell, anything else.

    That is: a run with this very configuration has finished on the data that are there, no process is in it, nobody has
    asked it for anything since, and its model is, byte for byte, that of a checkpoint that is whole.
    """
    run, last = Path(configuration.run.dir), configuration.optim.max_steps
    if last not in folders.steps(run)[-1:] or any((run / name).exists() for name in StopConditions.FILES):
        return None
    try:
        refuse_foreign_files(run)
        if is_in_work(run) or not (is_finished(run, last) and is_unchanged(run, configuration)):
            return None
        if folders.defect(folders.path_of(run, last)) is not None:
            return None
        state = read_state(folders.path_of(run, last))
        if state.evaluation_due or state.data != open_data(configuration).fingerprints():
            return None
    except UserError:
        return None
    step = final_step(configuration, state)
    source = folders.path_of(run, step)
    is_whole = (step == last or folders.defect(source) is None) and _is_copy(source / MODEL, run / MODEL)
    return finished_line(run, step) if is_whole else None


def _is_copy(source: Path, target: Path) -> bool:
    """Whether a final model has all files of the checkpoint's, with their bytes; its card says more."""
    names = [path.relative_to(source) for path in source.rglob("*") if path.is_file()]
    try:
        return all(
            (target / name).is_file() and (name == Path(CARD) or filecmp.cmp(source / name, target / name, False))
            for name in names
        )
    except OSError:
        return False
