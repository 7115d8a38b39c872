"""The compiled kernels of a pack: Triton's cache, filled without a GPU, in a form that can be carried elsewhere.

Triton finds a compiled kernel by a hash of its own files, ptxas' version, the kernel's source with the number of its
first line, the types and constants of the launch, its options, and the environment variables that change what is
compiled. So the Python that compiles has the other machine's Triton, in a build for the same version of Python, and the
kernels are those of the repository that is carried.
"""

import json
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from longmix.data_prep.errors import UserError

from .install import GROUP, KEY, KEY_CODE
from .wheels import ROOT, rooms

CAPABILITIES = (80, 90)  # A100, H100
# Nobody trains in float64.
_COMPILE = """
import pathlib
from gpu_kit import compiling as proofs
from gpu_model import compiling, launches
capabilities, cache = {}, pathlib.Path({!r})
compiling.compiled_kernels(capabilities, [name for name in launches.CASES if "float64" not in name], cache)
proofs.compile_all(capabilities, cache)
"""
_VERSIONS = "import json, sys, triton; print(json.dumps(['{}.{}'.format(*sys.version_info), triton.__version__]))"
# What is read when a kernel is loaded; the steps on the way to it are ten times as large.
_KEPT = (".json", ".cubin")
_LONGEST_REASON = 500


def compile_for(python: str, wanted: str, have: Mapping[str, str], archive: Path) -> None:
    """Compile longmix's Triton kernels for CAPABILITIES into the archive that install.py unpacks.

    Args:
        python: the interpreter to compile with; it has torch and Triton, and need have nothing else.
        wanted: version of the other machine's Python.
        have: what the other machine has: version by canonical name.

    Raises:
        UserError: `python` is not the other machine's, or something does not compile.
    """
    with tempfile.TemporaryDirectory() as temporary:
        package, folder = Path(temporary) / "longmix", Path(temporary) / "cache"
        package.mkdir()
        for room, place in rooms().items():
            (package / room).symlink_to(place, target_is_directory=True)
        here = [wanted, have.get("triton")]
        found = json.loads(_run(python, _VERSIONS, temporary))
        if found != here:
            raise UserError(
                f"--compile-with {python} is Python {found[0]} with Triton {found[1]}, and the other machine has "
                f"Python {here[0]} with Triton {here[1]}, which would not take these kernels: name another"
            )
        _run(python, _COMPILE.format(CAPABILITIES, str(folder)), temporary)
        (folder / KEY).write_text(_run(python, KEY_CODE, temporary), encoding="utf-8")
        pack_kernels(folder, archive)


def pack_kernels(folder: Path, archive: Path) -> None:
    """Put a cache of Triton's into an archive, with paths relative to where they stand; of each kernel only what
    loading it takes.
    """
    for group in folder.rglob(GROUP):
        values = json.loads(group.read_text(encoding="utf-8"))
        kept = {name: Path(path).name for name, path in values["child_paths"].items() if name.endswith(_KEPT)}
        group.write_text(json.dumps({"child_paths": kept}), encoding="utf-8")
    # A kernel is compiled for several types and cards: a tenth of the bytes.
    with tarfile.open(archive, "w:xz") as stream:
        for path in sorted(path for path in folder.rglob("*") if path.name.endswith(_KEPT) or path.name == KEY):
            stream.add(path, path.relative_to(folder))


def _run(python: str, code: str, packages: str) -> str:
    """What a program prints, run with longmix on its path, from the folder of the benchmarks."""
    leave = ("TRITON_INTERPRET", "PYTHONHOME")
    environment = {name: value for name, value in os.environ.items() if name not in leave}
    try:
        process = subprocess.run(
            [python, "-c", code],
            cwd=ROOT / "benchmarks",
            env={**environment, "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    except OSError as error:
        raise UserError(f"--compile-with {python} cannot be run: {error.strerror}") from None
    if process.returncode != 0:
        raise UserError(f"--compile-with {python}: {reason(process.stderr)}")
    return process.stdout


def reason(errors: str) -> str:
    """Of a Python program's last error its name and the beginning of its text, which may have many lines, in one."""
    raised = [match.start() for match in re.finditer(r"^[\w.]*(?:Error|Exception|Exit)\b", errors, re.MULTILINE)]
    return " ".join(errors[raised[-1] if raised else 0 :].split())[:_LONGEST_REASON] or "it does not say why"
