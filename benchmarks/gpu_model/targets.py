"""A card for Triton on machines without one."""

import contextlib
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget


class _Target:
    """What Triton asks a driver for when it compiles, and nothing else."""

    def __init__(self, capability: int):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        """The card to compile for."""
        return self.target

    def get_current_device(self) -> int:
        """A number for each kind of card: Triton keeps compiled kernels by it."""
        return self.target.arch

    def get_current_stream(self, device: int) -> int:
        """None."""
        return 0


def targeted(capability: int) -> contextlib.AbstractContextManager:
    """In this context the machine has a card of this capability for Triton: 70 for V100, 80 for A100, 90 for H100."""
    return mock.patch.object(triton.runtime.driver, "_active", _Target(capability))
