"""What a launcher says of this process: read and checked, and who waits for whom."""

import datetime
import os
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from longmix.data_prep.errors import MachineFault, UserError
from longmix.trainer.cli import main
from longmix.trainer.processes import meeting, world
from longmix.trainer.processes.launch_environment import (
    LAUNCH_VARIABLES,
    EnvironmentFault,
    EnvironmentMistake,
    LaunchEnvironment,
)

WHOLE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "12345"}


def test_a_whole_environment_is_read():
    place = LaunchEnvironment.read({**WHOLE, "LONGMIX_LAUNCHER": "77"})
    assert place == LaunchEnvironment(1, 2, 1, True, "127.0.0.1", 12345, 77)
    assert place.require_meeting_point() == ("127.0.0.1", 12345)
    # Where to meet may stand in a cluster's environment for ever.
    assert LaunchEnvironment.read({"MASTER_PORT": "x", "LOCAL_RANK": "y"}) == LaunchEnvironment(
        0, 1, 0, False, None, None, None
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"RANK": "x"}, "RANK is 'x'"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"RANK": "²"}, "RANK is '²'"),
        ({"RANK": ""}, "RANK is ''"),
        ({"RANK": "5"}, "RANK=5 of WORLD_SIZE=2"),
        ({"RANK": None}, "has WORLD_SIZE=2, but no RANK"),
        ({"WORLD_SIZE": None}, "has RANK=1, but no WORLD_SIZE"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE is '999"),
        ({"WORLD_SIZE": "99999999"}, "WORLD_SIZE is '99999999'"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK is '2'"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is '65536'"),
        ({"MASTER_PORT": None}, "no MASTER_PORT"),
        ({"MASTER_ADDR": None}, "no MASTER_ADDR"),
        ({"LONGMIX_LAUNCHER": "abc"}, "LONGMIX_LAUNCHER is 'abc'"),
        ({"OMP_NUM_THREADS": "abc"}, "OMP_NUM_THREADS is 'abc'"),
        ({"OMP_NUM_THREADS": "0"}, "OMP_NUM_THREADS is '0'"),
        ({"OMP_NUM_THREADS": "100000"}, "OMP_NUM_THREADS is '100000'"),
    ],
)
def test_an_environment_that_describes_no_run_is_told_by_its_variable(changes, told):
    values = {name: value for name, value in {**WHOLE, **changes}.items() if value is not None}
    with pytest.raises(EnvironmentMistake, match=told):
        LaunchEnvironment.read(values).require_meeting_point()


@pytest.mark.parametrize(
    "variables", [{"RANK": "x"}, {"RANK": "-1", "WORLD_SIZE": "2"}, {"RANK": "5", "WORLD_SIZE": "2"}]
)
def test_no_rank_leaves_without_a_word(monkeypatch, capsys, variables):
    for name in LAUNCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "no.yaml"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("longmix: error: the environment") and told.count("\n") == 1


def test_what_all_ranks_find_is_told_by_the_first_and_what_each_command_finds_by_itself(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        assert main(["train", "no.yaml"]) == 2
        assert capsys.readouterr().err.count("\n") == lines
    assert main(["report", "nowhere", "--output", "x"]) == 2
    assert capsys.readouterr().err.startswith("longmix: error: ")


def place_of(rank, size, port, address="127.0.0.1"):
    return LaunchEnvironment(rank, size, rank, True, address, port, None)


def test_a_name_that_does_not_resolve_is_told_at_once(monkeypatch):
    def unknown(*arguments, **keywords):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UserError, match=r"MASTER_ADDR is .head\.invalid., which does not resolve .*not known"):
        meeting.meet(place_of(1, 2, 12345, "head.invalid"), datetime.timedelta(minutes=1))


def test_a_name_server_that_does_not_answer_is_no_mistake(monkeypatch):
    def silent(*arguments, **keywords):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    monkeypatch.setattr(meeting, "RESOLVING_SECONDS", 0.0)
    with pytest.raises(EnvironmentFault, match=r"which does not resolve \(.*Temporary failure"):
        meeting.meet(place_of(1, 2, 12345, "head"), datetime.timedelta(minutes=1))


def test_a_port_that_somebody_has_is_no_mistake():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(MachineFault, match=r"EADDRINUSE.* and a free port there"):
            meeting.meet(place_of(0, 2, other.getsockname()[1]), datetime.timedelta(seconds=5))


def test_ranks_that_an_agent_starts_again_wait_for_each_other(free_port, monkeypatch):
    """Its store still holds what the ranks before them left there."""
    port = free_port()
    agent = torch.distributed.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    for attempt in range(2):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        with pytest.raises(MachineFault, match=r"rank 0 of 2 waited .* for rank 1"):
            meeting.meet(place_of(0, 2, port), datetime.timedelta(seconds=0.3))
        meeting.meet(place_of(1, 2, port), datetime.timedelta(seconds=10))
    del agent


def test_who_waits_says_for_whom_and_where(free_port, monkeypatch, capsys):
    monkeypatch.setattr(meeting, "FIRST_LINE_SECONDS", 0.05)
    port = free_port()
    with pytest.raises(MachineFault, match=rf"rank 0 of 3 waited .* at 127.0.0.1:{port} for ranks 1, 2"):
        meeting.meet(place_of(0, 3, port), datetime.timedelta(seconds=0.5))
    assert f"longmix: rank 0 of 3 waits for ranks 1, 2 at 127.0.0.1:{port} (" in capsys.readouterr().err


def test_all_that_come_meet(free_port):
    port, stores = free_port(), {}

    def come(rank):
        stores[rank] = meeting.meet(place_of(rank, 2, port), datetime.timedelta(seconds=30))

    ranks = [threading.Thread(target=come, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    stores[0].set("a", "b")
    assert stores[1].get("a") == b"b"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a worker does not know")
def test_a_launcher_that_has_gone_is_told():
    code = "from longmix.trainer.processes.launch import leave_with_launcher; leave_with_launcher()"
    environment = {**os.environ, "LONGMIX_LAUNCHER": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == ("longmix: error: the process that has started this one (LONGMIX_LAUNCHER=1) has gone\n")


@pytest.mark.parametrize(("size", "lazy"), [(2, None), (64, None), (65, "1")])
def test_many_ranks_connect_to_those_alone_that_they_exchange_with(monkeypatch, size, lazy):
    """A process may have 1,024 files open on most systems, and each connection is one."""
    for name in (world.RANK, world.SIZE, world.LOCAL_RANK, world.HOST_RANK, world.ADDRESS, world.PORT, world.LAZY):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(world, "_wait_as_long", lambda timeout: None)
    place = SimpleNamespace(rank=0, size=size, local_rank=0, is_worker=True, launcher=None)
    monkeypatch.setattr(world.LaunchEnvironment, "read", lambda: place)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)

    def meet(place, timeout):
        raise InterruptedError

    monkeypatch.setattr(world, "meet", meet)
    with pytest.raises(InterruptedError):
        world.join()
    assert os.environ.get(world.LAZY) == lazy
