"""The wheels that a machine without network lacks, for its Python and beside the packages that it has.

pip resolves as it does everywhere. What the machine has stands in for itself: an empty wheel of the same name and
version, which pip finds first and which is left out of the pack, so that neither torch nor a second version of anything
is fetched.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longmix.data_prep.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
# Linux on x86-64 with glibc 2.28 or later: pip takes each name literally.
PLATFORMS = (
    "manylinux1_x86_64",
    "manylinux2010_x86_64",
    "manylinux2014_x86_64",
    *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 29)),
)
# Published as source alone; without its C++ and CUDA operations, which it compiles where they are used, it is pure.
FROM_SOURCE = "deepspeed"
_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+_-]+)")


def canonical(name: str) -> str:
    """A package's name as package indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(lines: Sequence[str], where: str) -> dict[str, str]:
    """Version by canonical name, from lines `NAME==VERSION`, as `python -m pip list --format freeze` prints them;
    comments and empty lines do not count.

    Raises UserError: a line of another form.
    """
    versions = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        match = _PINNED.fullmatch(text)
        if match:
            versions[canonical(match[1])] = match[2]
        elif text:
            raise UserError(f"{where}, line {number}: {text!r} is not of the form NAME==VERSION, as pip list prints it")
    return versions


def gather(wheels: Path, python: str, have: Mapping[str, str], work: Path) -> None:
    """Put longmix's own wheel and those of all that it needs, but for what the machine has, into the folder `wheels`.

    Args:
        python: its version, such as 3.12.
        have: version by canonical name.
        work: an empty folder for what is made on the way.

    Raises:
        UserError: pip cannot build, find or fetch something; its last lines say what.
    """
    built, present = work / "built", work / "present"
    for folder in (wheels, built, present):
        folder.mkdir()
    # The versions that this repository is tested with, where the machine leaves a choice.
    versions = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(), "constraints.txt")
    wanted = {name: version for name, version in versions.items() if name not in have}
    for name, version in have.items():
        wanted[name] = stand_in(present, name, version)
    constraints = work / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in wanted.items()), encoding="utf-8")
    _pip("wheel", "--no-deps", "--wheel-dir", built, copied_source(work / "source"))
    if FROM_SOURCE not in have:
        version = versions[FROM_SOURCE]
        _pip("wheel", "--no-deps", "--wheel-dir", built, f"{FROM_SOURCE}=={version}", DS_BUILD_OPS="0")
    _pip(
        *("download", "--dest", wheels, "--only-binary", ":all:", "--implementation", "cp"),
        *("--python-version", python, *(word for name in PLATFORMS for word in ("--platform", name))),
        *("--find-links", built, "--find-links", present, "--constraint", constraints, "longmix"),
    )
    for path in present.iterdir():
        (wheels / path.name).unlink(missing_ok=True)


def copied_source(folder: Path) -> Path:
    """What longmix's wheel is built from, copied: what a build leaves behind does not lie in the repository."""
    for place in rooms().values():
        shutil.copytree(place, folder / place.name, ignore=shutil.ignore_patterns("__pycache__"))
    about = _project()["project"]
    for name in ("pyproject.toml", about["readme"], *about["license-files"]):
        shutil.copy(ROOT / name, folder / name)
    return folder


def rooms() -> dict[str, Path]:
    """The folder of each package longmix.NAME, by its NAME."""
    folders = _project()["tool"]["setuptools"]["package-dir"]
    return {package.removeprefix("longmix."): ROOT / folder for package, folder in folders.items()}


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def stand_in(folder: Path, name: str, version: str) -> str:
    """Write an empty wheel for a package that the machine has; returns its version, which no index has.

    What its extras need is as it is here, if it is installed here: the machine may not have that.
    """
    version += f"{'.' if '+' in version else '+'}present"
    try:
        needs = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        needs = []
    needs = [line for line in needs if re.search(r"\bextra *==", line)]
    extras = sorted({extra for line in needs for extra in re.findall(r"extra *== *['\"]([^'\"]+)", line)})
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    about += "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    about += "".join(f"Requires-Dist: {line}\n" for line in needs)
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", about)
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return version


def _pip(verb: str, *words: str | Path, **environment: str) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", verb, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    if process.returncode != 0:
        raise UserError(f"pip {verb} ended with {process.returncode}: {reason(process.stdout, process.stderr)}")


def reason(output: str, errors: str) -> str:
    """What pip says of a failure, in one line: its errors, and which requirements are in conflict."""
    _, _, conflict = output.partition("The conflict is caused by:\n")
    told = [line for line in errors.splitlines() if line.startswith("ERROR")]
    told += conflict.partition("\n\n")[0].splitlines()
    return " ".join(" ".join(told).split()) or "it does not say why"
