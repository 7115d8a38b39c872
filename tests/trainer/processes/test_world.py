"""How a process joins the others where there are GPUs, which torch pretends to see here."""

import datetime
import errno
import os

import pytest
import torch
from torch.distributed import distributed_c10d

from longmix.data_prep.errors import MachineFault, UserError
from longmix.kernels.proving import HOST_RANK
from longmix.trainer.commands import train
from longmix.trainer.engines import load_checks
from longmix.trainer.many_runs import pool
from longmix.trainer.processes import world
from longmix.trainer.processes.launch_environment import EnvironmentFault, EnvironmentMistake, tells


@pytest.fixture
def joined(monkeypatch):
    """joined(GPUs that the process sees): the world of rank 3 of 4, the second one of its host."""
    place = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in {**place, HOST_RANK: "", "DS_ACCELERATOR": "cpu"}.items():
        monkeypatch.setenv(name, value)
    for name in ("SLURM_GPUS_ON_NODE", "CUDA_VISIBLE_DEVICES", "LONGMIX_LAUNCHER"):
        monkeypatch.delenv(name, raising=False)
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        monkeypatch.setattr(distributed_c10d, name, None)
    for name in ("init_process_group", "new_group"):
        monkeypatch.setattr(torch.distributed, name, lambda *arguments, **options: None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(world, "meet", lambda place, timeout: None)
    monkeypatch.setattr(world, "stay_near", lambda device: None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)

    def make(count, **options):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        return world.join(**options)

    return make


@pytest.mark.parametrize(("count", "device"), [(2, 1), (1, 0)])
def test_libraries_are_told_of_the_gpu_that_the_process_sees(joined, count, device):
    """Slurm may show each task its own alone, which DeepSpeed and Accelerate find by LOCAL_RANK."""
    assert joined(count).device == torch.device("cuda", device)
    assert (os.environ["LOCAL_RANK"], os.environ[HOST_RANK]) == (str(device), "1")


def test_gpus_that_slurm_has_given_are_not_done_without(joined, monkeypatch):
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # listed by a driver that does not start
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for ask in (world.usable_gpus, pool.devices, train._devices):
        with pytest.raises(MachineFault, match="but torch sees none"):
            ask()
    with pytest.raises(MachineFault, match=r"Slurm has given this job 2 of .*'s GPUs, but torch sees none: "):
        joined(0)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UserError, match="but torch was built for CPUs: install one for GPUs, or ask for no GPUs"):
        joined(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert joined(0).device.type == "cpu"


def test_two_ranks_never_share_a_gpu(joined, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(EnvironmentMistake, match=r"rank 3 is process 4 of .*, where torch sees 3 GPUs: start one "):
        joined(3)
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    with pytest.raises(EnvironmentFault, match="where torch sees 3 GPUs"):
        joined(3)
    assert joined(1).device.index == 0  # each task sees its own
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LONGMIX_LAUNCHER", str(os.getppid()))  # which shows all to all
    with pytest.raises(MachineFault, match="where torch sees 1 GPU: start"):
        joined(1)


def test_gpus_that_nobody_uses_are_told_once(joined, monkeypatch, capsys):
    """Some clusters hand out nodes, and know of no GPUs: the job's script starts one rank there."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    joined(4)
    assert capsys.readouterr().err == ""  # rank 3: the first one tells
    monkeypatch.setenv("RANK", "0")
    joined(1)
    assert capsys.readouterr().err == ""
    joined(4)
    assert " has 4 GPUs, of which 1 will be used: start a process for each (slurm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "is_fault"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (OSError(errno.EIO, "Input/output error"), True),
        (RuntimeError("NCCL error in: x.cpp: unhandled system error"), True),
        (RuntimeError("NCCL error in: x.cpp: invalid usage"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), False),
    ],
)
def test_faults_of_the_machine_are_told_from_mistakes(error, is_fault, tmp_path):
    assert (world.fault_of(error) is not None) == is_fault
    with pytest.raises(world.LoneFault if is_fault else world.LoneMistake), load_checks.loading(tmp_path):
        raise error


def test_what_one_rank_finds_it_tells_itself(monkeypatch):
    """Rank 0, which tells what all find, does not know of it."""
    monkeypatch.setenv("RANK", "3")
    assert tells(EnvironmentFault("x")) and tells(EnvironmentMistake("x"))
    assert not tells(MachineFault("x")) and not tells(UserError("x"))


def test_open_mpis_name_for_it_agrees(joined, monkeypatch):
    """DeepSpeed ends a run in which it does not."""
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    joined(1)
    assert os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] == os.environ["LOCAL_RANK"] == "0"


def test_fp32_keeps_its_digits_on_a_gpu_whatever_is_computed(joined):
    joined(1)
    assert not torch.backends.cudnn.allow_tf32


def test_groups_that_libraries_make_wait_as_long_as_ours(joined):
    joined(2, hang_minutes=90)
    for backend in ("nccl", "gloo"):
        assert distributed_c10d._get_default_timeout(backend) == datetime.timedelta(minutes=92)
