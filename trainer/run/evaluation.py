"""The figures of a model on a data set, the same for any number of ranks (to rounding)."""

import math
from collections.abc import Callable

import numpy as np
import torch

from ..engines.base import to_device
from ..objectives.labelled_positions import with_word_perplexity
from ..objectives.objective import Objective
from ..objectives.sums import Sums
from ..processes.world import World
from ..samples.windows import Dataset


def chosen_samples(available: int, wanted: int | None) -> np.ndarray:
    """Indices of the samples to evaluate: all, or `wanted` of them spread evenly over the data set."""
    count = available if wanted is None else min(wanted, available)
    return np.arange(count, dtype=np.int64) * available // count


@torch.no_grad()
def evaluate(
    model: torch.nn.Module,
    dataset: Dataset,
    objective: Objective,
    world: World,
    samples: int | None,
    micro_batch: int,
    interrupted: Callable[[], bool] = lambda: False,
    note: Callable[[int], None] = lambda samples: None,
) -> dict[str, float] | None:
    """The objective's figures (see `Objective.figures`) over `samples` samples, on every rank; masks are fixed.

    Where those samples hold nothing to predict, {"items": 0} alone: a mean over nothing has no value.

    Every rank makes the same number of forward passes, as ZeRO-3 needs; spare ones repeat a sample and do not count.
    `interrupted` is asked before each of them and gives every rank the same answer; None once it says yes. `note` is
    told after each how many more samples all ranks have evaluated.
    """
    chosen = chosen_samples(len(dataset), samples)
    found = run(model, dataset, objective, world, chosen, micro_batch, interrupted, note)
    if found is None:
        return None
    sums, outputs = found
    if Sums(*sums.tolist()).items == 0:
        return {"items": 0}
    return with_word_perplexity(objective.figures(sums, outputs), dataset.manifest)


def run(
    model: torch.nn.Module,
    dataset: Dataset,
    objective: Objective,
    world: World,
    indices: np.ndarray,
    micro_batch: int,
    interrupted: Callable[[], bool] = lambda: False,
    note: Callable[[int], None] = lambda samples: None,
) -> tuple[torch.Tensor, list[np.ndarray]] | None:
    """Sums over all ranks, and for objectives with sample labels the outputs of `indices` in their order; None if
    `interrupted`."""
    mine = np.array_split(indices, world.size)[world.rank]
    rounds = math.ceil(math.ceil(len(indices) / world.size) / micro_batch)
    sums = torch.zeros(3, dtype=torch.float64)
    outputs = []
    world.progress.phase = "evaluation"
    was_training = model.training
    model.eval()
    try:
        for number in range(rounds):
            if interrupted():
                return None
            part = mine[number * micro_batch : (number + 1) * micro_batch]
            counts = len(part) > 0
            part = part if counts else indices[:1]
            batch = objective.evaluation_batch(dataset.read(part), part)
            part_sums, part_outputs = objective.evaluation(model, to_device(batch, world.device))
            if counts:
                sums += part_sums.cpu()
                if part_outputs is not None:
                    outputs.append(part_outputs)
            note(len(indices[number * micro_batch * world.size : (number + 1) * micro_batch * world.size]))
    finally:
        model.train(was_training)
    world.sum(sums)
    gathered = [part for parts in world.gather(outputs) for part in parts]
    return sums, gathered
