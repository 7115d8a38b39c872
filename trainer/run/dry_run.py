"""A dry run before the first step, on a batch of the largest shape: what does not fit or match is found at once.

First each rank tries its micro-batch alone, without any exchange, so that all can tell of a failure and leave together.
Then the engine makes a step whose loss is NaN, which it drops as it drops every such step. Neither leaves a trace.
"""

import contextlib
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from longmix.data_prep.errors import MachineFault, UserError, reason_of
from longmix.data_prep.manifest import Manifest

from ..engines.base import Engine, to_device
from ..objectives.objective import Objective
from ..processes.world import SharedMistake, World, agree, fault_of, is_lost_rank
from ..samples.collate import SECOND, TOKEN_IDS, Batch, is_pair, length_of
from ..samples.dataset import ShardedDataset
from ..samples.freed_memory import keep_freed_memory
from ..samples.host_memory import free_memory, processes_here
from ..samples.run_data import RunData
from ..samples.shard_check import DOCUMENT_STARTS
from ..settings import deepspeed_file
from .determinism import operation_refused
from .memory import kept_per_parameter
from .setup import Prepared

# How many samples are looked at for the longest where the manifest does not say it.
_LOOKED_AT = 256


def dry_run(engine: Engine, model: torch.nn.Module, prepared: Prepared, world: World) -> None:
    """Try a step; every rank must call it, before it loads a checkpoint. On a CPU what it needed decides whether the
    steps keep the memory that they free.

    Args:
        model: what the engine was made of.

    Raises:
        SharedMistake: the micro-batch does not fit into a device's memory, or not through the model.
        UserError: the same on this rank alone, e.g. at ZeRO stage 3, where no rank can try alone.
    """
    with without_trace(model, world.device):
        reserved = agree(world, lambda: _reserve(model, prepared, engine.stage, world))
        _Rehearsal(engine, model, prepared, world).run()
        del reserved
    if world.device.type == "cpu":
        keep_freed_memory(free_memory() // (processes_here() or 1))


class _Rehearsal:
    def __init__(self, engine: Engine, model: torch.nn.Module, prepared: Prepared, world: World):
        self.engine, self.model, self.world = engine, model, world
        self.data, self.objective = prepared.data, prepared.objective
        self.batch = prepared.configuration.batch
        self.share = self.batch.samples // world.size
        self.objective_name = prepared.configuration.objective.name
        self.rate = prepared.configuration.optim.lr
        self.compile = prepared.configuration.run.compile
        self.longest = agree(world, lambda: longest_sample(self.data))

    def run(self) -> None:
        wanted = self.batch.micro_batch
        if self.objective.items(self._micro_batch(wanted)) == 0:
            # The same on every rank. The loss would be 0, and no gradient could be spoilt.
            raise SharedMistake(
                f"objective {self.objective_name} finds nothing to predict in the training data, whose longest samples "
                f"have {self.longest} {'token' if self.longest == 1 else 'tokens'}: prepare longer ones, or choose "
                "another objective"
            )
        if self.engine.stage < 3:
            fits = self.world.gather(agree(self.world, lambda: self._fits(wanted)))
            if not all(fits):
                smaller = [size for size in range(wanted - 1, 0, -1) if self.share % size == 0]
                fitting = min(self.world.gather(next(filter(self._fits, smaller), 0)))
                raise SharedMistake(self._too_large(fits.index(False), fitting))
        batch = self._micro_batch(wanted)
        with self._telling_shapes(batch):
            # A second one stands beside the gradients of the first; any further ones need no more memory than that.
            batches = [batch] * min(2, self.share // wanted)
            if not _runs(lambda: self._rehearse(batches)):
                half = next((size for size in range(wanted // 2, 0, -1) if self.share % size == 0), 0)
                raise UserError(self._too_large(self.world.rank, half))

    def _micro_batch(self, size: int) -> Batch:
        return largest_micro_batch(self.data, self.objective, self.longest, size)

    def _forward(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.objective.forward(model, batch, self.objective.items(batch) * self.world.size)

    def _fits(self, size: int) -> bool:
        """Whether this rank alone can make forward and backward passes of so many samples.

        Raises:
            UserError: it fails for another reason than memory.
        """
        batch = self._micro_batch(size)
        with self._telling_shapes(batch), _without_batch_statistics(self.model):
            return _runs(lambda: self._pass(to_device(batch, self.world.device)))

    def _pass(self, batch: Batch) -> None:
        loss, _ = self._forward(self.model, batch)
        # Unlike backward(), this calls no hook, by which an engine would exchange gradients.
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        torch.autograd.grad(loss, parameters, allow_unused=True)

    def _rehearse(self, batches: list[Batch]) -> None:
        def spoilt(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            loss, sums = self._forward(model, batch)
            return loss * math.nan, sums

        with self.engine.rehearsing(len(batches)):
            self.engine.forward_backward(batches, spoilt)
            result = self.engine.step(self.rate)
        if result.applied:
            raise AssertionError("the step of the dry run was taken")

    @contextlib.contextmanager
    def _telling_shapes(self, batch: Batch) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError, IndexError) as error:
            if isinstance(error, UserError | MachineFault) or is_lost_rank(error):
                raise
            if (fault := fault_of(error)) is not None:
                raise fault from error
            operation = operation_refused(error)
            if operation is not None:
                raise UserError(
                    f"run.deterministic: {operation}, which this {self.model.config.model_type} needs on "
                    f"{self.world.device.type}, has no deterministic form in torch: set it to false"
                ) from error
            if self.compile and self.engine.stage == 3:
                reason = str(error).partition("\n")[0]  # torch goes on at length
                raise UserError(
                    f"run.compile is {str(self.compile).lower()}, but at ZeRO stage 3 a compiled layer does not find "
                    f"parameters that it reads outside of their own module, as {self.model.config.model_type} may: set "
                    f"it to false, or take a lower stage ({reason})"
                ) from error
            shapes = ", ".join(f"{name} {tuple(np.shape(value))}" for name, value in batch.items())
            raise UserError(
                f"model {self.model.config.model_type} does not take a micro-batch of the data's longest samples "
                f"({shapes}): {reason_of(error)}"
            ) from error

    def _too_large(self, rank: int, fitting: int) -> str:
        """The message, with a size that fits (0: none does)."""
        told = (
            f"batch.micro_batch {self.batch.micro_batch} (samples of {self.longest} tokens) does not fit into the "
            f"memory of rank {rank}"
        )
        if fitting == 0:
            return f"{told}, nor does any smaller one: set run.gradient_checkpointing, or take a smaller model"
        return (
            f"{told}; set batch.micro_batch={fitting} (the batch stays the same, it is cut into more pieces), or "
            "run.gradient_checkpointing=true"
        )


# The batch: as long as the longest sample of the data, made from their manifests, so that no shard is waited for.


def largest_micro_batch(data: RunData, objective: Objective, longest: int, size: int) -> Batch:
    """`size` samples of `longest` ordinary tokens or vectors, made a batch by the objective; no shard is read.

    Nothing of it is drawn: another seed would try the same batch.
    """
    return full_micro_batch(
        data.manifest, objective, longest, size, any(is_ragged(dataset, longest) for dataset in data.train)
    )


def full_micro_batch(manifest: Manifest, objective: Objective, longest: int, size: int, is_ragged: bool) -> Batch:
    """The same of data of which no more than the manifest is there; `is_ragged`: one sample is shorter."""
    special = {*manifest.special_token_ids, manifest.pad_token_id}
    # No more ids than there are places for them: a manifest may say any size of vocabulary.
    first = range(min(manifest.vocab_size or 1, longest + len(special)))
    ordinary = sorted(set(first) - special)
    samples = [_sample(manifest.columns, ordinary or [0], longest) for _ in range(size)]
    if size > 1 and longest > 1 and is_ragged:
        samples[-1] = _sample(manifest.columns, ordinary or [0], longest - 1)
    return objective.rehearsal_batch(samples)


def _sample(columns: dict[str, dict[str, Any]], ordinary: list[int], length: int) -> dict[str, Any]:
    sample: dict[str, Any] = {}
    for name, column in columns.items():
        if name == DOCUMENT_STARTS:
            sample[name] = np.zeros(1, dtype=np.int64)
        elif name.removesuffix(SECOND) == TOKEN_IDS:
            sample[name] = np.resize(np.asarray(ordinary, dtype=np.int64), length)
        elif len(column["shape"]) == 2:
            rows = column["shape"][0] or length
            sample[name] = np.linspace(-1, 1, rows * column["shape"][1], dtype=np.float32).reshape(rows, -1)
        else:
            sample[name] = np.zeros(length, dtype=np.int64) if column["shape"] else 0
    return sample


def is_ragged(dataset: ShardedDataset, longest: int) -> bool:
    sequences = 2 if is_pair(dataset.manifest.columns) else 1
    return dataset.manifest.tokens is None or dataset.manifest.tokens < sequences * len(dataset) * longest


def longest_sample(data: RunData) -> int:
    """The positions of the longest training sequence, by the manifests or else by the first samples."""
    lengths = []
    for dataset in data.train:
        length = dataset.manifest.sequence_length
        if length is not None and dataset.manifest.tokens:
            length = min(length, dataset.manifest.tokens)  # all samples together are no shorter than one
        if length is None:
            first = dataset.read(np.arange(min(len(dataset), _LOOKED_AT)))
            suffixes = ("", SECOND) if is_pair(first[0]) else ("",)
            length = max(length_of(sample, suffix) for sample in first for suffix in suffixes)
        lengths.append(length)
    return max(lengths)


# Memory, and the contexts that put back all that a dry run changes.


def _runs(work) -> bool:
    """Whether the memory suffices for `work`."""
    try:
        work()
        return True
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
    # Only now, outside of the handler, is free what the failed passes held.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False


@contextlib.contextmanager
def _without_batch_statistics(model: torch.nn.Module) -> Iterator[None]:
    """Training mode, but for batch normalisation, which would exchange its statistics with other ranks."""
    model.train()
    for module in model.modules():
        if "batchnorm" in type(module).__name__.lower():
            module.eval()
    yield
    model.train()


@contextlib.contextmanager
def without_trace(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Put back buffers and every random generator."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    numpy_state, python_state = np.random.get_state(), random.getstate()
    was_training = model.training
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    np.random.set_state(numpy_state)
    random.setstate(python_state)
    model.train(was_training)
    for buffer, before in buffers:
        buffer.copy_(before)


def _reserve(model: torch.nn.Module, prepared: Prepared, stage: int, world: World) -> torch.Tensor | None:
    """Hold as much of a GPU's memory as the optimizer's moments in fp32 will take from the first step on."""
    name = prepared.configuration.deepspeed
    if world.device.type != "cuda" or (name is not None and deepspeed_file.offloads(deepspeed_file.read(name))):
        return None
    numbers = sum(getattr(one, "ds_numel", one.numel()) for one in model.parameters() if one.requires_grad)
    try:
        size = int(4 * kept_per_parameter(prepared) * numbers)
        return torch.empty(size // (world.size if stage > 0 else 1), dtype=torch.uint8, device=world.device)
    except torch.OutOfMemoryError:
        raise UserError(
            f"the optimizer's state does not fit into the memory of rank {world.rank}: take a higher stage of ZeRO, "
            "more processes, or a smaller model"
        ) from None
