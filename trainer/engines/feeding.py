"""Micro-batches on their way to a device: on a GPU each is copied while the one before it is computed."""

from collections.abc import Iterator

import torch

from ..samples.collate import Batch
from .base import to_device


class Feed:
    """Copies micro-batches to a device.

    To a GPU one goes ahead, on a stream of its own: such a copy waits for nothing that is computed meanwhile. It must
    come from pinned memory, or the host waits for it. On a CPU nothing is ahead.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ahead: tuple[Batch, Batch] | None = None  # on the host, and its copy

    def on_device(self, batches: list[Batch], following: Batch | None = None) -> Iterator[Batch]:
        """Each batch on the device. `following`: what the next call begins with, if that is known."""
        for batch, coming in zip(batches, [*batches[1:], following], strict=True):
            if self._stream is None:
                yield to_device(batch, self._device)
                continue
            copy = self._arrived(batch)
            if coming is not None:
                self._ahead = coming, self._sent(coming)
            yield copy

    def _sent(self, batch: Batch) -> Batch:
        with torch.cuda.stream(self._stream):
            return to_device(batch, self._device)

    def _arrived(self, batch: Batch) -> Batch:
        """The copy of a batch, for the stream that computes: what is asked of that from here on waits for the copy."""
        ahead, self._ahead = self._ahead, None
        copy = ahead[1] if ahead is not None and ahead[0] is batch else self._sent(batch)
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._stream)
        for value in copy.values():
            if isinstance(value, torch.Tensor):
                # It was allocated for the stream of copies, which may overwrite it once the host has let go of it.
                value.record_stream(computing)
        return copy
