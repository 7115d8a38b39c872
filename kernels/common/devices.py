"""What the device that plain PyTorch runs on asks of it."""

import torch


def for_gpu(tensor: torch.Tensor) -> bool:
    """Whether few launches and bytes count, and fp32 sums of half precision are as fast; a CPU has caches instead."""
    return tensor.device.type != "cpu"


def must_be_deterministic(tensor: torch.Tensor) -> bool:
    """Whether torch refuses operations that have no deterministic form on a GPU (`use_deterministic_algorithms`)."""
    refuses = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    return refuses and tensor.device.type != "cpu"
