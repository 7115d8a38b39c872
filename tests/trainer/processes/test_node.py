"""A look at a node: what fails is told, and what others do wrong is no fault of this one."""

import concurrent.futures
import socket
import subprocess
import sys

import pytest
import torch

from longmix.trainer.cli import main
from longmix.trainer.processes import node
from longmix.trainer.processes.launch_environment import LaunchEnvironment

ALONE = LaunchEnvironment(0, 1, 0, False, None, None, None)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(node, "HOST_BYTES", 2**16)
    monkeypatch.setattr(node, "SIDE", 64)


def test_a_sound_node(small):
    lines, is_sound = node.look(ALONE)
    assert is_sound and lines[-1] == f"node {socket.gethostname()}: nothing is wrong"
    memory, products, _ = lines
    assert "cpu: memory: 0 MiB written and read 3 times, copied at " in memory
    assert "TFLOP/s in float32, " in products and products.endswith("TFLOP/s in bfloat16")


def test_memory_that_gives_back_something_else(small, monkeypatch):
    def flipped(self, other):
        whole(self, other)
        self[17] ^= 1
        return self

    whole = torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", flipped)
    lines, is_sound = node.look(ALONE)
    assert not is_sound
    assert "wrong: cpu memory: what was written is not what is read: its memory may be faulty" in "\n".join(lines)


@pytest.mark.parametrize("fault", ["now and then", "always"])
def test_products_that_are_wrong(small, monkeypatch, fault):
    whole, calls = torch.Tensor.__matmul__, []

    def wrong(left, right):
        result = whole(left, right)
        calls.append(1)
        if left.dtype == torch.float32 and (fault == "always" or len(calls) == 3):
            result[5, 5] += 100.0
        return result

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    lines, is_sound = node.look(ALONE)
    told = "differs from time to time" if fault == "now and then" else "is off by "
    assert not is_sound and told in lines[-1] and lines[-1].endswith(": its arithmetic may be faulty")


def test_the_command(small, capsys, monkeypatch):
    assert main(["doctor", "--node"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(": nothing is wrong")

    def broken(device):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    monkeypatch.setattr(node, "_memory", broken)
    assert main(["doctor", "--node"]) == 1
    assert "wrong: cpu memory: CUDA error: uncorrectable ECC error encountered" in capsys.readouterr().out


# Several nodes, a process each.

LOOK = """
import sys
from longmix.trainer.processes import node
from longmix.trainer.processes.launch_environment import LaunchEnvironment

node.PATIENCE_SECONDS, node.HOST_BYTES, node.SIDE = 4.0, 2**16, 64
rank, size, port = map(int, sys.argv[1:])
lines, is_sound = node.look(LaunchEnvironment(rank, size, 0, True, "127.0.0.1", port, None))
print("\\n".join(lines))
sys.exit(not is_sound)
"""


def looks(ranks, size):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def one(rank):
        command = [sys.executable, "-c", LOOK, str(rank), str(size), str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(one, ranks))


@pytest.mark.full
def test_nodes_sum_over_all_of_them():
    for code, out, error in looks([0, 1, 2], 3):
        assert code == 0, error
        assert "network: 16 MiB summed over 3 nodes, " in out


@pytest.mark.full
def test_a_node_that_does_not_come_is_named_by_the_others_who_are_sound():
    for code, out, error in looks([0, 2], 3):
        assert code == 0, error
        assert "network: 1 of 3 nodes have not come (ranks 1)" in out and "nothing is wrong" in out


@pytest.mark.full
def test_a_node_that_does_not_reach_the_first_one_is_wrong():
    ((code, out, _),) = looks([1], 2)
    assert code == 1 and "wrong: network: the first node (127.0.0.1:" in out and "cannot be reached" in out
