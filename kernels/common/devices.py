"""What plain PyTorch should spare on the device that it runs on."""

import torch


def for_gpu(tensor: torch.Tensor) -> bool:
    """Whether few launches and bytes count, and fp32 sums of half precision are as fast; a CPU has caches instead."""
    return tensor.device.type != "cpu"
