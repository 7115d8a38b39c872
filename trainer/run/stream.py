"""The batches of this rank, step by step, prepared in the background."""

import contextlib
import queue
import threading
import time
from dataclasses import dataclass

import numpy as np
import torch

from ..objectives.objective import Objective
from ..samples.collate import Batch, Sample, count_positions
from ..samples.order import Draw, RunOrder
from ..samples.windows import Dataset

PREFETCHED_STEPS = 4
# Whose samples are looked up in the order at a time.
DRAWN_STEPS = 16
LONGEST_WAIT_SECONDS = 0.1
LONGEST_CLOSING_SECONDS = 10.0


@dataclass
class StepBatch:
    """This rank's share of one optimizer step.

    Attributes:
        micro_batches: tensors for the model, on the CPU.
        items: what the loss is averaged over in this share (labelled positions, or samples).
        tokens: valid tokens in this share, or positions where the data hold real values.
        draw: the samples, in order.
    """

    micro_batches: list[Batch]
    items: int
    tokens: int
    draw: Draw


class BatchStream:
    """Iterates over the steps [first_step, last_step) of a run, whose samples begin at `first_place` of its order; a
    thread reads, masks and pads ahead.

    Close it, or use it as a context manager: the thread ends then. With `pins` the tensors lie in memory that a GPU
    copies from while its host goes on.

    Attributes:
        waited: seconds that the consumer has waited for data so far.
    """

    def __init__(
        self,
        datasets: list[Dataset],
        order: RunOrder,
        objective: Objective,
        batch_samples: int,
        micro_batch: int,
        rank: int,
        world_size: int,
        first_step: int,
        last_step: int,
        first_place: int,
        pins: bool = False,
    ):
        self.datasets, self.order, self.objective = datasets, order, objective
        self.batch_samples, self.micro_batch = batch_samples, micro_batch
        self.rank, self.world_size, self.pins = rank, world_size, pins
        self.waited = 0.0
        self._draws: dict[int, Draw] = {}
        self._steps, self._first_place = range(first_step, last_step), first_place
        self._steps_left = iter(self._steps)
        self._queue: queue.Queue = queue.Queue(maxsize=PREFETCHED_STEPS)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="longmix-data", daemon=True)
        self._thread.start()

    def __iter__(self) -> "BatchStream":
        return self

    def __next__(self) -> StepBatch:
        if next(self._steps_left, None) is None:
            raise StopIteration
        started = time.perf_counter()
        prepared = self._queue.get()
        self.waited += time.perf_counter() - started
        if isinstance(prepared, BaseException):
            raise prepared
        return prepared

    def __enter__(self) -> "BatchStream":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread, or leave it behind if it waits for a remote store: that must not keep a run from stopping."""
        self._closed.set()
        deadline = time.monotonic() + LONGEST_CLOSING_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=0.05)

    def prepare(self, step: int) -> StepBatch:
        """This rank's share of step number `step` (0-based)."""
        draw = self._draw(step)
        for source in np.unique(draw.source).tolist():
            self.datasets[source].fetch(draw.sample[draw.source == source])
        # At once: the row groups that are not in memory are decoded side by side.
        samples = self._read(draw)
        tokens = sum(map(count_positions, samples))
        micro_batches = []
        for first in range(0, len(draw), self.micro_batch):
            part = slice(first, first + self.micro_batch)
            batch = self.objective.training_batch(samples[part], draw[part])
            micro_batches.append(_pinned(batch) if self.pins else batch)
        items = sum(self.objective.items(batch) for batch in micro_batches)
        return StepBatch(micro_batches, items, tokens, draw)

    def _read(self, draw: Draw) -> list[Sample]:
        samples: list[Sample] = [{}] * len(draw)
        for source in np.unique(draw.source).tolist():
            places = np.flatnonzero(draw.source == source)
            for place, sample in zip(places.tolist(), self.datasets[source].read(draw.sample[places]), strict=True):
                samples[place] = sample
        return samples

    def _draw(self, step: int) -> Draw:
        if step not in self._draws:
            place = self._first_place + (step - self._steps.start) * self.batch_samples
            shares = self.order.shares_of_rank(place, self.batch_samples, DRAWN_STEPS, self.rank, self.world_size)
            self._draws = dict(enumerate(shares, start=step))
        return self._draws[step]

    def _fill(self) -> None:
        try:
            for step in self._steps:
                if not self._put(self.prepare(step)):
                    return
        except BaseException as error:
            # Handed to the consumer, which raises it in the thread that can end the run.
            self._put(error, verifies=False)

    def _put(self, prepared: StepBatch | BaseException, verifies: bool = True) -> bool:
        """Hand a step over; False if nobody wants it any more."""
        wait = LONGEST_WAIT_SECONDS
        while not self._closed.is_set():
            try:
                self._queue.put(prepared, timeout=wait)
                return True
            except queue.Full:
                # The consumer is slower: time to spare, for a piece of a shard before it is asked again.
                is_verifying = verifies and any(dataset.verify_next() for dataset in self.datasets)
                wait = 0.0 if is_verifying else LONGEST_WAIT_SECONDS
        return False


def _pinned(batch: Batch) -> Batch:
    return {name: value.pin_memory() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
