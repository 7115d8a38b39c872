"""A rank runs on the CPUs beside its GPU, as far as it may run there."""

import os
from types import SimpleNamespace

import pytest
import torch

from longmix.trainer.processes import affinity

DEVICE = torch.device("cuda", 1)


@pytest.fixture
def host(tmp_path, monkeypatch):
    """host(NUMA node of the GPU, CPUs that this process may run on) -> sets of CPUs, those that it was bound to."""
    bound = []
    about = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cpus: bound.append(cpus))
    monkeypatch.setattr(affinity, "SYSTEM", tmp_path)
    for number, cpus in enumerate(("0-3,8-11\n", "4-7,12-15\n")):
        folder = tmp_path / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)

    def make(node, allowed):
        folder = tmp_path / "bus/pci/devices/0000:c1:00.0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "numa_node").write_text(node)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(allowed))
        return bound

    return make


def test_it_stays_on_the_cpus_of_its_gpus_node(host):
    bound = host("1\n", range(16))
    assert affinity.stay_near(DEVICE) == {4, 5, 6, 7, 12, 13, 14, 15}
    assert bound == [{4, 5, 6, 7, 12, 13, 14, 15}]


def test_it_takes_none_that_the_job_does_not_have(host):
    bound = host("1\n", range(6))
    assert affinity.stay_near(DEVICE) == {4, 5} and bound == [{4, 5}]


@pytest.mark.parametrize(
    ("node", "allowed"),
    [("-1\n", range(16)), ("7\n", range(16)), ("x", range(16)), ("0\n", (4, 5)), ("0\n", (1, 2))],
    ids=["one node", "no such node", "nonsense", "bound elsewhere", "bound there"],
)
def test_it_stays_where_it_is_where_nothing_better_is_known(host, node, allowed):
    bound = host(node, allowed)
    assert affinity.stay_near(DEVICE) is None and bound == []


def test_a_device_that_the_system_does_not_list_changes_nothing(host, tmp_path):
    bound = host("0\n", range(16))
    (tmp_path / "bus/pci/devices/0000:c1:00.0/numa_node").unlink()
    assert affinity.stay_near(DEVICE) is None and bound == []


def test_where_torch_does_not_say_which_device_it_is_nothing_is_bound(host, monkeypatch):
    bound = host("1\n", range(16))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="card"))
    assert affinity.stay_near(DEVICE) is None and bound == []
