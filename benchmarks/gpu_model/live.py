"""The most memory that code takes at once, found on tensors without data."""

from collections.abc import Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveMemory(TorchDispatchMode):
    """Counts, in its context, the bytes of storages that are made and not yet freed, those of views once.

    Args:
        given: tensors that are there before, and do not count.

    Attributes:
        peak: the most bytes so far.
    """

    def __init__(self, given: Iterable[torch.Tensor]):
        super().__init__()
        self._given = {tensor.untyped_storage()._cdata for tensor in given}
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self._live = {place: known for place, known in self._live.items() if not known[0].expired()}
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._given:
                    self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return result
