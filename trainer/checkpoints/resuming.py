"""Where a run begins: at the newest whole checkpoint of its folder, if that is one of this run, or at step 0."""

from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError

from ..data.run_data import RunData
from ..engines.engine import AccelerateEngine, DeepSpeedEngine
from ..engines.load_checks import refuse_foreign_names
from ..processes.world import World, agree
from ..run.folder import refuse_fewer_steps, refuse_other_data
from ..settings.configuration import RunConfiguration
from . import folders
from .folders import RunState


def resume(
    configuration: RunConfiguration, data: RunData, engine: DeepSpeedEngine | AccelerateEngine, world: World
) -> RunState:
    """Load the newest whole checkpoint into `engine`; where the run stands. Every rank must call it.

    Raises:
        SharedMistake: the checkpoint is of no use to this run.
    """
    best_by, now = _best_by(configuration), data.fingerprints()
    run = Path(configuration.run.dir)
    folder = world.from_first(folders.newest(run) if world.is_first else None)
    if folder is None:
        agree(world, lambda: _refuse_damaged(run) if world.is_first else None)
        return RunState(best_by=best_by, data=now)
    agree(world, lambda: refuse_foreign_names(folder) if world.is_first else None)
    state = agree(world, lambda: folders.read_state(folder))
    agree(world, lambda: refuse_fewer_steps(configuration.run, configuration.optim.max_steps, state.step))
    agree(world, lambda: refuse_other_data(configuration.run, state.data, now))
    state.data = now
    agree(world, lambda: engine.load(folder))
    if state.best_by != best_by:
        # Values of another metric, or over other samples, cannot be compared: the best is sought anew.
        state.best_by, state.best_step, state.best_value = best_by, None, None
    return state


def _refuse_damaged(run: Path) -> None:
    """Beginning anew would end in deleting them, and what can be saved of them."""
    if folders.steps(run):
        raise UserError(
            f"none of the checkpoints in {run / 'checkpoints'} is whole (the warnings say why): bring one back, or "
            "delete that folder to begin anew"
        )


def _best_by(configuration: RunConfiguration) -> list[Any] | None:
    """What makes two values of `checkpoint.best` comparable."""
    best = configuration.checkpoint.best
    return None if best is None else [best.metric, best.mode, configuration.eval.samples]
