"""The start of a run: from the newest whole checkpoint of its folder, if that is one of this run, or at step 0."""

import logging
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError

from ..engines.base import Engine
from ..engines.load_checks import refuse_foreign_names
from ..processes.shared_files import see_together
from ..processes.world import World, agree
from ..samples.run_data import RunData
from ..settings.changes import is_free
from ..settings.configuration import RunConfiguration, RunSection
from ..settings.sections import EARLIER_ORDER
from ..settings.shuffling import (
    EARLIER_LARGEST_PARTITIONS,
    EARLIER_SMALLEST_WINDOW,
    default_window,
    earlier_partitions,
)
from . import folders
from .state import RunState, read_state

logger = logging.getLogger(__name__)


def resume(configuration: RunConfiguration, data: RunData, engine: Engine, world: World) -> RunState:
    """Load the newest whole checkpoint into `engine`; return where the run stands. Every rank must call it.

    Raises:
        SharedMistake: the checkpoint is of no use to this run.
    """
    best_by, now = _best_by(configuration), data.fingerprints()
    order = [data.order.partitions, data.order.window]
    if data.order.version != EARLIER_ORDER:
        order.append(data.order.version)
    run = Path(configuration.run.dir)
    folder = world.from_first(folders.newest(run) if world.is_first else None)
    if folder is None:
        agree(world, lambda: _refuse_damaged(run) if world.is_first else None)
        return RunState(best_by=best_by, data=now, order=order)
    agree(world, lambda: refuse_foreign_names(folder) if world.is_first else None)
    state = world.from_first(agree(world, lambda: read_state(folder) if world.is_first else None))
    agree(world, lambda: _refuse_fewer_steps(configuration.run, configuration.optim.max_steps, state.step))
    agree(world, lambda: _refuse_passed_stop(configuration.run, configuration.optim.max_steps, state))
    agree(world, lambda: _refuse_other_data(configuration, state.data, now))
    agree(world, lambda: _refuse_other_order(configuration, state.order, order))
    agree(world, lambda: _refuse_other_groups(configuration, state))
    agree(world, lambda: _refuse_other_best(configuration, state, best_by))
    state.data, state.order = now, order
    see_together(world, folder)
    agree(world, lambda: engine.load(folder))
    if state.best_by != best_by:
        # Values of another metric, or over other samples, cannot be compared: the best is sought anew.
        if world.is_first and state.best_step is not None and best_by is not None:
            logger.warning(
                "%s, step %d, is no longer asked for: it is sought anew", _shown(state.best_by), state.best_step
            )
        state.best_by, state.best_step, state.best_value = best_by, None, None
    return state


def _refuse_damaged(run: Path) -> None:
    """Raise UserError if there are checkpoints, none of them whole: a run begun anew would come to delete them."""
    if folders.steps(run):
        raise UserError(
            f"none of the checkpoints in {run / 'checkpoints'} is whole (the warnings say why): bring one back, or "
            "move that folder away to begin anew"
        )


def _refuse_other_data(
    configuration: RunConfiguration, before: dict[str, list[str]], now: dict[str, list[str]]
) -> None:
    """Raise UserError if a key of the run file names other data than the checkpoint's (see RunData.fingerprints)."""
    run, paths = configuration.run, configuration.data.paths()
    changed = [key for key in before if before[key] != now.get(key) and not is_free(key, run.allow_changes)]
    if changed:
        keys = ", ".join(changed)
        told = "; ".join(_difference(key, paths[key], before[key], now[key]) for key in changed)
        raise UserError(
            f"{keys}: the data of the run in {run.dir} have changed since its checkpoint was written ({told}). Bring "
            f"back what was there, choose another run.dir, or allow it with 'run.allow_changes=[{keys}]'"
        )


def _refuse_other_order(configuration: RunConfiguration, before: list[int], now: list[int]) -> None:
    """Raise UserError if the checkpoint belongs to another order of the samples: config.yaml was lost, and a copy of
    the run file, which leaves the order to longmix, stands in for it."""
    if not before and now[1:] == [default_window(now[0], EARLIER_SMALLEST_WINDOW)]:
        return
    if before == now or is_free("data.partitions", configuration.run.allow_changes):
        return
    partitions = earlier_partitions(configuration.batch.samples, EARLIER_LARGEST_PARTITIONS)
    before = before or [partitions, default_window(partitions, EARLIER_SMALLEST_WINDOW)]
    (partitions, window, version), theirs = ((*order, EARLIER_ORDER)[:3] for order in (now, before))
    raise UserError(
        f"data.partitions, data.window and data.order are {partitions}, {window} and {version}, but the checkpoint in "
        f"{configuration.run.dir} belongs to another order of the samples: set data.partitions={theirs[0]}, "
        f"data.window={theirs[1]} and data.order={theirs[2]}, or allow it with 'run.allow_changes=[data.partitions]'"
    )


def _refuse_other_groups(configuration: RunConfiguration, state: RunState) -> None:
    """Raise UserError if batches of similar length had another size before: their order is made for one size."""
    batch = configuration.batch
    is_free_to = is_free("batch.group_by_length", configuration.run.allow_changes)
    if batch.group_by_length and state.samples != state.step * batch.samples and not is_free_to:
        raise UserError(
            f"batch.samples is {batch.samples}, but the run in {configuration.run.dir} has had another one, and "
            "batch.group_by_length orders the samples for it: bring it back, begin a new run from its model "
            "(model.from), or let it take samples twice and others never with "
            "'run.allow_changes=[batch.group_by_length]'"
        )


def _refuse_other_best(configuration: RunConfiguration, state: RunState, best_by: list[Any] | None) -> None:
    """Raise UserError if a run that has made all its steps is to have its best checkpoint chosen otherwise: it is
    evaluated no more, and its model would be that of the last step."""
    if state.best_by == best_by or state.step < configuration.optim.max_steps or state.evaluation_due:
        return
    raise UserError(
        f"the run in {configuration.run.dir} has made all its steps with {_shown(state.best_by)}, and now "
        f"{_shown(best_by)} is asked for, when nothing is evaluated any more: set checkpoint.best, eval.samples and "
        "eval.mask_probability back, or choose another run.dir"
    )


def _shown(best_by: list[Any] | None) -> str:
    if best_by is None:
        return "no best checkpoint"
    metric, mode, samples, *share = best_by
    hidden = "".join(f", hiding {one}" for one in share)
    return f"the best checkpoint by {metric} ({mode}) over {'all' if samples is None else samples} samples{hidden}"


def _difference(key: str, paths: list[str], before: list[str], now: list[str]) -> str:
    """The data sets of one key that differ, by their paths and the first digits of their fingerprints."""
    if len(before) != len(now):
        return f"{key} named {len(before)} and now names {len(now)}"
    return ", ".join(
        f"{path} has the fingerprint {new[:8]}, not {old[:8]}"
        for path, old, new in zip(paths, before, now, strict=True)
        if old != new
    )


def _refuse_passed_stop(run: RunSection, last_step: int, state: RunState) -> None:
    """Raise UserError if the run has reached its `stop_at_step` before: each start would only stop again.

    What is left of that step, its evaluation, is still made; and a run that is done goes to its end.
    """
    stop = run.stop_at_step
    if stop is None or last_step in (stop, state.step):
        return
    if state.step > stop or (state.step == stop and not state.evaluation_due):
        raise UserError(
            f"run.stop_at_step is {stop}, and the run in {run.dir} stands at step {state.step}: set it to more, or to "
            "null, to go on"
        )


def _refuse_fewer_steps(run: RunSection, last_step: int, step: int) -> None:
    """Raise UserError if the run stands beyond its last step, where its schedule of learning rates has no value."""
    if last_step < step:
        raise UserError(
            f"optim.max_steps is {last_step}, but the run in {run.dir} stands at step {step}: set it to {step} or "
            "more, or choose another run.dir (longmix export --step gives the model of an earlier checkpoint)"
        )


def _best_by(configuration: RunConfiguration) -> list[Any] | None:
    """Metric, mode and samples, by which two values of `checkpoint.best` are comparable; and the share of the tokens
    that evaluations hide, where it is not that of training, as it was in all runs of earlier versions."""
    best, share = configuration.checkpoint.best, configuration.eval.mask_probability
    own = [] if share in (None, configuration.objective.mask_probability) else [share]
    return None if best is None else [best.metric, best.mode, configuration.eval.samples, *own]
