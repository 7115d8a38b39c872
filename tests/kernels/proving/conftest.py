"""A CPU plays the GPU whose kernels are proved, and a small script the process that proves."""

import importlib.machinery
import json
import sys
import types

import pytest
import torch

from longmix.kernels import build, ops, proving, selection

# What a worker does, for each operation as `plan` says: a reason is a failure's.
WORKER = """
import json, os, signal, sys, time
asked = json.loads(sys.stdin.readline())
plan = json.load(open("PLAN"))
with open("STARTED", "a") as file:
    file.write(" ".join(operation for operation, _ in asked["proofs"]) + "\\n")
def answer(content):
    os.write(1, json.dumps(content).encode() + b"\\n")
if plan.get("start") == "never":
    sys.exit(3)
answer({"reason": plan.get("start")})
for operation, _ in asked["proofs"]:
    time.sleep(plan.get("seconds", 0))
    what = plan.get(operation, "passes")
    if what == "hangs":
        time.sleep(5)
    elif what.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, what))
        time.sleep(100)
    elif what == "passes":
        answer({"passed": True, "error": 1e-7, "seconds": 0.5})
    else:
        answer({"passed": False, "error": 0.5, "seconds": 0.5, "reason": what})
        if what == "spoilt":
            sys.exit(0)
"""


def _forget():
    """As a new process begins."""
    selection._obstacle.cache_clear()
    selection._gpu_is_here.cache_clear()
    proving.is_proved.cache_clear()
    proving._told.clear()
    build._temporary_folder.cache_clear()
    build._tell.cache_clear()


@pytest.fixture(autouse=True)
def nothing_is_known(triton, monkeypatch, tmp_path):
    """Every test begins with an empty cache, and no choice made."""
    for name in ("LONGMIX_KERNELS", "LOCAL_RANK", "RANK", proving.HOST_RANK):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(build.TOLD, "1")
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # CPUs have Triton's kernels then
    here = selection._gpu_is_here
    _forget()
    yield
    monkeypatch.setattr(selection, "_gpu_is_here", here)
    _forget()


@pytest.fixture
def forget():
    """forget(): as a new process begins."""
    return _forget


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """CPUs are GPUs. pretend(operation="what its proof does", ...) plans; pretend.started(): what each process got."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "worker.py").write_text(
        WORKER.replace("PLAN", str(tmp_path / "plan")).replace("STARTED", str(tmp_path / "started"))
    )
    (tmp_path / "started").touch()
    (tmp_path / "plan").write_text("{}")

    def always():
        return True

    always.cache_clear = lambda: None
    monkeypatch.setattr(selection, "GPU", "cpu")
    monkeypatch.setattr(selection, "_gpu_is_here", always)
    monkeypatch.setattr(proving, "card", lambda device: "Pretended GPU (sm_0)")
    monkeypatch.setattr(proving, "WORKER", (sys.executable, "-S", "-E", str(tmp_path / "worker.py")))

    def plan(**what):
        (tmp_path / "plan").write_text(json.dumps(what))

    plan.started = lambda: (tmp_path / "started").read_text().split("\n")[:-1]
    return plan


@pytest.fixture
def plant(monkeypatch):
    """plant(folder, name=function, ...): let other functions be a folder's Triton kernels."""

    def replace(folder, **kernels):
        module = types.ModuleType(f"longmix.kernels.{folder}.gpu_kernels")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        vars(module).update(kernels)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return replace


@pytest.fixture
def sevens(plant):
    """The Triton kernels of link_mix give sevens."""
    plant("link_mix", link_mix=lambda value, *_: torch.full_like(value, 7))


@pytest.fixture
def mix():
    """mix(): the sum of the result of link_mix with weights of zero: 42 by sevens, else 6."""

    def call(links=2, dtype=torch.float32):
        value = torch.ones(1, 3, 2, dtype=dtype)
        return ops.link_mix(value, torch.zeros(1, 3, 1, links), torch.zeros(1, links, dtype=torch.int64)).sum().item()

    return call


@pytest.fixture
def files(tmp_path):
    """files(): those of verdicts."""
    return lambda: sorted((tmp_path / "cache" / "longmix" / "kernels").glob("*.json"))
