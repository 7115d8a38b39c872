"""The loop that trains everything: steps, evaluation, records, checkpoints, stop requests."""

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from longmix.kernels.linear.products import by_torch
from longmix.kernels.selection import noted_choices

from ..checkpoints.resuming import resume
from ..checkpoints.run_log import RunLog
from ..checkpoints.saving import Saver
from ..checkpoints.state import TORCH, RunState
from ..checkpoints.wandb_log import WandbLog, require_wandb
from ..engines.base import Later, StepResult
from ..engines.make import make_engine
from ..export import publish
from ..export.card import ModelCard
from ..objectives.sums import Sums
from ..optimization.schedule import learning_rate
from ..processes.signals import StopRequests
from ..processes.watchdog import Watchdog
from ..processes.world import SharedFault, World, agree, begin_together
from ..settings.configuration import RunConfiguration
from ..settings.exit_codes import FINISHED, INTERRUPTED
from ..settings.mistakes import say
from .agreement import Agreement, seed_generators
from .best_checkpoint import Evaluator
from .building import build
from .determinism import changed_circumstances, computing
from .dry_run import dry_run
from .final_model import FinalModel
from .folder import RunLock, noted_facts, refuse_changes, refuse_unusable, risen_rate, write_configuration
from .kept_choices import products_here, settle_gradients, settle_products, settle_seed
from .memory import refuse_beyond_memory
from .settling import settle
from .setup import Prepared, prepare
from .speed import Interval, Utilisation, device_name
from .spikes import SpikeGuard
from .stop_conditions import Consensus, Decision, StopConditions
from .stream import BatchStream, StepBatch

LONGEST_ROW_OF_SKIPS = 10


class NotFiniteError(SharedFault):
    """Ten steps in a row had a loss or gradients that are not finite."""


@dataclass
class Outcome:
    """The end of a run: exit code, and its state with the figures of its evaluation (and test)."""

    code: int
    state: RunState


def train(configuration: RunConfiguration, world: World, requests: StopRequests | None = None) -> Outcome:
    """Train from where the run folder stands to `optim.max_steps`, or until a stop request.

    `requests`: of a caller that listens to signals already; by default they are noted from the first step on.

    Raises:
        SharedMistake: before any step, on every rank alike.
        SharedFault: the disk refuses what must be kept, on every rank alike.
        UserError: on one rank alone, e.g. a shard that cannot be read.
        NotFiniteError: ten dropped steps in a row.
        DisagreementError: the ranks have come apart.
    """
    with contextlib.ExitStack() as stack:
        watchdog = stack.enter_context(Watchdog(world, Path(configuration.run.dir), configuration.run.hang_minutes))
        # By the first rank for all: its run folder and its processor.
        settled = agree(world, lambda: settle(configuration, world.device) if world.is_first else None)
        configuration, chosen = world.from_first(settled)
        run = Path(configuration.run.dir)
        products = agree(world, lambda: settle_products(run, world.device) if world.is_first else None)
        products = world.from_first(products)
        stack.enter_context(by_torch() if products == TORCH else contextlib.nullcontext())
        prepared = agree(world, lambda: _prepare(configuration, world))
        if world.is_first:
            samples = sum(len(dataset) for dataset in prepared.data.train)
            say(f"loaded {samples:,} training samples; building {prepared.model_configuration.model_type}")
        stack.enter_context(computing(configuration.run, world.device))
        lock = RunLock(Path(configuration.run.dir))
        agree(world, lambda: stack.enter_context(lock) if world.is_first else None)
        watchdog.share()
        model = agree(world, lambda: build(prepared, world))
        requests = requests if requests is not None else stack.enter_context(StopRequests())
        return _Run(prepared, model, world, requests, products).train([chosen] if chosen else [])


def _prepare(configuration: RunConfiguration, world: World) -> Prepared:
    if world.is_first:  # on other hosts config.yaml may still be the one before
        refuse_changes(Path(configuration.run.dir), configuration)
        if configuration.log.wandb is not None:
            require_wandb(configuration.log.wandb)
    refuse_unusable(Path(configuration.run.dir))
    prepared = prepare(configuration, world.size, world.device)
    refuse_beyond_memory(prepared, world.size, world.device)
    return prepared


class _Run:
    """One run on this rank, from where its folder stands: all that its steps need.

    Raises:
        SharedMistake, UserError: as `train` does.
    """

    def __init__(self, prepared: Prepared, model: torch.nn.Module, world: World, requests: StopRequests, products: str):
        configuration = self.configuration = prepared.configuration
        self.prepared, self.model, self.world, self.requests = prepared, model, world, requests
        self.data, self.objective = prepared.data, prepared.objective
        self.folder = Path(configuration.run.dir)
        self.last_step = configuration.optim.max_steps

        # The facts of the whole model, before an engine shares it out.
        parameters = prepared.size.parameters
        self.notes = prepared.notes(model, world.size)
        evaluated = None if self.data.evaluation is None else self.data.evaluation.manifest
        manifests = [dataset.manifest for dataset in self.data.train]
        model_type = prepared.model_configuration.model_type
        self.card = ModelCard(configuration, model_type, manifests, parameters, self.notes, evaluated)

        self.utilisation = agree(world, lambda: Utilisation(prepared, world))

        # The model is equal on all ranks. From here on they differ: dropout must not repeat itself.
        seed = world.from_first(agree(world, lambda: settle_seed(configuration) if world.is_first else None))
        seed_generators(configuration.run.seed if seed is None else seed, world.rank)
        kept = agree(world, lambda: settle_gradients(configuration, prepared.precision) if world.is_first else None)
        gradients = world.from_first(kept)
        self.engine = agree(world, lambda: make_engine(model, configuration, prepared.precision, gradients, world))
        if world.is_first:
            say(f"built it with {parameters:,} parameters; dry run of one step on {device_name(world.device.type)}")
        with noted_choices() as kernels:
            dry_run(self.engine, model, prepared, world)
            self.kernels = ", ".join(f"{name} {' and '.join(sorted(kernels[name]))}" for name in sorted(kernels))
        state = self.state = resume(configuration, self.data, self.engine, world)
        state.products, state.seed = products, seed
        self.resume_notes: list[str] = []
        agree(world, lambda: self._write_configuration(parameters) if world.is_first else None)

        # The companions of the steps. All share `state`; RunState says which of them owns what.
        self.spikes = SpikeGuard(state, self.engine.guard, configuration.optim.skip_spikes)
        self.agreement = Agreement(self.engine, model, self.data.order, configuration, world, state)
        self.log = RunLog(
            self.folder,
            world.is_first,
            state.step,
            self.last_step,
            configuration.log.tensorboard,
            state.evaluation_due,
            state.tokens,
            self._start_wandb if configuration.log.wandb is not None else None,
        )
        self.saver = Saver(self.folder, configuration.checkpoint, world, self.log, state, parameters)
        self.conditions = StopConditions(self.folder, configuration.run, self.last_step, requests, world.is_first)
        self.consensus = Consensus(self.conditions, self.saver, world)
        self.evaluator = Evaluator(self.engine, prepared, world, state, self.log, self.consensus)
        self.final_model = FinalModel(prepared, self.card, self.evaluator, world, state, self.log)
        self.gradient_norm: float | torch.Tensor | None = None  # of the last step; None: there is none
        self.sums: torch.Tensor | None = None  # of the steps since they were last noted, on this rank's device
        # The last step, with its result and sums, while the device alone may know whether it was taken.
        self.open: tuple[int, StepResult, torch.Tensor] | None = None

    def _start_wandb(self) -> WandbLog:
        return WandbLog(self.folder, self.configuration.log.wandb, self.configuration.to_dict())

    def _write_configuration(self, parameters: int) -> None:
        """Write config.yaml, with the facts that a report tells of a run beside its configuration.

        Raises:
            UserError: the run is to be deterministic, and goes on under other circumstances.
        """
        manifest = self.data.manifest
        facts = {
            "device": device_name(self.world.device.type),
            "processes": self.world.size,
            "threads": torch.get_num_threads(),
            "kernels": self.kernels,
            "products": products_here(self.world.device),
            "parameters": parameters,
            "data": {
                "task": manifest.report.get("task"),
                "sequence_length": manifest.sequence_length,
                "fingerprints": self.data.fingerprints(),
            },
        }
        if self.state.step > 0:
            self.resume_notes = [
                # Of a config.yaml that was lost the checkpoint knows this much.
                *changed_circumstances(
                    self.configuration.run, {"products": self.state.products, **noted_facts(self.folder)}, facts
                ),
                *risen_rate(self.folder, self.configuration, self.state.step),
            ]
        write_configuration(self.folder, self.configuration, facts)

    def train(self, first_notes: list[str]) -> Outcome:
        """Make the steps that are left, then the model; or stop in between. `first_notes`: lines to begin with."""
        with contextlib.closing(self.log), contextlib.closing(self.saver):
            for note in [*first_notes, *self.prepared.start_notes, *self.notes, *self.resume_notes]:
                self.log.say(note)
            decision = self._train()
            self.log.end_steps()
            if not decision.stops:
                decision = self._finish()
            self.log.say(self.saver.told())
            # What came too late for a run that is done must not meet a longer one.
            self.conditions.obeyed(decision if decision.stops else Decision("its end", saves=True))
            if decision.stops:
                self.log.say(
                    f"stopped at step {self.state.step} by {decision.reason}; {decision.remedy} goes on from "
                    f"{'there' if self.saver.newest.step == self.state.step else f'step {self.saver.newest.step}'}"
                )
        return Outcome(INTERRUPTED if decision.stops else FINISHED, self.state)

    def _train(self) -> Decision:
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
            first_place=state.samples,  # also of a run that goes on with other batches
            pins=self.world.device.type == "cuda",
        )
        with stream:
            if 0 < state.step < self.last_step:
                self.log.say(f"going on from step {state.step}")
            interval = Interval(waited=stream.waited, tokens=state.tokens, items=Sums(*state.interval).items)
            begin_together(self.world, self.requests)
            self.log.begin_steps()
            decision = self.consensus.ask(state.step) if state.step < self.last_step else Decision()
            if state.step == 0 or state.evaluation_due:
                decision = self._complete_step(decision)
            batch = next(stream, None) if not decision.stops else None
            counts = self.world.sum(_counts(batch))
            while batch is not None:
                # What all ranks want, and what they have for the next step, is exchanged while this one is computed:
                # a wish is obeyed a step later, but for run.stop_at_step, which is known ahead.
                following = next(stream, None)
                exchange = self.world.sum_later(torch.cat([_counts(following), self.consensus.asked(state.step + 1)]))
                self._step(batch, following, *counts.tolist())
                counts, asked = exchange.wait().tensor_split([2])
                decision = self.consensus.decide(asked.tolist())
                self.log.note_step(state.step)
                if state.step == self.last_step or state.step % configuration.log.every_steps == 0:
                    self._record(interval, stream)
                    interval = Interval(waited=stream.waited, tokens=state.tokens)
                with interval.paused():
                    self.agreement.check_if_due(batch.draw)
                    decision = self._complete_step(decision)
                batch = following if not decision.stops else None
        return decision

    # One step: forward, backward, the optimizer, the counters.

    def _step(self, batch: StepBatch, following: StepBatch | None, items: float, tokens: float) -> None:
        """Make one optimizer step of a batch that has so many items and tokens on all ranks together."""
        state = self.state
        self.world.progress.begin_step(state.step + 1)
        if items == 0:
            self._pass_over(int(tokens))
            return
        self.model.train()
        sums = self.engine.forward_backward(
            batch.micro_batches,
            lambda model, micro_batch: self.objective.forward(model, micro_batch, items),
            following.micro_batches[0] if following is not None else None,
        ).double()
        self._close_step()  # the one before: the device has work until this one's gradients are there
        if self.configuration.optim.skip_spikes:
            self.spikes.expect(self._of_all_ranks(sums).mean_loss)
        result = self.engine.step(learning_rate(self.configuration.optim, state.step + 1))
        self.gradient_norm = result.gradient_norm
        self._count_batch(int(tokens))
        self.open = state.step, result, sums
        if not isinstance(result.applied, Later):
            self._close_step()

    def _close_step(self) -> None:
        """Count the last step as taken or dropped, unless that is done."""
        if self.open is None:
            return
        (step, result, sums), self.open = self.open, None
        if result.applied:
            self.state.row_of_skips = 0
            self.sums = sums if self.sums is None else self.sums + sums
            self.spikes.note_taken()
        else:
            self._count_skip(step, result, sums)

    def _of_all_ranks(self, sums: torch.Tensor) -> Sums:
        """Sums of this rank's share, added up over all ranks. It waits for the device."""
        # A copy on a CPU, too: the sum is made in place, and the rank's own share is to be added up again.
        return Sums(*self.world.sum(sums.to("cpu", copy=True)).tolist())

    def _note_sums(self) -> None:
        """Take what the steps since the last call have summed up, on their devices, into the state of the run."""
        self._close_step()
        if self.sums is not None:
            sums, self.sums = self._of_all_ranks(self.sums), None
            self.state.interval = [before + now for before, now in zip(self.state.interval, sums, strict=True)]

    def _pass_over(self, tokens: int) -> None:
        """Consume a batch in which no rank has anything to predict.

        No engine is asked for a step: with gradients of 0 the optimizer would still decay weights and age its moments.
        """
        self._count_batch(tokens)
        self.gradient_norm = None
        self.state.empty += 1
        if self.state.empty == 1:
            self.log.say(
                f"step {self.state.step}: nothing to predict in its batch, which is passed over (metrics.jsonl counts "
                "such steps as empty_steps)"
            )

    def _count_batch(self, tokens: int) -> None:
        self.state.step += 1
        self.state.samples += self.configuration.batch.samples
        self.state.tokens += tokens

    def _count_skip(self, step: int, result: StepResult, sums: torch.Tensor) -> None:
        state = self.state
        state.skipped += 1
        if result.judged:
            state.row_of_skips = 0  # it is finite, and so are the weights
            self.log.say(self.spikes.note_dropped())
            return
        # In fp16 an overflow with a finite loss only means that the loss scale was too high: it is being lowered.
        is_overflow = self.prepared.precision == "fp16" and math.isfinite(self._of_all_ranks(sums).loss)
        if is_overflow and result.loss_scale > 1:
            self.log.say(f"step {step}: overflow in fp16, step dropped, loss scale now {result.loss_scale:g}")
            return
        state.row_of_skips += 1
        self.log.say(f"step {step}: loss or gradients not finite, step dropped ({state.skipped} so far)")
        if state.row_of_skips >= LONGEST_ROW_OF_SKIPS:
            raise NotFiniteError(
                f"{LONGEST_ROW_OF_SKIPS} steps in a row had a loss or gradients that are not finite (last: step "
                f"{step}). Lower optim.lr, lengthen optim.warmup_steps, or set precision to fp32 or bf16; "
                "with 'run.allow_changes=[KEY]' for what you change, the run then goes on from the newest checkpoint"
            )

    def _record(self, interval: Interval, stream: BatchStream) -> None:
        """Record the steps since the last record."""
        self._note_sums()
        state, sums = self.state, Sums(*self.state.interval)
        figures = {"loss": sums.mean_loss if sums.items else None}
        if self.objective.accuracy_name is not None:
            figures[self.objective.accuracy_name] = sums.hit_rate if sums.items else None
        figures |= {
            "lr": learning_rate(self.configuration.optim, state.step),
            "grad_norm": None if self.gradient_norm is None else float(self.gradient_norm),
            "samples_seen": state.samples,
            "tokens_seen": state.tokens,
            "skipped_steps": state.skipped,
            "empty_steps": state.empty,
        }
        speed = interval.figures(stream, state.tokens, sums.items, self.world, self.utilisation)
        self.log.record("train", state.step, {**figures, **speed}, state.tokens)
        state.interval = [0.0, 0.0, 0.0]

    # Between two steps, and after the last: evaluation, the best, checkpoints, the final model.

    def _complete_step(self, decision: Decision) -> Decision:
        """Do what is due after a step: evaluation, the choice of the best, a checkpoint. Whether to go on afterwards.

        A stop that is asked for meanwhile cuts the evaluation short: going on, the run makes it first.
        """
        configuration, state = self.configuration, self.state
        last = state.step == self.last_step
        due = state.step > 0 and (last or state.step % configuration.checkpoint.every_steps == 0)
        if due:
            self._close_step()
        # Within a row of dropped steps the checkpoint before it stays the newest: a way back.
        due = due and (last or not state.row_of_skips)
        if due:
            # Whether the checkpoint before could be written decides which is the best until now.
            self.saver.wait()
        if state.step == 0 or last or state.step % configuration.eval.every_steps == 0 or state.evaluation_due:
            decision = self.evaluator.evaluate(decision)
        if due and configuration.checkpoint.best is not None and not state.evaluation_due:
            decision = self.evaluator.compare_with_best(decision)
        if last and not state.evaluation_due:
            decision = Decision()  # nothing is left to stop, but for the reading of the test set
        if due or decision.stops or decision.saves:
            state.stopped_by = decision.reason
            self._save(is_last_chance=last or decision.stops)
            state.stopped_by = None
        if decision.saves:
            self.conditions.obeyed(decision)
        return decision

    def _save(self, is_last_chance: bool) -> None:
        self._note_sums()
        figures = self.evaluator.current()

        def write_model(folder: Path, weights: dict[str, torch.Tensor], state: RunState) -> None:
            publish.save_model(self.model, weights, folder, self.prepared.tokenizer)
            self.card.write(folder, state, figures)

        self.saver.save(self.engine, write_model, is_last_chance)

    def _finish(self) -> Decision:
        if self.saver.newest.step != self.state.step:
            raise SharedFault(
                f"the last step is done, but its checkpoint could not be written to {self.folder / 'checkpoints'}: "
                f"make room, then the same command goes on from step {self.saver.newest.step}"
            )
        if self.state.empty > 0:
            self.log.say(f"note: {self.state.empty} of {self.state.step} steps had a batch with nothing to predict")
        self.saver.tidy()
        return self.final_model.make()


def _counts(batch: StepBatch | None) -> torch.Tensor:
    """(2,) float64: items and tokens of this rank's share of a step, 0 behind the last step."""
    return torch.tensor([0, 0] if batch is None else [batch.items, batch.tokens], dtype=torch.float64)
