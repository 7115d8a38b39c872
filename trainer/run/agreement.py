"""Whether the ranks still train the same model: every `run.check_every` steps they compare what must be equal.

What differs by design is compared with what it should be on the rank itself: its generator of torch by its seed, its
share of the samples by the order.
"""

import collections
import hashlib
import random
from typing import Any

import numpy as np
import torch

from ..checkpoints.state import RunState
from ..engines.base import Engine
from ..processes.world import SharedFault, World
from ..samples import counter_random
from ..samples.order import Draw, RunOrder
from ..settings.configuration import RunConfiguration

# Integers of an element's size, and elements that are summed at a time.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PIECE = 2**16
_SPREAD = 0x1E3779B97F4A7C15


class DisagreementError(SharedFault):
    """The ranks have come apart: a fault of the hardware, or of the program."""


def seed_generators(seed: int, rank: int) -> None:
    """Seed every generator that a model may draw from: torch's for each rank anew, for dropout must not repeat itself.

    Nothing of ours draws from NumPy's or Python's; a model of someone else's may, and they are the same on all ranks.
    """
    torch.manual_seed(_seed_of_rank(seed, rank))
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _seed_of_rank(seed: int, rank: int) -> int:
    return int(counter_random.key(seed, rank)) % 2**63


class Agreement:
    """Compares this rank with the others.

    Args:
        engine: its stage says what the ranks have in common: at stage 3 of ZeRO no parameters.
        model: what the engine was made of.
    """

    def __init__(
        self,
        engine: Engine,
        model: torch.nn.Module,
        order: RunOrder,
        run: RunConfiguration,
        world: World,
        state: RunState,
    ):
        self._stage = engine.stage
        self._model, self._order, self._configuration = model, order, run
        self._world, self._state = world, state
        self._agreed_at = state.step

    def check_if_due(self, draw: Draw) -> None:
        """After a step over these samples, the share of this rank. Every rank must call it.

        Raises:
            DisagreementError: naming the first thing that differs, and the ranks.
        """
        if self._state.step % self._configuration.run.check_every == 0:
            self._check(draw)
            self._agreed_at = self._state.step

    def _check(self, draw: Draw) -> None:
        facts = self.facts(draw)
        # Most often a few bytes say it all: the facts themselves are exchanged only to name what differs.
        if len(set(self._world.gather(_digest(repr(facts).encode())))) == 1 and all(facts[0].values()):
            return
        raise DisagreementError(self._told(*first_difference(self._world.gather(facts))))

    def facts(self, draw: Draw) -> tuple[dict[str, bool], dict[str, Any]]:
        """By name: whether what differs by design is this rank's, and what is the same on all ranks."""
        return self._own(draw), self._common()

    def _told(self, name: str, ranks: list[int]) -> str:
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        return (
            f"the ranks have come apart by step {self._state.step}: {name} is not what it should be on {who}. They "
            f"agreed at step {self._agreed_at}: checkpoints after it may hold the fault; move those away, then the "
            "same command goes on from before. If it happens again on the same machine, do without that machine"
        )

    def _own(self, draw: Draw) -> dict[str, bool]:
        """Whether each thing that differs between ranks by design is this rank's own."""
        configuration, world, state = self._configuration, self._world, self._state
        samples = configuration.batch.samples
        share = self._order.share_of_rank(state.samples - samples, samples, world.rank, world.size)
        is_share = all(np.array_equal(*pair) for pair in zip(_of(draw), _of(share), strict=True))
        own = {"the share of the samples": is_share}
        if state.seed is not None:
            seed = _seed_of_rank(state.seed, world.rank)
            own["torch's random generator"] = torch.initial_seed() == seed
            if world.device.type == "cuda":
                own["the random generator of the device"] = torch.cuda.initial_seed() == seed
        return own

    def _common(self) -> dict[str, Any]:
        """The values that are the same on all ranks, by name, in the order of comparison."""
        state, samples = self._state, self._configuration.batch.samples
        numpy_state = np.random.get_state()
        everyone = self._order.draw(state.samples - samples, samples)
        common = {
            "the step": state.step,
            "the number of samples": state.samples,
            "the number of tokens": state.tokens,
            "the number of dropped steps": state.skipped,
            "the number of empty steps": state.empty,
            "the order of the samples": _digest(*(part.tobytes() for part in _of(everyone))),
            "NumPy's random generator": _digest(numpy_state[1].tobytes(), repr(numpy_state[2:]).encode()),
            "Python's random generator": _digest(repr(random.getstate()).encode()),
        }
        tensors = {}
        if self._stage < 3:
            tensors = {f"parameter {name}": parameter for name, parameter in self._model.named_parameters()}
        per_rank = _of_local_statistics(self._model)
        for name, buffer in self._model.named_buffers():
            if id(buffer) not in per_rank:
                tensors[f"buffer {name}"] = buffer
        return {**common, **dict(zip(tensors, _checksums(list(tensors.values())), strict=True))}


# Comparing: whether values are this rank's own, and on which ranks they are not those of most ranks.


def first_difference(everywhere: list[tuple[dict[str, bool], dict[str, Any]]]) -> tuple[str, list[int]]:
    """The first name among the `facts` of all ranks that is not what it should be, and on which ranks."""
    for name in everywhere[0][0]:
        wrong = [rank for rank, (own, _) in enumerate(everywhere) if not own[name]]
        if wrong:
            return name, wrong
    for name in everywhere[0][1]:
        values = [common.get(name) for _, common in everywhere]
        counts = collections.Counter(values)
        # Among equally many the first rank is believed.
        usual = max(values, key=lambda value: counts[value])
        if len(counts) > 1:
            return name, [rank for rank, value in enumerate(values) if value != usual]
    first = list(everywhere[0][1])
    return "the list of parameters", [rank for rank, (_, common) in enumerate(everywhere) if list(common) != first]


def _of(draw: Draw) -> tuple[np.ndarray, ...]:
    return draw.source, draw.epoch, draw.sample


def _of_local_statistics(model: torch.nn.Module) -> set[int]:
    """ids of the buffers that each rank averages over its own samples (torch's plain batch normalisation)."""
    plain = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    modules = (module for module in model.modules() if isinstance(module, plain))
    return {id(buffer) for module in modules for buffer in module.buffers(recurse=False)}


# Checksums: computed on the device that holds a tensor, so that a comparison moves eight bytes of each.


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _checksums(tensors: list[torch.Tensor]) -> list[int]:
    """One number for each tensor, made on its device: any change of one element changes it."""
    sums = [_checksum(tensor.detach()) for tensor in tensors]
    return torch.stack(sums).tolist() if sums else []


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    bits = tensor.contiguous().reshape(-1).view(_BITS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for first in range(0, len(bits), _PIECE):
        piece = bits[first : first + _PIECE].to(torch.int64)
        weights = torch.arange(first, first + len(piece), device=tensor.device)
        # Odd, so that no difference is lost modulo 2^64; of each place its own, so that none makes up for another.
        total += (piece * (weights * _SPREAD | 1)).sum()
    return total
