"""A real Slurm cluster of two nodes on this one machine, for the tests of the job scripts."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
NODES = ("longmix-n1", "longmix-n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
MARK = "LONGMIX_TEST_CLUSTER"
HOSTS = Path("/etc/hosts")
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}

# Two daemons for one machine, no cgroups, no accounting; everything below one folder, every port its own.
CONFIGURATION = """\
ClusterName=longmix
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
GresTypes=gpu
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 Gres=gpu:2
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES MaxTime=30 State=UP
"""


@dataclass
class Job:
    """A submitted job, or one of an array (ARRAY_TASK); its log is `log`. It may have been requeued `restarts` times:
    once more is a mistake."""

    number: int | str
    log: Path
    environment: dict[str, str]
    restarts: int = 0

    def fields(self) -> dict[str, str]:
        """What `scontrol show job` says of it."""
        return dict(re.findall(r"(\w+)=(\S*)", self._scontrol("show", "job", str(self.number))))

    def wait(self, seconds: float = 240) -> tuple[str, int]:
        """(state, exit code) once it has ended."""
        deadline = time.monotonic() + seconds
        while (now := self.fields())["JobState"] not in ENDED:
            assert int(now["Restarts"]) == self.restarts, f"requeued:\n{self.text()}"
            assert time.monotonic() < deadline, f"{now['JobState']} after {seconds} s:\n{self.text()}"
            time.sleep(0.2)
        return now["JobState"], int(now["ExitCode"].split(":")[0])

    def wait_for(self, text: str, path: Path | None = None, seconds: float = 240) -> None:
        """Until `path` (by default the log) holds a text."""
        path = path or self.log
        deadline = time.monotonic() + seconds
        while not (path.exists() and text in path.read_text()):
            assert self.fields()["JobState"] not in ENDED, f"ended without {text!r}:\n{self.text()}"
            assert time.monotonic() < deadline, f"no {text!r} in {path} after {seconds} s:\n{self.text()}"
            time.sleep(0.1)

    def requeue(self) -> None:
        """As an administrator, or a job that matters more, would have it."""
        self._scontrol("requeue", str(self.number))

    def start_again(self, seconds: float = 240) -> float:
        """Once it waits in the queue to be restarted, start it now; seconds it would have waited."""
        self.restarts += 1
        deadline = time.monotonic() + seconds
        while (now := self.fields())["JobState"] != "PENDING" or int(now["Restarts"]) < self.restarts:
            assert now["JobState"] not in ENDED, f"ended with {now['JobState']}:\n{self.text()}"
            assert time.monotonic() < deadline, f"{now['JobState']} after {seconds} s:\n{self.text()}"
            time.sleep(0.1)
        wait = datetime.fromisoformat(now["EligibleTime"]) - datetime.now()
        # Slurm ends a job for good that starts within the second in which its last start was taken back.
        time.sleep(2)
        self._scontrol("update", f"JobId={self.number}", "StartTime=now")
        return wait.total_seconds()

    def signal(self, name: str | None = None) -> None:
        """`scancel`, with `--signal=NAME` if there is a name."""
        options = [] if name is None else [f"--signal={name}"]
        subprocess.run(["scancel", *options, str(self.number)], env=self.environment, check=True)

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def _scontrol(self, *arguments: str) -> str:
        return subprocess.run(
            ["scontrol", *arguments], env=self.environment, check=True, capture_output=True, text=True
        ).stdout


@dataclass
class Cluster:
    """The daemons, and the environment in which Slurm's commands talk to them."""

    folder: Path
    environment: dict[str, str]
    daemons: list[subprocess.Popen] = field(default_factory=list)
    _nodes: dict[str, subprocess.Popen] = field(default_factory=dict)

    def start(self, *command: str) -> subprocess.Popen:
        with open(self.folder / f"{Path(command[0]).name}.console", "ab") as console:
            daemon = subprocess.Popen(
                command, env=self.environment, stdout=console, stderr=console, stdin=subprocess.DEVNULL
            )
        self.daemons.append(daemon)
        return daemon

    def start_node(self, name: str) -> None:
        self._nodes[name] = self.start(shutil.which("slurmd", path=SEARCH), "-D", "-N", name)

    def lose_node(self, name: str) -> None:
        """Kill all that runs on a node: its daemon, what watches over its jobs, and their tasks."""
        daemon = self._nodes.pop(name)
        self.daemons.remove(daemon)
        daemon.kill()
        daemon.wait()
        on_node = f"SLURMD_NODENAME={name}\0".encode()
        for process in self.processes(on_node):
            # Its slurmstepd first, lest it tells how the task has ended.
            for one in (_parent_if("slurmstepd", process), process):
                _kill(one)

    def report_lost(self, name: str) -> None:
        """What Slurm finds out by itself once a node has been silent for SlurmdTimeout."""
        self._scontrol("update", f"NodeName={name}", "State=DOWN", "Reason=lost")

    @contextlib.contextmanager
    def silence_allowed(self, seconds: int):
        """For a while, Slurm gives up a node that has been silent for `seconds`."""
        path = self.folder / "slurm.conf"
        configuration = path.read_text()
        try:
            path.write_text(f"{configuration}SlurmdTimeout={seconds}\n")
            self._scontrol("reconfigure")
            yield
        finally:
            path.write_text(configuration)
            self._scontrol("reconfigure")

    def _scontrol(self, *arguments: str) -> None:
        subprocess.run(["scontrol", *arguments], env=self.environment, check=True, capture_output=True)

    def submit(self, folder: Path, script: str, *arguments, options: tuple = (), **environment: str) -> Job:
        """`sbatch OPTIONS slurm/SCRIPT ARGUMENTS` from `folder`; `environment` is added to the job's."""
        home = Path(environment.setdefault("LONGMIX_HOME", str(REPOSITORY)))
        environment = {**self.environment, **environment}
        command = ["sbatch", "--parsable", "--output=%j.log", *options, home / "slurm" / script, *arguments]
        done = subprocess.run(
            list(map(str, command)), cwd=folder, env=environment, check=True, capture_output=True, text=True
        )
        number = int(done.stdout)
        return Job(number, folder / f"{number}.log", self.environment)

    def stop(self) -> None:
        """End the daemons, and whatever a failed test left running: every process that carries this cluster's mark."""
        while processes := self.processes():
            for process in processes:
                _kill(process)
            time.sleep(0.05)
        for daemon in self.daemons:
            daemon.wait()

    def processes(self, also: bytes = b"") -> list[int]:
        """Those whose environment has this cluster's mark, and `also`."""
        mark = f"{MARK}={self.folder}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                environment = path.read_bytes()
                if mark in environment and also in environment:
                    found.append(int(path.parent.name))
        return found

    def reports(self) -> str:
        """The ends of the daemons' logs."""
        logs = [*self.folder.glob("*.log"), *self.folder.glob("*.console")]
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs)


def _kill(process: int | None) -> None:
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _parent_if(name: str, process: int) -> int | None:
    """The parent of a process, if it is a `name`."""
    with contextlib.suppress(OSError):
        parent = re.search(r"^PPid:\t(\d+)", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)[1]
        if Path(f"/proc/{parent}/comm").read_text().strip() == name:
            return int(parent)
    return None


@pytest.fixture(scope="session")
def slurm(tmp_path_factory, require_or_skip):
    """A running `Cluster`. Daemons that someone left over do not matter: these have ports and a socket of their own."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    if missing:
        require_or_skip("slurm", f"{', '.join(missing)} missing (Debian: apt install slurm-wlm munge)")
    if os.geteuid() != 0:
        require_or_skip("slurm", "starting its daemons needs root")
    folder = tmp_path_factory.mktemp("slurm")
    cluster = Cluster(folder, _environment(folder))
    hosts = _name_nodes()
    try:
        _start(cluster)
        yield cluster
    finally:
        cluster.stop()
        if hosts is not None:
            HOSTS.write_text(hosts)


@pytest.fixture
def stub(tmp_path, slurm):
    """stub(body, *arguments, script=, options=, **environment) -> Job that runs `body` where longmix VERB is called."""
    home = tmp_path / "home"
    shutil.copytree(REPOSITORY / "slurm", home / "slurm")
    program = home / ".venv" / "bin" / "longmix"
    program.parent.mkdir(parents=True)

    def submit(body, *arguments, script="pretrain.sh", options=(), **environment):
        written = program.with_name("longmix.new")
        written.write_text(
            "#!/usr/bin/env bash\n"
            'if [[ $2 == --node ]]; then echo "stub $*"; [[ $SLURMD_NODENAME != "${BAD:-}" ]]; exit; fi\n'
            'if [[ $1 == doctor || $2 == --check ]]; then echo "stub $*"; exit "${CHECK:-0}"; fi\n'
            'if [[ $1 == requeue ]]; then echo "stub $*"; ${REQUEUE:-false} "$@"; exit; fi\n' + body
        )
        written.chmod(0o755)
        # A job that runs already keeps the one that it has opened.
        written.replace(program)
        environment["LONGMIX_HOME"] = str(home)
        return slurm.submit(tmp_path, script, *arguments, options=options, **environment)

    return submit


# What launchers set, and torch once it has compiled something.
_SET_BY_OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def _environment(folder: Path) -> dict[str, str]:
    """This environment without what an outer job, a launcher or torch adds, and the tests' own longmix on PATH."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "SBATCH", "LONGMIX_")) and name not in _SET_BY_OTHERS
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), SEARCH])
    return {**ours, "PATH": path, "SLURM_CONF": f"{folder}/slurm.conf", MARK: str(folder), "OMP_NUM_THREADS": "1"}


def _name_nodes() -> str | None:
    """Make the nodes' names known to this machine; the former /etc/hosts, None if they were known."""
    try:
        for name in NODES:
            socket.gethostbyname(name)
        return None
    except OSError:
        before = HOSTS.read_text()
        HOSTS.write_text(f"{before.rstrip()}\n127.0.0.1 {' '.join(NODES)}\n")
        return before


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _start(cluster: Cluster) -> None:
    folder = cluster.folder
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    settings = {"host": socket.gethostname().split(".")[0], "ports": _free_ports(3), "nodes": NODES}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, **settings))
    # Slurm looks no further than whether a GPU's device file exists.
    for number in range(2):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
    (folder / "state").mkdir()
    places = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("pid-file", "log-file", "seed-file")]
    program = {name: shutil.which(name, path=SEARCH) for name in PROGRAMS}
    # By force: it does not like a socket that other users cannot reach.
    cluster.start(
        program["munged"], "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket", *places
    )
    _until(cluster, (folder / "munge.socket").exists)
    cluster.start(program["slurmctld"], "-D")
    for name in NODES:
        cluster.start_node(name)
    _until(cluster, lambda: _idle_nodes(cluster) == len(NODES))


def _idle_nodes(cluster: Cluster) -> int:
    done = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%T"], env=cluster.environment, capture_output=True, text=True
    )
    return done.stdout.split().count("idle")


def _until(cluster: Cluster, condition, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        ended = any(daemon.poll() is not None for daemon in cluster.daemons)
        assert not ended and time.monotonic() < deadline, f"Slurm does not start:\n{cluster.reports()}"
        time.sleep(0.1)
