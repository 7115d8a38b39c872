"""What a forward pass keeps for its backward pass."""

import torch


class KeptTensors(torch.autograd.graph.saved_tensors_hooks):
    """Counts, in its context, the bytes that autograd keeps of a model's forward pass.

    Storage that several kept tensors share counts once, the model's parameters and buffers not at all. It works on
    tensors without data, too.

    Attributes:
        bytes: counted so far.
    """

    def __init__(self, model: torch.nn.Module):
        # Sizes alone are noted: a reference would keep memory longer than the backward pass does.
        self._sizes: dict[int, int] = {}
        self._own = {_storage_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
        super().__init__(self._note, lambda tensor: tensor)

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = _storage_of(tensor)
        if storage not in self._own:
            self._sizes[storage] = tensor.untyped_storage().nbytes()
        return tensor


def _storage_of(tensor: torch.Tensor) -> int:
    """Its storage's identity, which tensors without data have as well."""
    return tensor.untyped_storage()._cdata
