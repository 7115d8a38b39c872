"""Compiles the C++ kernels at their first use and keeps them for later processes.

A library holds one function for one floating type, so that nobody waits for what is not asked for. It is found by
everything that it depends on: its sources, the compiler, the flags and the features of the CPU, so that different
machines can share a home. It is compiled to a temporary name under a lock and renamed: a build that is interrupted
leaves nothing that a later one would take for a library, or wait for.

What is loaded runs: a folder that others can write in is not used, nor a library that others can have changed.
"""

import atexit
import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from .common.safe_files import NotPrivate, open_lock, private_folder, read_private

FOLDER = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
LONGEST_SECONDS = 120  # for one call of the compiler, which takes about one
ELEMENTS_PER_THREAD = 50_000  # starting a thread takes as long as the work on some ten thousand elements
CPP_TYPES = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "BFloat16"}
# What a C++ function takes: pointers to numbers in its library's floating type, to those in which it computes, to
# double or to int64_t; one number.
REALS, WIDE_REALS = "reals", "wide reals"
DOUBLES, INTEGERS, SIZE = ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_int64), ctypes.c_int64
POINTERS = {
    torch.float32: ctypes.POINTER(ctypes.c_float),
    torch.float64: DOUBLES,
    torch.bfloat16: ctypes.POINTER(ctypes.c_uint16),
    torch.int64: INTEGERS,
}
# A variable of the environment, by which the processes that this one starts know that its user has been told.
TOLD = "LONGMIX_KERNEL_CACHE_TOLD"
FLAGS = ("-O3", "-std=gnu++17", "-shared", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math")


class BuildError(RuntimeError):
    """A library cannot be built; the message says why, in one line."""


# Functions, as operations declare them in their cpu_kernels.py: ctypes alone would take any arguments and crash on
# wrong ones.


class Function:
    """The function longmix_PART of a C++ file of this folder, which returns nothing.

    Every call is checked against the declared types, so that arguments in a wrong order are an error of Python and not
    of memory.

    Args:
        source: e.g. "link_mix/cpu.cpp".
        part: e.g. "forward".
        types: of the arguments: REALS, WIDE_REALS, DOUBLES, INTEGERS or SIZE each, the first one REALS. The number of
            threads, which comes last, is not among them.
        macros: that the file sees besides those of `library`.
    """

    def __init__(self, source: str, part: str, types: tuple[object, ...], *macros: str):
        self.source, self.part, self.types, self.macros = source, part, types, macros

    def obstacle(self) -> str | None:
        """The reason why it cannot be compiled in fp32; None once it has been."""
        try:
            self.load(torch.float32)
        except BuildError as error:
            return str(error)
        return None

    def load(self, dtype: torch.dtype) -> Callable[..., None]:
        """The function of the library for reals of `dtype`, its types declared to ctypes. Raises BuildError."""
        function = getattr(library(self.source, self.part, dtype, *self.macros), f"longmix_{self.part}")
        if function.argtypes is None:
            function.restype = None
            pointers = {REALS: POINTERS[dtype], WIDE_REALS: POINTERS[torch.promote_types(dtype, torch.float32)]}
            function.argtypes = [pointers.get(kind, kind) for kind in (*self.types, SIZE)]
        return function

    def __call__(self, *arguments: torch.Tensor | int | None) -> None:
        """Call it. Tensors are contiguous and on the CPU, None is a null pointer. The number of threads is torch's, or
        less for small tensors.

        Raises:
            ctypes.ArgumentError: an argument is not of the declared type.
            BuildError: the library cannot be built. What runs was chosen by the first library of an operation; for a
                later one, of its derivative or another floating type, nothing can take its place any more.
        """
        assert len(arguments) == len(self.types)
        try:
            function = self.load(arguments[0].dtype)
        except BuildError as error:
            raise BuildError(
                f"{error}; LONGMIX_KERNELS=portable runs plain PyTorch in place of the C++ kernels"
            ) from error
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        elements = sum(tensor.numel() for tensor in tensors)
        threads = max(1, min(torch.get_num_threads(), elements // ELEMENTS_PER_THREAD))
        function(*map(_passed, arguments), threads)


def _passed(argument: torch.Tensor | int | None) -> object:
    """An argument as ctypes takes it."""
    if not isinstance(argument, torch.Tensor):
        return argument
    assert argument.is_contiguous() and argument.device.type == "cpu"
    return ctypes.cast(argument.data_ptr(), POINTERS[argument.dtype])


# Libraries: compiled by whoever asks first, while others wait, and kept for all later processes.


@functools.cache
def library(source: str, part: str, dtype: torch.dtype, *macros: str) -> ctypes.CDLL:
    """The library of one part of a C++ file of this folder, e.g. "forward" of "link_mix/cpu.cpp", compiled if it has
    not been.

    The file sees the macros FORWARD, or what else the part is called, REAL, the type in C++ of `dtype`, and the given
    ones. It exports the function longmix_forward.

    Raises:
        BuildError: no compiler, or it fails, or its result cannot be kept or loaded.
    """
    compiler = find_compiler()
    path = FOLDER / source
    try:
        folder = kept_folder()
        defined = (f"-DREAL={CPP_TYPES[dtype]}", *(f"-D{macro}" for macro in (part.upper(), *macros)))
        name = "-".join((path.parent.name, *macros, part, CPP_TYPES[dtype], _key(path, compiler)))
        target = folder / f"{name}.so"
        if not _is_whole(target):
            with open_lock(folder / f"{target.stem}.lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # released with the process, however it ends
                if not _is_whole(target):
                    _compile((*compiler, *_flags(), *defined), path, target)
        return ctypes.CDLL(str(target))
    except OSError as error:
        # What every C++ library needs, and a compiler of C leaves out.
        hint = f" ({compiler[0]} is no compiler of C++?)" if "undefined symbol: _Z" in str(error) else ""
        raise BuildError(f"the library of {source} cannot be kept or loaded: {error}{hint}") from error


def find_compiler() -> tuple[str, ...]:
    """The command of the C++ compiler, its path first: the environment variable CXX, such as "g++" or "ccache g++", or
    the first of COMPILERS on PATH.

    Raises:
        BuildError: there is none.
    """
    try:
        given = tuple(shlex.split(os.environ.get("CXX", "")))
    except ValueError as error:
        raise BuildError(f"CXX is {os.environ['CXX']!r}, no command: {error}") from error
    candidates = [given] if given else [(name,) for name in COMPILERS]
    for name, *options in candidates:
        found = shutil.which(name)
        if found:
            return found, *options
    raise BuildError(f"no C++ compiler ({', '.join(name for name, *_ in candidates)}) on PATH")


# Builds: a library appears under its name only when it is whole.


def _is_whole(library: Path) -> bool:
    """True if a library is there as it was compiled: the system would end a process that runs into a missing part, and
    run what somebody else has put there."""
    try:
        return read_private(_digest_file(library)) == _digest(read_private(library))
    except OSError:
        return False


def _digest(library: bytes) -> bytes:
    return hashlib.sha256(library).hexdigest().encode()


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _compile(command: tuple[str, ...], source: Path, target: Path) -> None:
    for left in target.parent.glob(f".{target.stem}.*"):
        left.unlink(missing_ok=True)
    temporary = target.with_name(f".{target.stem}.{os.getpid()}")
    command = (*command, f"-I{FOLDER}", str(source), "-o", str(temporary))
    process = _run(command)
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if "error:" in line] or process.stderr.splitlines()
        raise BuildError(f"{command[0]} cannot compile {source.name}: {lines[0] if lines else process.returncode}")
    temporary.chmod(0o700)  # whatever the umask lets others do
    digest = temporary.with_name(f"{temporary.name}.sha256")
    with open(os.open(digest, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(_digest(temporary.read_bytes()))
    # Before the library, which counts only with it.
    os.replace(digest, _digest_file(target))
    os.replace(temporary, target)


def _run(command: tuple[str, ...]) -> subprocess.CompletedProcess:
    """The compiler, which may hang: on a file system that is gone, or a server of licences."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} has not ended after {LONGEST_SECONDS} seconds and was stopped") from error


# Keys and folders: a library is found by everything that it depends on, in a folder that can be written.


def _flags() -> tuple[str, ...]:
    tuning = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
    return (*FLAGS, tuning)


def _key(source: Path, compiler: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in (source, *sorted(FOLDER.rglob("*.h"))):
        digest.update(path.read_bytes())
    version = _run((*compiler, "--version")).stdout
    digest.update("\0".join((*compiler, version, *_flags(), platform.machine(), _cpu_features())).encode())
    return digest.hexdigest()[:16]


def _cpu_features() -> str:
    """The CPU's model and features, on which -march=native depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


def kept_folder() -> Path:
    """`cache_folder`, or one of this process alone where that is not the user's alone, or cannot be written."""
    try:
        folder = cache_folder()
        if os.access(folder, os.W_OK):
            return folder
    except NotPrivate as error:
        _tell(error.strerror)
    except (OSError, RuntimeError):  # the latter for a user without a home
        pass
    return _temporary_folder()


def cache_folder() -> Path:
    """The folder of what this user's processes keep for later ones, and believe: libraries, and verdicts on kernels.

    Raises:
        NotPrivate: others can change what lies there.
        OSError: it cannot be made.
        RuntimeError: the user has no home.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return private_folder(home / "longmix" / "kernels")


@functools.cache
def _tell(reason: str) -> None:
    """Say why the cache is not used: once for a process and those that it starts, and for the ranks of a run."""
    if TOLD not in os.environ and os.environ.get("RANK", "0") == "0":
        print(
            f"longmix: every process compiles and proves its kernels anew, for {reason}, or let XDG_CACHE_HOME name a "
            "folder that is yours alone",
            file=sys.stderr,
            flush=True,
        )
    os.environ[TOLD] = "1"


@functools.cache
def _temporary_folder() -> Path:
    folder, owner = tempfile.mkdtemp(prefix="longmix-kernels-"), os.getpid()

    @atexit.register
    def remove() -> None:
        if os.getpid() == owner:  # not where a forked child ends
            shutil.rmtree(folder, ignore_errors=True)

    return Path(folder)
