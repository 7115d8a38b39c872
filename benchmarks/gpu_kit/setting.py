"""What the kit measures with: the device, the sizes, and what is installed."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from record import commit

from longmix.data_prep.files import write_json

BENCHMARKS = Path(__file__).resolve().parents[1]
ROOT = BENCHMARKS.parent
CONFIGS = ROOT / "configs"
# What the mixers stand beside: its softmax attention is PyTorch's, its rotary positions have a kernel.
BASELINE = "transformer"
# Layers of the base models are counted by those of the transformer, for models of equal parameters.
LAYERS_OF_THE_TRANSFORMER = 12
# In the work folder and on the page.
TRACE = "trace.json.gz"


# [name, capability, number] of the GPUs as JSON; null: there is none.
_CARDS = """import json, torch
found = torch.cuda.is_available() and torch.cuda.get_device_properties(0)
print(json.dumps([found.name, found.major, found.minor, torch.cuda.device_count()] if found else None))"""


class UserMistakeError(Exception):
    """A mistake of whoever gave the command, in one line."""


@dataclass(frozen=True)
class Setting:
    """Handed to every process.

    Attributes:
        work: folder of everything that is written.
        device: cuda | cpu.
        card: name of the GPU, or what the CPU is called.
        cards: number of GPUs.
        capability: of the GPU, (9, 0); (0, 0) for CPUs.
        quick: small sizes, for a trial.
        pack: folder that benchmarks/gpu_pack.py has made; None: there is none.
        commit: of the code that measures.
        exclusive: the GPU is for one process at a time.
    """

    work: Path
    device: str
    card: str
    cards: int
    capability: tuple[int, int]
    quick: bool
    pack: Path | None
    commit: str = ""
    exclusive: bool = False

    @classmethod
    def find(cls, work: Path, quick: bool, pack: Path | None) -> "Setting":
        """The setting of this machine.

        Raises:
            UserMistakeError: no GPU, and not quick.
        """
        # Asked in another process: a GPU may be for one process at a time, and this one waits for those that measure.
        told = subprocess.run([sys.executable, "-c", _CARDS], capture_output=True, text=True).stdout
        found = json.loads(told.strip().rpartition("\n")[2] or "null")
        if found is not None:
            name, major, minor, count = found
            made = commit_with(pack)
            return cls(work, "cuda", name, count, (major, minor), quick, pack, made, _is_exclusive())
        if not quick:
            raise UserMistakeError(
                "torch sees no GPU here (longmix doctor says why); to try the kit on a CPU, add --quick"
            )
        return cls(work, "cpu", "CPU", 0, (0, 0), quick, pack, commit_with(pack))

    # The sizes. The first of several is what tells most, should the time not suffice for all.

    @property
    def lengths(self) -> tuple[int, ...]:
        """Positions N."""
        return (64, 32) if self.quick else (2048, 512, 8192)

    @property
    def rows(self) -> int:
        """Positions N of the rows that whole models are trained on."""
        return 64 if self.quick else 512

    @property
    def tokens(self) -> int:
        """Of a batch: B = tokens / N."""
        return 128 if self.quick else 16384

    @property
    def size(self) -> str:
        """Which files of configs/model are built."""
        return "tiny" if self.quick else "base"

    @property
    def half(self) -> str:
        """The half precision to train in: bf16 from A100 on, fp16 on older GPUs."""
        return "float16" if self.device == "cuda" and self.capability < (8, 0) else "bfloat16"

    @property
    def kernels(self) -> str:
        """The value of LONGMIX_KERNELS that means hand-written kernels: Triton's on GPUs, C++ on a CPU."""
        return "triton" if self.device == "cuda" else "cpu"

    @property
    def together(self) -> int:
        """Processes at a time, of those that are not timed."""
        return 1 if self.exclusive else max(1, min(len(os.sched_getaffinity(0)), 12))

    @property
    def engines(self) -> tuple[str, ...]:
        """Values of `deepspeed` in a run file; without DeepSpeed there is Accelerate alone."""
        return ("zero1", "null", "zero2", "zero3", "zero0") if installed("deepspeed") else ("null",)

    def share_of_blocks(self, blocks: int) -> float:
        """What the time of one block counts for, where a whole model has so many: models of equal parameters are
        compared."""
        return 1.0 if self.quick else blocks / LAYERS_OF_THE_TRANSFORMER

    def refuse_another(self) -> None:
        """Note this setting in the work folder.

        Raises:
            UserMistakeError: the folder holds results of another card, or of other sizes.
        """
        path = self.work / "setting.json"
        mine = {name: value for name, value in asdict(self).items() if name in ("device", "card", "cards", "quick")}
        if not path.is_file():
            write_json(path, mine)
            return
        there = json.loads(path.read_text(encoding="utf-8"))
        if there != mine:
            changed = ", ".join(
                f"{name} {there.get(name)!r}, now {mine[name]!r}" for name in mine if there.get(name) != mine[name]
            )
            raise UserMistakeError(
                f"--work {self.work} holds results of another setting ({changed}): choose another folder"
            )


def _is_exclusive() -> bool:
    """Whether a GPU of the machine takes one process at a time, as `nvidia-smi --compute-mode` sets it."""
    command = ["nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader"]
    try:
        return "Exclusive" in subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return False


def commit_with(pack: Path | None) -> str:
    """The commit that runs; of code that was carried here without its history, the one that its pack was made from."""
    found = commit()
    if found or pack is None:
        return found
    with contextlib.suppress(OSError, ValueError, KeyError):
        packed = json.loads((pack / "MANIFEST.json").read_text(encoding="utf-8"))["commit"]
        return f"{packed} (the pack's)" if packed else ""
    return ""


def installed(name: str) -> bool:
    """Whether a library is there; it is not imported."""
    return importlib.util.find_spec(name) is not None


def environment(setting: Setting) -> dict[str, str]:
    """Variables of all processes of the kit, where they are not set yet."""
    found = {
        # Whether there is a GPU is asked without touching it: what is forked later can use it.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TRITON_CACHE_DIR": str(setting.work.resolve() / "triton-cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(setting.work.resolve() / "inductor-cache"),
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
        "HF_HUB_OFFLINE": "1",
        "GOMP_SPINCOUNT": "1000",
        # A measurement ends without tidying up, on purpose.
        "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",
    }
    if setting.device == "cpu":
        found["TRITON_INTERPRET"] = "1"
    return found


def clocks() -> dict[str, str]:
    """What the GPU that this process computes on says of its clocks, temperature and power now; empty where nobody can
    tell."""
    names = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
    try:
        return dict(zip(names, asked_of_the_card(*names), strict=False))
    except (OSError, subprocess.SubprocessError):
        return {}


def asked_of_the_card(*names: str) -> list[str]:
    """What nvidia-smi says of the first GPU of this process; it numbers all of the machine, so that one is asked for by
    its own identity.

    Raises:
        OSError, subprocess.SubprocessError: it is not here, or says nothing; this process has not touched a GPU.
    """
    if not torch.cuda.is_initialized():
        raise FileNotFoundError("no GPU has been used")
    card = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader", f"--id={card}"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    return [part.strip() for part in told.strip().split(",")]
