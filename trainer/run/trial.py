"""A few micro-batches of a run, timed on this device without training: what a step of it takes, and its activations.

Nothing is read but the lengths of a few samples, and nothing is written. The trial goes up from one short sample as far
as the time allows, so that it ends in time on any device, and speaks for the run's own micro-batch by proportion.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from longmix.data_prep.errors import reason_of
from longmix.data_prep.remote import is_remote

from ..engines.base import to_device
from ..models.build import build_model
from ..models.field_check import FROM
from ..models.kept import KeptTensors
from ..optimization.matrices import matrix_views
from ..optimization.optimizer import make_guarded_optimizer, parameter_groups
from ..samples.collate import SECOND, TOKEN_IDS, is_pair, length_of
from ..samples.host_memory import host_memory
from .determinism import computing
from .dry_run import is_ragged, largest_micro_batch, longest_sample, without_trace
from .memory import GIGABYTE, kept_per_parameter, state_bytes
from .setup import Prepared

# Seconds for a whole trial, the first pass of the model left out, in which kernels may be compiled.
SECONDS = 20.0
# A model of more parameters takes too long to build on a CPU, or too much of a GPU that others use.
MOST_PARAMETERS = {"cpu": 3 * 10**8, "cuda": 2 * 10**9}
# The first sample that is tried has at most so many tokens; each next one, or micro-batch, is so many times larger.
_FIRST_LENGTH, _GROWTH = 128, 4
# The quickest of so many more passes counts: other programs make some slower, and nothing makes one quicker.
_REPEATS = 3
# Samples whose lengths are looked at, where they differ.
_LOOKED_AT = 256


class NotTried(Exception):
    """No step was timed; the message says why."""


@dataclass(frozen=True)
class Trial:
    """The time of the run's micro-batch and of its optimizer step on one device, by what was timed.

    Attributes:
        samples, length: what was timed: samples, and tokens or positions of each.
        micro_batch, usual_length: what the run has, of each process at a time.
        forward, backward: seconds of the run's micro-batch.
        optimizer: seconds of an optimizer step over all parameters.
        activations: bytes that the run's micro-batch keeps for its backward pass.
    """

    samples: int
    length: int
    micro_batch: int
    usual_length: int
    forward: float
    backward: float
    optimizer: float
    activations: float

    @property
    def is_whole(self) -> bool:
        """Whether a whole micro-batch of the run was timed, so that nothing is taken by proportion."""
        return (self.samples, self.length) == (self.micro_batch, self.usual_length)


@dataclass(frozen=True)
class _Pass:
    samples: int
    length: int
    forward: float
    backward: float
    activations: float

    @property
    def positions(self) -> int:
        return self.samples * self.length

    @property
    def seconds(self) -> float:
        return self.forward + self.backward


def try_out(
    prepared: Prepared,
    device: torch.device,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Trial:
    """Time a micro-batch of a run, and its optimizer step.

    Raises:
        NotTried: the model is too large to be tried here, or does not run.
    """
    _refuse_large(prepared, device)
    try:
        lengths = _lengths(prepared)
        with computing(prepared.configuration.run, device):
            model = _build(prepared, device)
            with without_trace(model, device):
                return _Trial(prepared, model, device, seconds, clock).run(*lengths)
    except NotTried:
        raise
    except Exception as error:  # whatever keeps a model from being tried, the run file may be as it should be
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
            raise NotTried("it does not fit into the memory of this device") from None
        raise NotTried(f"it does not run here: {reason_of(error)}") from None


def _refuse_large(prepared: Prepared, device: torch.device) -> None:
    parameters = prepared.size.parameters
    most = MOST_PARAMETERS[device.type]
    if parameters > most:
        raise NotTried(f"{parameters:,} parameters, and a trial here takes at most {most:,}")
    needed, there = _states(prepared), _room(device)
    if needed > there:
        raise NotTried(f"a trial needs {needed / GIGABYTE:.0f} GiB of memory, and may take {there / GIGABYTE:.0f} GiB")


def _states(prepared: Prepared) -> float:
    """Bytes of weights, gradients and optimizer in a trial, which shares nothing out."""
    return state_bytes(prepared.size.parameters, "fp32", None, 1, kept_per_parameter(prepared))


def _room(device: torch.device) -> float:
    """Bytes that a trial may take: not all, for others may need some too."""
    return 0.8 * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0.5 * host_memory()


def _build(prepared: Prepared, device: torch.device) -> torch.nn.Module:
    """The run's model as it would be built anew: the weights that it starts from change no time."""
    start = prepared.start
    fields = {key: value for key, value in start.model.items() if key != FROM}
    fields["model_type"] = prepared.model_configuration.model_type
    # Compiling would take most of the time.
    start = replace(start, model=fields, run=replace(start.run, compile=False))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return build_model(start, prepared.model_configuration, prepared.objective.auto_class).to(device).train()


def _lengths(prepared: Prepared) -> tuple[int, int, int]:
    """(compiled, first, usual): the length to compile kernels with, the one to time first, and that of a usual
    micro-batch of the run."""
    data = prepared.data
    if any(is_remote(dataset.folder) and dataset.manifest.sequence_length is None for dataset in data.train):
        raise NotTried("no manifest says how long the samples are, and none is copied here for an estimate")
    longest = longest_sample(data)
    if TOKEN_IDS not in data.manifest.columns:
        return longest, longest, longest  # windows and rows of vectors have one length
    usual = longest
    if any(is_ragged(dataset, longest) for dataset in data.train):
        usual = min(longest, _padded_length(prepared) or longest)
    first = min(usual, _FIRST_LENGTH)
    return max(1, first // 2), first, usual


def _padded_length(prepared: Prepared) -> int | None:
    """Positions of a sample with its padding, the mean over the first micro-batches; None: it is not looked at."""
    data, batch = prepared.data, prepared.configuration.batch
    if any(is_remote(dataset.folder) for dataset in data.train):
        return None  # no shard is copied for an estimate
    draw = data.order.share_of_rank(0, max(1, _LOOKED_AT // batch.micro_batch) * batch.micro_batch, 0, 1)
    suffixes = ("", SECOND) if is_pair(data.manifest.columns) else ("",)
    lengths = []
    for source, sample in zip(draw.source.tolist(), draw.sample.tolist(), strict=True):
        read = data.train[source].read([sample])[0]
        lengths.append(max(length_of(read, suffix) for suffix in suffixes))
    micro_batches = [lengths[first : first + batch.micro_batch] for first in range(0, len(lengths), batch.micro_batch)]
    return math.ceil(sum(map(max, micro_batches)) / len(micro_batches))


class _Trial:
    def __init__(
        self,
        prepared: Prepared,
        model: torch.nn.Module,
        device: torch.device,
        seconds: float,
        clock: Callable[[], float],
    ):
        self.prepared, self.model, self.device, self.clock = prepared, model, device, clock
        self.ends = clock() + seconds
        self.room = _room(device) - _states(prepared)

    def run(self, compiled_length: int, first_length: int, usual_length: int) -> Trial:
        micro_batch = self.prepared.configuration.batch.micro_batch
        shapes = _shapes(first_length, usual_length, micro_batch)
        # Compiles kernels and makes room; its time is nobody's.
        began = self._now()
        smallest = self._pass(1, compiled_length)
        self.ends += self._now() - began
        timed = self._pass(*next(shapes))
        for samples, length in shapes:
            if _extended(smallest, timed, samples * length) > self.room:
                break
            # Attention is quadratic in the length; everything is at most that.
            growth = samples / timed.samples * (length / timed.length) ** 2
            if growth * timed.seconds > self._left():
                timed = self._again(timed)  # something else may have had the processor
                if growth * timed.seconds > self._left():
                    break
            timed = self._pass(samples, length)
        for _ in range(_REPEATS):
            timed = self._again(timed)
        scale = micro_batch * usual_length / timed.positions
        return Trial(
            timed.samples,
            timed.length,
            micro_batch,
            usual_length,
            scale * timed.forward,
            scale * timed.backward,
            self._optimizer_step(timed),
            _extended(smallest, timed, micro_batch * usual_length),
        )

    def _again(self, timed: _Pass) -> _Pass:
        """The quicker of this pass and another like it, if the time allows another."""
        if timed.seconds > self._left():
            return timed
        again = self._pass(timed.samples, timed.length, is_counting=False)
        return min(timed, replace(again, activations=timed.activations), key=lambda one: one.seconds)

    def _pass(self, samples: int, length: int, is_counting: bool = True) -> _Pass:
        """Forward and backward passes of a micro-batch; its gradients stay. Counting what is kept takes some time."""
        objective, kept = self.prepared.objective, KeptTensors(self.model)
        batch = to_device(largest_micro_batch(self.prepared.data, objective, length, samples), self.device)
        items = max(1, objective.items(batch))
        self.model.zero_grad(set_to_none=True)
        began = self._now()
        with kept if is_counting else contextlib.nullcontext(), self._precision():
            loss, _ = objective.forward(self.model, batch, items)
        between = self._now()
        loss.backward()
        return _Pass(samples, length, between - began, self._now() - between, kept.bytes)

    def _optimizer_step(self, timed: _Pass) -> float:
        """Seconds of an optimizer step: timed on as large a part of the parameters as the time allows."""
        optim = self.prepared.configuration.optim
        flops = sum(5 * 3 * 2 * count * min(sides) * math.prod(sides) for count, *sides in self._matrices())
        outside = self.prepared.size.parameters - self.prepared.size.embeddings
        # Five iterations of three products, each at the speed of the passes or half of it.
        expected = 2 * flops / max(1.0, 6 * outside * timed.positions) * timed.seconds
        every = max(1, math.ceil(2 * expected / max(self._left(), 0.05 * SECONDS)))
        groups = _thinned(parameter_groups(self.model, optim), every)
        step = make_guarded_optimizer(groups, optim, self.prepared.precision).step
        everything = sum(parameter.numel() for parameter in self.model.parameters())
        part = sum(parameter.numel() for group in groups for parameter in group["params"])
        step()  # makes its state
        began = self._now()
        step()
        return (self._now() - began) * everything / max(1, part)

    def _matrices(self) -> list[tuple[int, int, int]]:
        is_muon = self.prepared.configuration.optim.name == "muon"
        return list(matrix_views(self.model).values()) if is_muon else []

    def _precision(self) -> Any:
        precision = self.prepared.precision
        kind = torch.float16 if precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, kind, enabled=precision != "fp32")

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock()

    def _left(self) -> float:
        return self.ends - self._now()


def _shapes(first_length: int, usual_length: int, micro_batch: int) -> Iterator[tuple[int, int]]:
    """(samples, length) of the passes, from small to the run's own micro-batch."""
    length, samples = first_length, 1
    yield samples, length
    while length < usual_length:
        length = min(usual_length, _GROWTH * length)
        yield samples, length
    while samples < micro_batch:
        samples = min(micro_batch, _GROWTH * samples)
        yield samples, length


def _extended(smallest: _Pass, largest: _Pass, positions: int) -> float:
    """What so many positions keep, along the line through two passes: copies of the weights in 16 bits stay one."""
    if positions == largest.positions or smallest.positions == largest.positions:
        return positions / largest.positions * largest.activations
    slope = (largest.activations - smallest.activations) / (largest.positions - smallest.positions)
    return largest.activations + slope * (positions - largest.positions)


def _thinned(groups: list[dict], every: int) -> list[dict]:
    """Groups of an optimizer with one of `every` parameters of each shape."""
    thinned = []
    for group in groups:
        seen: dict[tuple[int, ...], int] = {}
        chosen = []
        for index, parameter in enumerate(group["params"]):
            number = seen[tuple(parameter.shape)] = seen.get(tuple(parameter.shape), -1) + 1
            if number % every == 0 and parameter.grad is not None:
                chosen.append(index)
        lists = {key: [group[key][index] for index in chosen] for key in ("params", "matrices") if group.get(key)}
        thinned.append({**group, **lists})
    return [group for group in thinned if group["params"]]
