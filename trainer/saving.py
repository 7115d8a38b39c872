"""Saving a run: the ranks write a checkpoint together, the first completes it and removes what is no longer kept."""

from collections.abc import Callable
from pathlib import Path

import torch

from longmix.data_prep.errors import UserError

from . import checkpoint
from .checkpoint import RunState
from .configuration import CheckpointSection
from .distributed import World
from .engine import AccelerateEngine, DeepSpeedEngine
from .run_log import RunLog


class Saver:
    """Writes the checkpoints of one run on this rank; every rank calls every method."""

    def __init__(self, run: Path, section: CheckpointSection, world: World, log: RunLog):
        self._run, self._section, self._world, self._log = run, section, world, log

    def save(
        self,
        engine: DeepSpeedEngine | AccelerateEngine,
        state: RunState,
        write_model: Callable[[Path, dict[str, torch.Tensor]], None],
    ) -> None:
        """Save engine and state as the checkpoint of `state.step`; then delete those that are no longer kept.

        `write_model(folder, weights)` writes the Hugging Face folder; rank 0 calls it.

        Raises:
            UserError: the disk refuses; earlier checkpoints are whole.
        """
        world = self._world
        folder = Path(world.from_first(str(checkpoint.begin(self._run, state.step)) if world.is_first else None))
        try:
            engine.save(folder)
            weights = engine.gather()
            world.barrier()
            if world.is_first:
                write_model(folder / "model", weights)
                self._log.flush()
                checkpoint.finish(folder, self._run, state)
        except (OSError, RuntimeError) as error:
            reason = checkpoint.reason_of_failed_write(folder, error)
            if reason is None:
                raise
            raise UserError(
                f"the checkpoint of step {state.step} could not be written to {folder}: {reason}; earlier ones "
                "are whole: make room, then the same command goes on from the newest"
            ) from error
        if world.is_first:
            checkpoint.prune(self._run, self._section, state)
        world.barrier()
