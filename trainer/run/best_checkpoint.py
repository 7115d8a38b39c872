"""The evaluations of a run at its steps, and the choice of its best checkpoint by them."""

import math
from typing import Any

import torch

from ..checkpoints.run_log import RunLog
from ..checkpoints.state import RunState
from ..engines.base import Engine
from ..processes.world import SharedMistake, World
from ..samples.windows import Dataset
from .evaluation import evaluate
from .setup import Prepared
from .stop_conditions import Consensus, Decision


class Evaluator:
    """Evaluates one run; every rank calls every method. A stop that is asked for meanwhile cuts an evaluation short.

    Args:
        state: where the run stands; `figures`, `best_*` and `evaluation_due` are kept here.
        consensus: asked before each forward pass whether to stop.
    """

    def __init__(
        self, engine: Engine, prepared: Prepared, world: World, state: RunState, log: RunLog, consensus: Consensus
    ):
        self._engine, self._world, self._state, self._log, self._consensus = engine, world, state, log, consensus
        self._configuration, self._objective = prepared.configuration, prepared.objective
        self._dataset = prepared.data.evaluation
        self._latest: dict[str, Any] = {}
        self._evaluated_at: int | None = None

    def current(self) -> dict[str, Any]:
        """The figures of the run where it stands; empty if it was not evaluated there."""
        return self._latest if self._evaluated_at == self._state.step else {}

    def evaluate(self, decision: Decision) -> Decision:
        """Evaluate this step unless it has been; the decision to stop, if one is made meanwhile."""
        state = self._state
        if self._dataset is None or self._evaluated_at == state.step:
            return decision
        self._log.note_phase("eval")
        figures, decision = self.figures(self._engine.module, self._dataset, self._configuration.eval.samples)
        self._log.note_phase(None)
        state.evaluation_due = figures is None
        if figures is None:
            return decision
        self._latest, self._evaluated_at = figures, state.step
        self._log.record("eval", state.step, figures, state.tokens)
        best = self._configuration.checkpoint.best
        if best is None:
            state.figures = figures
        elif figures["items"] == 0:
            raise SharedMistake(
                "checkpoint.best needs figures, but the evaluated samples of data.eval hold nothing to predict: raise "
                "eval.samples, name another data.eval, or leave checkpoint.best out"
            )
        elif best.metric not in figures:
            raise SharedMistake(
                f"checkpoint.best.metric is {best.metric}, which the evaluation does not give; "
                f"it gives {', '.join(figures)}"
            )
        # A request that came meanwhile is acted on now, not a step later.
        return self._consensus.ask(state.step)

    def compare_with_best(self, decision: Decision) -> Decision:
        """Note whether this step is the best until now; what `evaluate` decides.

        Call it only where a checkpoint is due: one that a stop request asks for must not change which is the best.
        """
        decision = self.evaluate(decision)
        best, state = self._configuration.checkpoint.best, self._state
        if state.evaluation_due:
            return decision
        value = self._latest[best.metric]
        sign = 1 if best.mode == "max" else -1
        known = state.best_value
        improves = known is None or math.isnan(known) or sign * value > sign * known
        # Every constant answer has Matthews 0, say: between equals the loss decides.
        if improves or (value == known and self._latest["loss"] < state.figures["loss"]):
            state.best_step, state.best_value, state.figures = state.step, value, self._latest
        return decision

    def figures(
        self, model: torch.nn.Module, dataset: Dataset, samples: int | None
    ) -> tuple[dict[str, Any] | None, Decision]:
        """The figures of a model on a data set, None if a stop cuts it short, and what was decided last."""
        decision = Decision()

        def interrupted() -> bool:
            nonlocal decision
            decision = self._consensus.ask()
            return decision.stops

        micro_batch = self._configuration.batch.micro_batch
        figures = evaluate(model, dataset, self._objective, self._world, samples, micro_batch, interrupted)
        return figures, decision
