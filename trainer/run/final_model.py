"""RUN/model: made of the best checkpoint, or of the last, when all steps are done; the test set is read with it."""

from pathlib import Path

from longmix.data_prep.errors import MachineFault, UserError, refused

from ..checkpoints import folders
from ..checkpoints.run_log import RunLog
from ..checkpoints.state import RunState, read_state
from ..export import publish
from ..export.card import ModelCard
from ..models.loading import load_config, stored_not_finite
from ..processes.shared_files import see_together
from ..processes.world import World, agree
from ..settings.configuration import RunConfiguration
from .best_checkpoint import Evaluator
from .setup import Prepared
from .stop_conditions import Decision


def final_step(configuration: RunConfiguration, state: RunState) -> int:
    """The step of the checkpoint that the model of a run is made from."""
    wants_best = configuration.checkpoint.best is not None and state.best_step is not None
    return state.best_step if wants_best else state.step


def finished_line(run: Path, step: int) -> str:
    """What a run says at its end."""
    return f"finished: {run / 'model'} holds the model of step {step}"


class FinalModel:
    """Makes the model of one run; every rank makes one of these, and calls `make`."""

    def __init__(
        self, prepared: Prepared, card: ModelCard, evaluator: Evaluator, world: World, state: RunState, log: RunLog
    ):
        self._prepared, self._card, self._evaluator = prepared, card, evaluator
        self._world, self._state, self._log = world, state, log
        self._folder = Path(prepared.configuration.run.dir)

    def make(self) -> Decision:
        """Read the test set once, and write RUN/model; stopped within the former, leave both to the next start.

        Raises:
            SharedMistake: the checkpoint is damaged.
            SharedFault: its weights are not finite, or the disk refuses the model.
        """
        step = final_step(self._prepared.configuration, self._state)
        source = folders.path_of(self._folder, step)
        agree(self._world, lambda: self._refuse_damaged(source) if self._world.is_first else None)
        if self._prepared.data.test is not None:
            decision = self._test(source / "model")
            if decision.stops:
                return decision
        agree(self._world, lambda: self._publish(source) if self._world.is_first else None)
        self._log.note_model(self._state.step, step)
        self._log.say(finished_line(self._folder, step))
        return Decision()

    def _refuse_damaged(self, source: Path) -> None:
        reason = folders.defect(source)
        if reason is not None:
            raise UserError(f"the checkpoint to make the model from is damaged: {reason}; longmix export has --step")
        load_config(str(source / "model"))  # raises for one that orders code
        name = stored_not_finite(source / "model")
        if name is not None:
            raise MachineFault(
                f"training diverged: {name} in {source / 'model'} is not finite; begin anew in another run.dir with a "
                "smaller optim.lr or optim.weight_decay"
            )

    def _test(self, checkpoint_model: Path) -> Decision:
        prepared, state = self._prepared, self._state
        see_together(self._world, checkpoint_model)
        model = prepared.objective.auto_class.from_pretrained(checkpoint_model).to(self._world.device)
        figures, decision = self._evaluator.figures(model, prepared.data.test, None)
        if figures is None:
            return decision
        self._log.record("test", state.step, figures)
        state.figures = {**state.figures, **{f"test_{name}": value for name, value in figures.items()}}
        return Decision()

    def _publish(self, source: Path) -> None:
        target = self._folder / "model"

        def complete(folder: Path) -> None:
            self._card.write(folder, read_state(source), self._state.figures)

        try:
            publish.publish(source / "model", target, complete)
        except (OSError, UserError) as error:
            text = f"{target} could not be written"
            advice = f"{source} is whole: the same command writes the model from it"
            if isinstance(error, OSError):
                raise refused(text, error, advice) from error
            raise UserError(f"{text}: {error}; {advice}") from error
