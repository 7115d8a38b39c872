"""The loop that trains everything: steps, evaluation, records, checkpoints, stop requests."""

import contextlib
import math
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from longmix.data_prep.errors import UserError

from . import checkpoint, counter_random, export
from .checkpoint import RunState
from .configuration import RunConfiguration
from .distributed import World
from .engine import StepResult, make_engine
from .evaluation import evaluate
from .exit_codes import FINISHED, INTERRUPTED
from .model import count_parameters
from .run_folder import RunLock, refuse_changes, refuse_unusable, write_configuration
from .run_log import RunLog, model_flops_utilisation, peak_flops
from .schedule import learning_rate
from .setup_run import Prepared, prepare
from .stopping import StopRequests
from .stream import BatchStream, StepBatch

LONGEST_ROW_OF_SKIPS = 10


class NotFiniteError(RuntimeError):
    """Ten steps in a row had a loss or gradients that are not finite."""


class SharedMistake(UserError):
    """A user's mistake that every rank knows of, so that all leave together; other ones, a rank meets alone."""


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
    """
    prepared = agree(world, lambda: _prepare(configuration, world))
    with contextlib.ExitStack() as stack:
        lock = RunLock(Path(configuration.run.dir))
        agree(world, lambda: stack.enter_context(lock) if world.is_first else None)
        run = _Run(prepared, world)
        return run.train(requests if requests is not None else stack.enter_context(StopRequests()))


def agree(world: World, work):
    """The result of `work` on this rank; if it is a user's mistake on any rank, SharedMistake on all of them."""
    result, mistake = None, None
    try:
        result = work()
    except UserError as error:
        mistake = str(error)
    mistakes = [text for text in world.gather(mistake) if text is not None]
    if mistakes:
        raise SharedMistake(mistakes[0])
    return result


def _prepare(configuration: RunConfiguration, world: World) -> Prepared:
    refuse_changes(Path(configuration.run.dir), configuration)
    refuse_unusable(Path(configuration.run.dir))
    return prepare(configuration, world.size, world.device)


@dataclass
class _Interval:
    """The stretch of training since the last record; time spent elsewhere (evaluation, checkpoints) is taken out."""

    started: float = field(default_factory=time.perf_counter)
    waited: float = 0.0
    tokens: int = 0

    @contextlib.contextmanager
    def paused(self):
        began = time.perf_counter()
        yield
        self.started += time.perf_counter() - began


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
        self.latest: dict[str, Any] = {}
        self.evaluated_at: int | None = None

    def train(self, requests: StopRequests) -> Outcome:
        seed = int(counter_random.key(self.configuration.run.seed, self.world.rank)) % 2**63
        # From here on the ranks differ: dropout must not repeat itself. The model is equal on all.
        torch.manual_seed(seed)
        self.engine = agree(
            self.world, lambda: make_engine(self.model, self.configuration, self.prepared.precision, self.world)
        )
        self.state = self._resume()
        self.log = RunLog(
            self.folder,
            self.world.is_first,
            self.state.step,
            self.last_step,
            self.configuration.log.tensorboard,
        )
        with contextlib.closing(self.log):
            for note in self.notes:
                self.log.say(note)
            code = self._train(requests)
            if code == FINISHED:
                self._finish()
        return Outcome(code, self.state)

    def _resume(self) -> RunState:
        found = self.world.from_first(str(checkpoint.newest(self.folder) or "") if self.world.is_first else None)
        if self.world.is_first:
            write_configuration(self.folder, self.configuration)
        if not found:
            return RunState(best_by=self._best_by())
        agree(self.world, lambda: self.engine.load(Path(found)))
        state = checkpoint.read_state(Path(found))
        if state.best_by != self._best_by():
            # Values of another metric, or over other samples, cannot be compared: the best is sought anew.
            state.best_by, state.best_step, state.best_value = self._best_by(), None, None
        return state

    def _best_by(self) -> list[Any] | None:
        """What makes two values of `checkpoint.best` comparable."""
        best = self.configuration.checkpoint.best
        return None if best is None else [best.metric, best.mode, self.configuration.eval.samples]

    def _train(self, requests: StopRequests) -> int:
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
            if state.step == 0:
                self._evaluate()
            elif state.step < self.last_step:
                self.log.say(f"going on from step {state.step}")
            self.interval = _Interval(waited=stream.waited, tokens=state.tokens)
            requests.has_begun = True
            for batch in stream:
                stop = self._step(batch, requests)
                last = state.step == self.last_step
                if last or state.step % configuration.log.every_steps == 0:
                    self._record(stream)
                with self.interval.paused():
                    if last or state.step % configuration.eval.every_steps == 0:
                        self._evaluate()
                        # A request that came meanwhile is acted on now, not a step later.
                        stop = self.world.any(requests.requested is not None)
                    # Within a row of dropped steps the checkpoint before it stays the newest: a way back.
                    due = last or (state.step % configuration.checkpoint.every_steps == 0 and not state.row_of_skips)
                    if due and configuration.checkpoint.best is not None:
                        self._compare_with_best()
                    if due or stop:
                        self._save()
                if stop and not last:
                    self.log.say(f"stopped at step {state.step} by request; the same command goes on from there")
                    return INTERRUPTED
        return FINISHED

    def _step(self, batch: StepBatch, requests: StopRequests) -> bool:
        """One optimizer step; whether any rank was asked to stop."""
        state = self.state
        counts = self.world.sum(torch.tensor([batch.items, batch.tokens], dtype=torch.float64)).tolist()
        items = max(1.0, counts[0])
        self.model.train()
        sums = self.engine.forward_backward(
            batch.micro_batches, lambda model, micro_batch: self.objective.forward(model, micro_batch, items)
        )
        self.learning_rate = learning_rate(self.configuration.optim, state.step + 1)
        self.result = self.engine.step(self.learning_rate)
        stop = torch.tensor([float(requests.requested is not None)], dtype=torch.float64)
        totals = self.world.sum(torch.cat([sums.double().cpu(), stop])).tolist()
        state.step += 1
        state.samples += self.configuration.batch.samples
        state.tokens += int(counts[1])
        if self.result.applied:
            state.row_of_skips = 0
            state.interval = [before + now for before, now in zip(state.interval, totals[:-1], strict=True)]
        else:
            self._count_skip(self.result, totals[0])
        return totals[-1] > 0

    def _count_skip(self, result: StepResult, loss_sum: float) -> None:
        state = self.state
        state.skipped += 1
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
        state, interval = self.state, self.interval
        now = time.perf_counter()
        seconds = now - interval.started
        tokens_per_second = (state.tokens - interval.tokens) / seconds
        waited = self.world.sum(torch.tensor([stream.waited - interval.waited], dtype=torch.float64)).item()
        loss_sum, hits, items = state.interval
        peak = peak_flops(self.world.device, self.prepared.precision)
        self.log.record(
            "train",
            state.step,
            {
                "loss": loss_sum / items if items else math.nan,
                self.objective.accuracy_name: hits / items if items else math.nan,
                "lr": self.learning_rate,
                "grad_norm": self.result.gradient_norm,
                "tokens_per_second": tokens_per_second,
                "samples_seen": state.samples,
                "tokens_seen": state.tokens,
                "skipped_steps": state.skipped,
                "data_wait_fraction": waited / self.world.size / seconds,
                "mfu": model_flops_utilisation(
                    tokens_per_second, self.matrix_parameters, peak and peak * self.world.size
                ),
            },
        )
        state.interval = [0.0, 0.0, 0.0]
        self.interval = _Interval(now, stream.waited, state.tokens)

    def _evaluate(self) -> None:
        if self.data.evaluation is None or self.evaluated_at == self.state.step:
            return
        self.latest = evaluate(
            self.engine.module,
            self.data.evaluation,
            self.objective,
            self.world,
            self.configuration.eval.samples,
            self.configuration.batch.micro_batch,
        )
        self.evaluated_at = self.state.step
        self.log.record("eval", self.state.step, self.latest)
        best = self.configuration.checkpoint.best
        if best is None:
            self.state.figures = self.latest
        elif best.metric not in self.latest:
            raise SharedMistake(
                f"checkpoint.best.metric is {best.metric}, which the evaluation does not give; "
                f"it gives {', '.join(self.latest)}"
            )

    def _compare_with_best(self) -> None:
        """Only where a checkpoint is due: one that a stop request asks for must not change which is the best."""
        self._evaluate()
        best, state = self.configuration.checkpoint.best, self.state
        value = self.latest[best.metric]
        sign = 1 if best.mode == "max" else -1
        known = state.best_value
        improves = known is None or math.isnan(known) or sign * value > sign * known
        # Every constant answer has Matthews 0, say: between equals the loss decides.
        if improves or (value == known and self.latest["loss"] < state.figures["loss"]):
            state.best_step, state.best_value, state.figures = state.step, value, self.latest

    def _save(self) -> None:
        if self.world.is_first:
            folder = checkpoint.begin(self.folder, self.state.step)
        folder = Path(self.world.from_first(str(folder) if self.world.is_first else None))
        try:
            self.engine.save(folder)
            weights = self.engine.gather()
            self.world.barrier()
            if self.world.is_first:
                export.save_model(self.model, weights, folder / "model", self.prepared.tokenizer)
                current = self.latest if self.evaluated_at == self.state.step else {}
                self._write_card(folder / "model", self.state, current)
                self.log.flush()
                checkpoint.finish(folder, self.folder, self.state)
        except (OSError, RuntimeError) as error:
            reason = checkpoint.reason_of_failed_write(folder, error)
            if reason is None:
                raise
            raise UserError(
                f"the checkpoint of step {self.state.step} could not be written to {folder}: {reason}; earlier ones "
                "are whole: make room, then the same command goes on from the newest"
            ) from error
        if self.world.is_first:
            checkpoint.prune(self.folder, self.configuration.checkpoint, self.state)
        self.world.barrier()

    def _write_card(self, folder: Path, state: RunState, figures: dict[str, Any]) -> None:
        manifests = [dataset.manifest for dataset in self.data.train]
        export.write_card(folder, self.configuration, manifests, self.parameters, state, figures, self.notes)

    def _finish(self) -> None:
        """Make RUN/model from the best or the last checkpoint; read the test set once with it."""
        wants_best = self.configuration.checkpoint.best is not None and self.state.best_step is not None
        step = self.state.best_step if wants_best else self.state.step
        source = checkpoint.path_of(self.folder, step)
        agree(self.world, lambda: self._refuse_damaged(source))
        if self.data.test is not None:
            self._test(source / "model")
        if self.world.is_first:
            staged = self.folder / ".model"
            shutil.rmtree(staged, ignore_errors=True)
            shutil.copytree(source / "model", staged)
            self._write_card(staged, checkpoint.read_state(source), self.state.figures)
            export.publish(staged, self.folder / "model")
            shutil.rmtree(staged)
            self.log.say(f"finished: {self.folder / 'model'} holds the model of step {step}")
        self.world.barrier()

    def _refuse_damaged(self, source: Path) -> None:
        reason = checkpoint.defect(source) if self.world.is_first else None
        if reason is not None:
            raise UserError(f"the checkpoint to make the model from is damaged: {reason}; longmix export has --step")

    def _test(self, checkpoint_model: Path) -> None:
        model = self.objective.auto_class.from_pretrained(checkpoint_model).to(self.world.device)
        figures = evaluate(
            model, self.data.test, self.objective, self.world, None, self.configuration.batch.micro_batch
        )
        self.log.record("test", self.state.step, figures)
        self.state.figures = {
            **self.state.figures,
            **{f"test_{name}": value for name, value in figures.items()},
        }
