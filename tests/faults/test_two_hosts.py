"""Two network namespaces as two hosts, and the link between them cut in the middle of training."""

import json
import os
import re
import subprocess
import sys

import pytest

HANG_SECONDS = 9
LAST_STEP = 400
HOSTS = "ab"
PORT = 29500


class Hosts:
    """Hosts a and b at a switch, each with its own name and network; the disk is one.

    Raises:
        PermissionError: namespaces and virtual networks are not allowed here.
    """

    def __init__(self):
        self._name = f"longmix-{os.getpid()}"
        self._switch = f"{self._name}-switch"
        self.namespaces = {host: f"{self._name}-{host}" for host in HOSTS}

    def __enter__(self):
        try:
            self._build()
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            self.__exit__()
            raise PermissionError(getattr(error, "stderr", "") or str(error)) from None
        return self

    def __exit__(self, *error):
        for namespace in (*self.namespaces.values(), self._switch):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)

    def _build(self):
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for number, (host, namespace) in enumerate(self.namespaces.items(), start=1):
            _ip("netns", "add", namespace)
            peer = ["peer", "name", f"port-{host}", "netns", self._switch]
            _ip("link", "add", "wire", "netns", namespace, "type", "veth", *peer)
            _ip("-n", namespace, "address", "add", f"10.199.0.{number}/24", "dev", "wire")
            for device in ("lo", "wire"):
                _ip("-n", namespace, "link", "set", device, "up")
            self.join(host)

    def join(self, host):
        _ip("-n", self._switch, "link", "set", f"port-{host}", "master", "bridge", "up")

    def cut(self, host):
        """Nothing passes any more, and neither side is told: the wire stays in its port."""
        _ip("-n", self._switch, "link", "set", f"port-{host}", "nomaster")


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts(require_or_skip):
    try:
        with Hosts() as found:
            yield found
    except PermissionError as error:
        require_or_skip("netns", f"network namespaces are refused: {error}")


@pytest.fixture
def train_on(hosts, start):
    """train_on(run file) -> the Command of each host's rank."""

    def begin(run_file):
        commands = []
        for rank, (host, namespace) in enumerate(hosts.namespaces.items()):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(HOSTS)),
                "LOCAL_RANK": "0",
                "MASTER_ADDR": "10.199.0.1",
                "MASTER_PORT": str(PORT),
                "GLOO_SOCKET_IFNAME": "wire",
            }
            script = f'hostname host-{host} && exec ip netns exec {namespace} "$@"'
            there = ["unshare", "--uts", "sh", "-c", script, "sh"]
            become = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
            longmix = [sys.executable, "-m", "longmix.trainer"]
            commands.append(start("-c", become, *there, *longmix, "train", run_file, **environment))
        return commands

    return begin


@pytest.mark.slow
@pytest.mark.full
def test_a_cut_link_ends_the_run_with_the_peers_named_and_it_resumes(
    hosts, train_on, run_values, write_run_file, read_metrics, tmp_path
):
    folder = tmp_path / "run"
    changes = {
        "deepspeed": "zero1",
        "optim.max_steps": LAST_STEP,
        "eval.every_steps": LAST_STEP,
        "checkpoint.every_steps": LAST_STEP,
        "run.hang_minutes": HANG_SECONDS / 60,
    }
    commands = train_on(write_run_file(tmp_path / "run.yaml", run_values(folder, **changes)))
    commands[0].wait_until(lambda: recorded(folder) > 2)
    (folder / "SAVE").touch()
    commands[0].wait_until(lambda: not (folder / "SAVE").exists())
    saved = recorded(folder)
    commands[0].wait_until(lambda: recorded(folder) > saved + 5)
    hosts.cut("b")
    codes, outputs = zip(*(command.wait() for command in commands), strict=True)
    assert codes == (1, 1), outputs
    (reason,) = [line for output in outputs for line in output.splitlines() if "run.hang_minutes" in line]
    assert reason.startswith(
        "longmix: rank 0 on host-a, rank 1 on host-b wait for one another: the network between them may be cut; "
        "no progress for 0.15 minutes"
    )
    for rank, output in enumerate(outputs):
        stacks = (folder / "stacks" / f"rank-{rank:05d}.txt").read_text()
        assert f"stacks of rank {rank} on host-{HOSTS[rank]}" in stacks and stacks in output
        assert re.search(rf"^longmix:   rank {rank} on .*: step \d+, training; in .*", "".join(outputs), re.MULTILINE)

    reached = recorded(folder)
    assert saved + 5 < reached < LAST_STEP
    hosts.join("b")
    changes["run.stop_at_step"] = reached + 5
    commands = train_on(write_run_file(tmp_path / "run.yaml", run_values(folder, **changes)))
    codes, outputs = zip(*(command.wait() for command in commands), strict=True)
    assert codes == (75, 75), outputs
    assert re.search(r"^going on from step \d+$", outputs[0], re.MULTILINE) and "passed over" not in outputs[0]
    assert [record["step"] for record in read_metrics(folder, "train")] == list(range(1, reached + 6))


def recorded(folder):
    """The last step that is recorded."""
    path = folder / "metrics.jsonl"
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []
    return max(steps, default=0)
