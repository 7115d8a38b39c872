"""The CPUs beside a rank's GPU: what a rank runs on, so that its memory and its launches take the short way."""

import os
from pathlib import Path

import torch

SYSTEM = Path("/sys")


def stay_near(device: torch.device) -> set[int] | None:
    """Bind this process, and threads that it begins from here on, to the CPUs of its GPU's part of the host's memory.

    Ranks whose GPUs share one part share its CPUs. A process that may run on none of these CPUs stays where it is: who
    has bound it knows why.

    Returns:
        These CPUs; None if nothing was changed.
    """
    near = cpus_near(device)
    allowed = os.sched_getaffinity(0)
    if not near & allowed or allowed <= near:
        return None
    os.sched_setaffinity(0, near & allowed)
    return near & allowed


def cpus_near(device: torch.device) -> set[int]:
    """The CPUs of the GPU's NUMA node, as the system has them; empty where it does not say."""
    about = torch.cuda.get_device_properties(device)
    try:
        address = f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
        node = int((SYSTEM / "bus/pci/devices" / address / "numa_node").read_text())
        # Of a host with one part the system says -1.
        return set() if node < 0 else _listed((SYSTEM / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError, AttributeError):  # torch says its address from 2.8 on
        return set()


def _listed(text: str) -> set[int]:
    """ "0-3,8" -> {0, 1, 2, 3, 8}. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
