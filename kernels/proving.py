"""Which Triton kernels have proved themselves on a card: each is tried once, and its verdict kept for later processes.

A proof compares a kernel with plain PyTorch (proof_worker.py) for one `Form` of calls: those that share their compiled
programs (proof.py in the operation's folder). It runs in a process of its own, with a time limit, for a wrong kernel
may hang, or take the process that launches it with it; programs that are compiled there are in Triton's cache then.
Starting that process takes seconds, the proof itself less than one: so several proofs share one where they are asked
for together, and nothing is tried twice. Processes that ask at the same time wait for the one that came first.

A verdict is found by all that it depends on and lies beside the compiled C++ kernels (build.py), in a folder that is
this user's alone: where it is not, every process proves for itself.
"""

import dataclasses
import functools
import hashlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType

import torch

from .build import FOLDER, kept_folder
from .common.interpreter import interpreted
from .selection import folder_of, obstacle
from .verdicts import Outcome, VerdictFile, alone, digest, kept_identities

# A rank's number on its host, where LOCAL_RANK is its GPU's.
HOST_RANK = "LONGMIX_HOST_RANK"
WORKER = (sys.executable, "-P", "-m", "longmix.kernels.proof_worker")
# Folders whose launchers an operation's own call.
LAUNCHES = {
    "feature_map_attention": ("attention",),
    "random_attention": ("attention",),
    "token_givens": ("givens_mix",),
}
LONGEST_START = 180  # seconds: torch may lie on a slow file system
LONGEST_PROOF = 300  # seconds: compiling one kernel took a minute before its blocks were made smaller
# What others do to processes: no sign of a wrong kernel.
FROM_OUTSIDE = {signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether the Triton kernels of an operation have proved themselves on a card, for calls of one form.

    `dtype` is that of the arguments, e.g. "bfloat16"; for the rest see Proof and Outcome.
    """

    operation: str
    dtype: str
    form: tuple
    card: str
    passed: bool
    error: float | None
    seconds: float | None
    reason: str | None
    decided: bool
    compile_seconds: float | None
    milliseconds: float | None
    portable_milliseconds: float | None


class Proof(typing.NamedTuple):
    """What is to be proved: the kernels of an operation for calls of a form (proof.py in its folder)."""

    operation: str
    form: tuple


def proof_module(operation: str) -> ModuleType:
    """proof.py in the folder of an operation."""
    return importlib.import_module(f"longmix.kernels.{folder_of(operation)}.proof")


def typical(operation: str, dtype: torch.dtype) -> Proof:
    """The proof for a base model's calls with arguments of a dtype."""
    return Proof(operation, proof_module(operation).TYPICAL[operation]._replace(dtype=dtype))


def spell(form: tuple) -> dict[str, str | int | bool]:
    """A form as JSON has it."""
    return {name: _spell_dtypes(x) if name in ("dtype", "dtypes") else x for name, x in form._asdict().items()}


def _spell_dtypes(dtypes: torch.dtype | tuple[torch.dtype, ...]) -> str:
    return " ".join(map(_spell_dtypes, dtypes)) if isinstance(dtypes, tuple) else str(dtypes).removeprefix("torch.")


def unspell(operation: str, spelled: dict[str, str | int | bool]) -> tuple:
    """The form that `spell` has made JSON of."""
    fields = {**spelled, "dtype": getattr(torch, spelled["dtype"])}
    if "dtypes" in fields:
        fields["dtypes"] = tuple(getattr(torch, name) for name in fields["dtypes"].split())
    return proof_module(operation).Form(**fields)


def prove(
    operation: str, device: torch.device | str, dtype: torch.dtype = torch.float32, *, anew: bool = False
) -> Verdict:
    """The verdict on an operation's Triton kernels, for the calls of a base model, from its proof or an earlier one.

    Args:
        device: a GPU.
        dtype: of the arguments.
        anew: prove again what has a verdict, and keep the new one.

    Raises:
        ValueError: there are none for the device; with the reason.
    """
    _refuse(operation, torch.device(device))
    return prove_all([typical(operation, dtype)], device, anew=anew)[0]


def prove_all(
    proofs: Sequence[Proof], device: torch.device | str, *, anew: bool = False, measured_positions: int = 0
) -> list[Verdict]:
    """`prove` for several proofs, in one process of their own.

    Args:
        measured_positions: N of the inputs on which kernels that pass are timed against plain PyTorch; 0: no times.

    Raises:
        ValueError: there are none for the device; with the reason.
    """
    device = torch.device(device)
    for proof in proofs:
        _refuse(proof.operation, device)
    if device.type == "cuda" and device.index is None:
        device = torch.device(device.type, torch.cuda.current_device())
    folder, on = kept_folder(), card(device)
    files = [VerdictFile(folder, _identity(proof, on)) for proof in proofs]
    if anew or not all(file.verdict() for file in files):
        with alone(folder / f"proof-{digest(on)}.lock"):
            missing = [number for number, file in enumerate(files) if anew or not file.verdict()]
            for number in missing:
                files[number].begin(anew)
            try:
                outcomes = _outcomes([proofs[number] for number in missing], device, measured_positions)
            except BaseException:  # of Ctrl-C, which is no kernel's fault
                for number in missing:
                    files[number].withdraw()
                raise
            for number, outcome in zip(missing, outcomes, strict=True):
                files[number].end(outcome)
    return [
        Verdict(proof.operation, spell(proof.form)["dtype"], proof.form, on, **dataclasses.asdict(file.outcome))
        for file, proof in zip(files, proofs, strict=True)
    ]


def known_proofs(device: torch.device) -> list[Proof]:
    """What has been asked for on such a card, with these versions, by whatever process."""
    found, on = [], card(device)
    for identity in kept_identities(kept_folder()):
        with suppress(KeyError, TypeError, AttributeError, ImportError):
            proof = Proof(identity["operation"], unspell(identity["operation"], identity["form"]))
            if _identity(proof, on) == identity:
                found.append(proof)
    return found


def _refuse(operation: str, device: torch.device) -> None:
    reason = obstacle(operation, "triton", device.type)
    if reason is None and device.type == "cuda" and not torch.cuda.is_available():
        reason = "torch sees no GPU here"
    if reason is not None:
        raise ValueError(f"{operation} has no Triton kernels to prove on {device}: {reason}")


def fault(device: torch.device | str) -> str | None:
    """The reason why a new process cannot compute anything on a device, None if it can."""
    _, failure = _ask([], torch.device(device), 0)
    return None if failure is None else failure.reason


@functools.cache
def is_proved(proof: Proof, device: torch.device) -> bool:
    """Whether the kernels have proved themselves on the device; of an operation that fails, one line of this host says
    why, that of the first form."""
    verdict = prove_all([proof], device)[0]
    if not verdict.passed and (about := (proof.operation, verdict.card)) not in _told and _speaks(device):
        _told.add(about)
        print(
            f"longmix: {proof.operation} runs in plain PyTorch on {verdict.card}, for its Triton kernel failed its "
            f"proof: {verdict.reason}; `longmix doctor` proves it again",
            file=sys.stderr,
            flush=True,
        )
    return verdict.passed


_told: set[tuple[str, str]] = set()


def card(device: torch.device) -> str:
    """A GPU's name and architecture."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (sm_{major}{minor})"


def _speaks(device: torch.device) -> bool:
    """True in one rank of a host, and in one for each further kind of card there."""
    if os.environ.get(HOST_RANK, os.environ.get("LOCAL_RANK", "0")) == "0":
        return True
    before = range(device.index or 0)
    return len(before) > 0 and card(device) not in {card(torch.device(device.type, number)) for number in before}


# Verdicts: a file for each, found by all that it depends on.


def _identity(proof: Proof, on: str) -> dict[str, object]:
    return {
        "operation": proof.operation,
        "form": spell(proof.form),
        "card": on,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, HIP {torch.version.hip}",
        "triton": _triton_version(),
        "interpreted": interpreted(),
        "source": source_digest(folder_of(proof.operation)),
    }


@functools.cache
def _triton_version() -> str:
    """Of the module: several packages bring it. One that cannot be imported fails the proof, with its reason."""
    try:
        return importlib.import_module("triton").__version__
    except Exception as error:
        return f"broken ({type(error).__name__})"


@functools.cache
def source_digest(folder: str) -> str:
    """SHA-256 of the Python files that an operation's kernels and their proof consist of."""
    parts = (folder, *LAUNCHES.get(folder, ()), "bands", "common")
    paths = [path for part in parts for path in sorted((FOLDER / part).glob("*.py"))]
    paths += [FOLDER / name for name in ("operators.py", "proof_worker.py")]
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(FOLDER)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


# The process that proves. What it did not come to has failed, unless others have ended it.


def _outcomes(proofs: Sequence[Proof], device: torch.device, measured_positions: int) -> list[Outcome]:
    """An outcome for each; a process that ends early is followed by another one for the rest."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(proofs):
        found, failure = _ask(proofs[len(outcomes) :], device, measured_positions)
        outcomes += found
        if failure is not None:
            outcomes.append(failure)
            if not failure.decided:
                # It would be the same with the others.
                outcomes += [failure] * (len(proofs) - len(outcomes))
    return outcomes


def _ask(
    proofs: Sequence[Proof], device: torch.device, measured_positions: int
) -> tuple[list[Outcome], Outcome | None]:
    """Outcomes of the first proofs, at least one, or of the next one that of a process which did not end well."""
    spelled = [(proof.operation, spell(proof.form)) for proof in proofs]
    asked = {"device": str(device), "proofs": spelled, "measured_positions": measured_positions, "parent": os.getpid()}
    # Wherever this process has longmix from: a script may have put its folder on the path.
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    try:
        # A terminal's Ctrl-C reaches this process alone. The other one ends with it.
        process = subprocess.Popen(
            WORKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    except OSError as error:
        return [], Outcome(False, reason=f"no process can be started for it: {error}", decided=False)
    found: list[Outcome] = []
    try:
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(asked).encode() + b"\n")
        lines = _Lines(process.stdout.fileno())
        first = lines.next(LONGEST_START)
        if first is None:
            _, end = _end(process, LONGEST_START)
            return [], Outcome(False, reason=f"before it could use the device, its process {end}", decided=False)
        if (reason := json.loads(first)["reason"]) is not None:
            return [], Outcome(False, reason=f"its process cannot use the device: {reason}", decided=False)
        while len(found) < len(proofs) and (line := lines.next(LONGEST_PROOF)) is not None:
            found.append(Outcome(**json.loads(line)))
        if len(found) == len(proofs):
            return found, None
        code, end = _end(process, LONGEST_PROOF)
        if found and code == 0:
            return found, None  # it has left a device that a kernel has spoilt
        return found, Outcome(False, reason=f"its process {end}", decided=code is None or -code not in FROM_OUTSIDE)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _end(process: subprocess.Popen, limit: int) -> tuple[int | None, str]:
    """The exit code of a process that has closed its pipe, None for one that goes on, and what became of it."""
    try:
        code = process.wait(1)
    except subprocess.TimeoutExpired:
        return None, f"has not answered within {limit} seconds and was stopped"
    return code, f"ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"


class _Lines:
    """The lines that another process writes to a pipe."""

    def __init__(self, pipe: int):
        self._pipe, self._poll, self._rest = pipe, select.poll(), b""
        self._poll.register(pipe, select.POLLIN)

    def next(self, seconds: float) -> bytes | None:
        """The next one; None where none comes in time, or any more."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            is_there = self._poll.poll(1e3 * max(0.0, deadline - time.monotonic()))
            more = os.read(self._pipe, 1 << 16) if is_there else b""
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line
