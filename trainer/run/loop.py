"""The loop that trains everything: steps, evaluation, records, checkpoints, stop requests."""

import contextlib
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longmix.data_prep.errors import UserError

from ..checkpoints import folders
from ..checkpoints.resuming import resume
from ..checkpoints.run_log import RunLog
from ..checkpoints.saving import Saver
from ..checkpoints.state import RunState, read_state
from ..data.dataset import ShardedDataset
from ..engines.base import StepResult
from ..engines.make import make_engine
from ..export import publish
from ..export.card import ModelCard
from ..models.build import count_parameters
from ..optimization.schedule import learning_rate
from ..processes.signals import StopRequests
from ..processes.watchdog import Watchdog
from ..processes.world import SharedMistake, World, agree, begin_together
from ..settings.configuration import RunConfiguration
from ..settings.exit_codes import FINISHED, INTERRUPTED
from .agreement import Agreement, seed_generators
from .dry_run import dry_run
from .evaluation import evaluate
from .folder import RunLock, refuse_changes, refuse_unusable, write_configuration
from .setup import Prepared, prepare
from .speed import Interval, device_name
from .spikes import SpikeGuard
from .stop_conditions import Decision, StopConditions
from .stream import BatchStream, StepBatch

LONGEST_ROW_OF_SKIPS = 10


class NotFiniteError(RuntimeError):
    """Ten steps in a row had a loss or gradients that are not finite."""


@dataclass
class Outcome:
    """How a run ended: exit code, and its state with the figures of its evaluation (and test)."""

    code: int
    state: RunState


def train(configuration: RunConfiguration, world: World, requests: StopRequests | None = None) -> Outcome:
    """Train from where the run folder stands to `optim.max_steps`, or until a stop request.

    `requests`: those of a caller that listens already; by default signals are noted from the first step on.

    Raises:
        SharedMistake: before any step, on every rank alike.
        UserError: on one rank alone, e.g. a shard that cannot be read.
        NotFiniteError: ten dropped steps in a row.
        DisagreementError: the ranks have come apart.
    """
    with contextlib.ExitStack() as stack:
        watchdog = stack.enter_context(Watchdog(world, Path(configuration.run.dir), configuration.run.hang_minutes))
        prepared = agree(world, lambda: _prepare(configuration, world))
        lock = RunLock(Path(configuration.run.dir))
        agree(world, lambda: stack.enter_context(lock) if world.is_first else None)
        watchdog.share()
        return _Run(prepared, world).train(requests if requests is not None else stack.enter_context(StopRequests()))


def _prepare(configuration: RunConfiguration, world: World) -> Prepared:
    refuse_changes(Path(configuration.run.dir), configuration)
    refuse_unusable(Path(configuration.run.dir))
    return prepare(configuration, world.size, world.device)


class _Run:
    """One run on this rank."""

    def __init__(self, prepared: Prepared, world: World):
        self.configuration, self.data, self.objective = prepared.configuration, prepared.data, prepared.objective
        self.prepared, self.world = prepared, world
        self.folder = Path(self.configuration.run.dir)
        self.last_step = self.configuration.optim.max_steps
        self.model = agree(world, prepared.build)
        self.parameters, self.matrix_parameters = count_parameters(self.model)
        self.notes = prepared.notes(self.model, world.size)
        manifests = [dataset.manifest for dataset in self.data.train]
        self.card = ModelCard(self.configuration, manifests, self.parameters, self.notes)
        self.latest: dict[str, Any] = {}
        self.evaluated_at: int | None = None

    def train(self, requests: StopRequests) -> Outcome:
        # From here on the ranks differ: dropout must not repeat itself. The model is equal on all.
        seed_generators(self.configuration.run.seed, self.world.rank)
        self.engine = agree(
            self.world, lambda: make_engine(self.model, self.configuration, self.prepared.precision, self.world)
        )
        dry_run(self.engine, self.model, self.prepared, self.world)
        state = self.state = resume(self.configuration, self.data, self.engine, self.world)
        is_first = self.world.is_first
        agree(
            self.world,
            lambda: write_configuration(self.folder, self.configuration, self._facts()) if is_first else None,
        )
        self.spikes = SpikeGuard(self.state, self.engine.guard, self.configuration.optim.skip_spikes)
        self.agreement = Agreement(self.engine, self.model, self.data.order, self.configuration, self.world, self.state)
        self.log = RunLog(
            self.folder,
            is_first,
            state.step,
            self.last_step,
            self.configuration.log.tensorboard,
            state.evaluation_due,
        )
        self.saver = Saver(self.folder, self.configuration.checkpoint, self.world, self.log, self.state)
        self.conditions = StopConditions(self.folder, self.configuration.run, self.last_step, requests, is_first)
        with contextlib.closing(self.log), contextlib.closing(self.saver):
            for note in self.notes:
                self.log.say(note)
            decision = self._train(requests)
            if not decision.stops:
                decision = self._finish()
            self.log.say(self.saver.told())
            if decision.stops:
                self.conditions.obeyed(decision)
                self.log.say(
                    f"stopped at step {self.state.step} by {decision.reason}; the same command goes on from "
                    f"{'there' if self.saver.newest.step == self.state.step else f'step {self.saver.newest.step}'}"
                )
        return Outcome(INTERRUPTED if decision.stops else FINISHED, self.state)

    def _facts(self) -> dict[str, Any]:
        """What a report tells of a run beside its configuration."""
        manifest, data = self.data.manifest, self.data
        return {
            "device": device_name(self.world.device.type),
            "processes": self.world.size,
            "parameters": self.parameters,
            "data": {
                "task": manifest.report.get("task"),
                "sequence_length": manifest.sequence_length,
                "fingerprints": data.fingerprints(),
            },
        }

    def _train(self, requests: StopRequests) -> Decision:
        configuration, state = self.configuration, self.state
        stream = BatchStream(
            self.data.train,
            self.data.order,
            self.objective,
            configuration.batch.samples,
            configuration.batch.micro_batch,
            self.world.rank,
            self.world.size,
            first_step=state.step,
            last_step=self.last_step,
        )
        with stream:
            if 0 < state.step < self.last_step:
                self.log.say(f"going on from step {state.step}")
            self.interval = Interval(waited=stream.waited, tokens=state.tokens)
            begin_together(self.world, requests)
            decision = self._ask(state.step) if state.step < self.last_step else Decision()
            if state.step == 0 or state.evaluation_due:
                decision = self._complete_step(decision)
            for batch in stream if not decision.stops else ():
                decision = self._step(batch)
                if state.step == self.last_step or state.step % configuration.log.every_steps == 0:
                    self._record(stream)
                with self.interval.paused():
                    self.agreement.check_if_due(batch.draw)
                    decision = self._complete_step(decision)
                if decision.stops:
                    break
        return decision

    def _ask(self, step: int = 0) -> Decision:
        """What all ranks want now, after `step` steps; 0: whatever the step."""
        return self._decide(self.world.sum(self._asked(step)).tolist())

    def _asked(self, step: int) -> torch.Tensor:
        """What this rank asks for, and how far it is with a checkpoint: to be summed over the ranks."""
        return torch.cat([self.conditions.asked(step), self.saver.is_over()])

    def _decide(self, asked: list[float]) -> Decision:
        *asked, over = asked
        self.saver.poll(over)
        return Decision.of(asked)

    def _step(self, batch: StepBatch) -> Decision:
        """One optimizer step; what all ranks want after it."""
        state = self.state
        self.world.progress.begin_step(state.step + 1)
        counts = self.world.sum(torch.tensor([batch.items, batch.tokens], dtype=torch.float64)).tolist()
        items = max(1.0, counts[0])
        self.model.train()
        sums = self.engine.forward_backward(
            batch.micro_batches, lambda model, micro_batch: self.objective.forward(model, micro_batch, items)
        )
        asked = self._asked(state.step + 1)
        totals = self.world.sum(torch.cat([sums.double().cpu(), asked])).tolist()
        sums, asked = totals[: len(sums)], totals[len(sums) :]
        self.learning_rate = learning_rate(self.configuration.optim, state.step + 1)
        self.spikes.expect(sums[0] / sums[2] if sums[2] else math.nan)
        self.result = self.engine.step(self.learning_rate)
        state.step += 1
        state.samples += self.configuration.batch.samples
        state.tokens += int(counts[1])
        if self.result.applied:
            state.row_of_skips = 0
            state.interval = [before + now for before, now in zip(state.interval, sums, strict=True)]
            self.spikes.note_taken()
        else:
            self._count_skip(self.result, sums[0])
        return self._decide(asked)

    def _complete_step(self, decision: Decision) -> Decision:
        """What is due after a step: evaluation, the choice of the best, a checkpoint. Whether to go on afterwards.

        A stop that is asked for meanwhile cuts the evaluation short: going on, the run makes it first.
        """
        configuration, state = self.configuration, self.state
        last = state.step == self.last_step
        due = state.step > 0 and (last or state.step % configuration.checkpoint.every_steps == 0)
        # Within a row of dropped steps the checkpoint before it stays the newest: a way back.
        due = due and (last or not state.row_of_skips)
        if due:
            # What became of the checkpoint before decides which is the best until now.
            self.saver.wait()
        if state.step == 0 or last or state.step % configuration.eval.every_steps == 0 or state.evaluation_due:
            decision = self._evaluate(decision)
        if due and configuration.checkpoint.best is not None and not state.evaluation_due:
            decision = self._compare_with_best(decision)
        if last and not state.evaluation_due:
            decision = Decision()  # nothing is left to stop, but for the reading of the test set
        if due or decision.stops or decision.saves:
            state.stopped_by = decision.reason
            self._save(is_last_chance=last or decision.stops)
            state.stopped_by = None
        if decision.saves:
            self.conditions.obeyed(decision)
        return decision

    def _count_skip(self, result: StepResult, loss_sum: float) -> None:
        state = self.state
        state.skipped += 1
        if result.judged:
            state.row_of_skips = 0  # it is finite, and so are the weights
            self.log.say(self.spikes.note_dropped())
            return
        # In fp16 an overflow with a finite loss only means that the loss scale was too high: it is being lowered.
        if self.prepared.precision == "fp16" and math.isfinite(loss_sum) and result.loss_scale > 1:
            self.log.say(f"step {state.step}: overflow in fp16, step dropped, loss scale now {result.loss_scale:g}")
            return
        state.row_of_skips += 1
        self.log.say(f"step {state.step}: loss or gradients not finite, step dropped ({state.skipped} so far)")
        if state.row_of_skips >= LONGEST_ROW_OF_SKIPS:
            raise NotFiniteError(
                f"{LONGEST_ROW_OF_SKIPS} steps in a row had a loss or gradients that are not finite (last: step "
                f"{state.step}). Lower optim.lr, lengthen optim.warmup_steps, or set precision to fp32 or bf16; "
                "with 'run.allow_changes=[KEY]' for what you change, the run then goes on from the newest checkpoint"
            )

    def _record(self, stream: BatchStream) -> None:
        state = self.state
        loss_sum, hits, items = state.interval
        figures = {"loss": loss_sum / items if items else math.nan}
        if self.objective.accuracy_name is not None:
            figures[self.objective.accuracy_name] = hits / items if items else math.nan
        figures |= {
            "lr": self.learning_rate,
            "grad_norm": self.result.gradient_norm,
            "samples_seen": state.samples,
            "tokens_seen": state.tokens,
            "skipped_steps": state.skipped,
        }
        speed = self.interval.figures(stream, state.tokens, self.world, self.matrix_parameters, self.prepared.precision)
        self.log.record("train", state.step, {**figures, **speed})
        state.interval = [0.0, 0.0, 0.0]
        self.interval = Interval(waited=stream.waited, tokens=state.tokens)

    def _evaluate(self, decision: Decision) -> Decision:
        """Evaluate this step unless it has been; the decision to stop, if one is made meanwhile."""
        state = self.state
        if self.data.evaluation is None or self.evaluated_at == state.step:
            return decision
        figures, decision = self._figures(self.engine.module, self.data.evaluation, self.configuration.eval.samples)
        state.evaluation_due = figures is None
        if figures is None:
            return decision
        self.latest = figures
        self.evaluated_at = state.step
        self.log.record("eval", state.step, figures)
        best = self.configuration.checkpoint.best
        if best is None:
            state.figures = figures
        elif best.metric not in figures:
            raise SharedMistake(
                f"checkpoint.best.metric is {best.metric}, which the evaluation does not give; "
                f"it gives {', '.join(figures)}"
            )
        # A request that came meanwhile is acted on now, not a step later.
        return self._ask(state.step)

    def _figures(
        self, model: torch.nn.Module, dataset: ShardedDataset, samples: int | None
    ) -> tuple[dict[str, Any] | None, Decision]:
        """Figures of a model on a data set, None if a stop cuts it short, and what was decided last."""
        decision = Decision()

        def interrupted() -> bool:
            nonlocal decision
            decision = self._ask()
            return decision.stops

        micro_batch = self.configuration.batch.micro_batch
        figures = evaluate(model, dataset, self.objective, self.world, samples, micro_batch, interrupted)
        return figures, decision

    def _compare_with_best(self, decision: Decision) -> Decision:
        """Only where a checkpoint is due: one that a stop request asks for must not change which is the best."""
        decision = self._evaluate(decision)
        best, state = self.configuration.checkpoint.best, self.state
        if state.evaluation_due:
            return decision
        value = self.latest[best.metric]
        sign = 1 if best.mode == "max" else -1
        known = state.best_value
        improves = known is None or math.isnan(known) or sign * value > sign * known
        # Every constant answer has Matthews 0, say: between equals the loss decides.
        if improves or (value == known and self.latest["loss"] < state.figures["loss"]):
            state.best_step, state.best_value, state.figures = state.step, value, self.latest
        return decision

    def _save(self, is_last_chance: bool) -> None:
        figures = self.latest if self.evaluated_at == self.state.step else {}

        def write_model(folder: Path, weights: dict[str, torch.Tensor], state: RunState) -> None:
            publish.save_model(self.model, weights, folder, self.prepared.tokenizer)
            self.card.write(folder, state, figures)

        self.saver.save(self.engine, write_model, is_last_chance)

    def _finish(self) -> Decision:
        """Make RUN/model from the best or the last checkpoint; read the test set once with it, unless stopped there."""
        if self.saver.newest.step != self.state.step:
            raise SharedMistake(
                f"the last step is done, but its checkpoint could not be written to {self.folder / 'checkpoints'}: "
                f"make room, then the same command goes on from step {self.saver.newest.step}"
            )
        wants_best = self.configuration.checkpoint.best is not None and self.state.best_step is not None
        step = self.state.best_step if wants_best else self.state.step
        source = folders.path_of(self.folder, step)
        agree(self.world, lambda: self._refuse_damaged(source))
        if self.data.test is not None:
            decision = self._test(source / "model")
            if decision.stops:
                return decision
        agree(self.world, lambda: self._publish(source) if self.world.is_first else None)
        self.log.say(f"finished: {self.folder / 'model'} holds the model of step {step}")
        return Decision()

    def _publish(self, source: Path) -> None:
        target, staged = self.folder / "model", self.folder / ".model"
        shutil.rmtree(staged, ignore_errors=True)
        try:
            shutil.copytree(source / "model", staged)
            self.card.write(staged, read_state(source), self.state.figures)
            publish.publish(staged, target)
        except (OSError, shutil.Error) as error:
            raise UserError(
                f"{target} could not be written: {error}; {source} is whole: the same command writes the model from it"
            ) from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _refuse_damaged(self, source: Path) -> None:
        reason = folders.defect(source) if self.world.is_first else None
        if reason is not None:
            raise UserError(f"the checkpoint to make the model from is damaged: {reason}; longmix export has --step")

    def _test(self, checkpoint_model: Path) -> Decision:
        model = self.objective.auto_class.from_pretrained(checkpoint_model).to(self.world.device)
        figures, decision = self._figures(model, self.data.test, None)
        if figures is None:
            return decision
        self.log.record("test", self.state.step, figures)
        self.state.figures = {
            **self.state.figures,
            **{f"test_{name}": value for name, value in figures.items()},
        }
        return Decision()
