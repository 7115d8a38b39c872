"""Installs the pack that this file lies in, on a machine without network, beside the packages that the machine has.

    python PACK/install.py FOLDER [--tree REPOSITORY]

FOLDER, which must be new or empty, becomes a virtual environment that sees all packages of the Python that runs this,
and holds those of the pack beside them: `FOLDER/bin/python` then runs longmix, and `FOLDER/bin/longmix` is there. With
--tree, longmix's code is that of a repository, where what is changed counts at once; else it is the pack's own. Every
file is compared with the pack's MANIFEST.json first. pip checks that everything that longmix needs is there, in a
version that it takes. Only Python's own library and pip are needed.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

MANIFEST = "MANIFEST.json"
KERNELS = "triton-cache.tar.xz"
# In the pack the files of Triton's cache name each other relative to it.
GROUP = "__grp__*.json"
# A hash of Triton's own files, which is a part of every kernel's key.
KEY = "triton-key.txt"
KEY_CODE = "import hashlib, triton.runtime.cache as c; print(hashlib.sha256(c.triton_key().encode()).hexdigest())"


class PackError(Exception):
    """The pack cannot be installed; the text says why, and what to do."""


def install(pack: Path, folder: Path, tree: Path | None = None) -> Path:
    """Make the environment `folder`; returns its Python.

    Args:
        tree: a repository of longmix, whose code takes the place of the pack's.

    Raises:
        PackError: a damaged pack, another Python than it was made for, a folder that holds something, or pip's refusal.
    """
    verify(pack)
    if folder.exists() and any(folder.iterdir()):
        raise PackError(f"{folder} holds something: name a new folder, or one that is empty")
    if tree is not None and not (tree / "trainer").is_dir():
        raise PackError(f"--tree {tree} is no repository of longmix: it has no folder trainer")
    venv.create(folder, symlinks=True)
    python = folder.resolve() / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder.resolve())}))
    kernels = folder.resolve() / "triton-cache"
    lines = [f"import site; site.addsitedir({place!r})" for place in sys.path if _holds_packages(place)]
    if (pack / KERNELS).is_file():
        unpack_kernels(pack / KERNELS, kernels)
        lines.append(f"import os; os.environ.setdefault('TRITON_CACHE_DIR', {str(kernels)!r})")
    (packages / "beside.pth").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    process = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python), "--isolated", "--disable-pip-version-check"),
            *("install", "--quiet", "--no-index", "--find-links", str(pack / "wheels"), "longmix"),
        ],
        env={**os.environ, "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
    )
    if process.returncode != 0:
        raise PackError(f"pip could not install from {pack / 'wheels'}:\n{process.stderr.strip()}")
    if tree is not None:
        _use(tree.resolve(), packages / "longmix")
    if kernels.is_dir():
        _tell_of_another_triton(python, kernels)
    return python


def verify(pack: Path) -> None:
    """Raise PackError unless each file of the pack is as its manifest says, and it was made for this Python."""
    try:
        manifest = json.loads((pack / MANIFEST).read_text(encoding="utf-8"))
        for entry in manifest["files"]:
            with open(pack / entry["file"], "rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != entry["sha256"]:
                    raise PackError(f"{pack / entry['file']} is not as it was packed: copy the pack again")
    except (OSError, ValueError) as error:
        raise PackError(f"{pack} is no whole pack ({error}): copy it again") from None
    running = "{}.{}".format(*sys.version_info)
    if manifest["python"] != running:
        raise PackError(
            f"{pack} is for Python {manifest['python']}, and this is {running}: make another with --python {running}"
        )


def unpack_kernels(archive: Path, folder: Path) -> None:
    """Unpack compiled kernels to where Triton reads them: each group then names its files by full paths."""
    with tarfile.open(archive) as stream:
        stream.extractall(folder, filter="data")
    for group in folder.rglob(GROUP):
        values = json.loads(group.read_text(encoding="utf-8"))
        paths = {name: str(group.parent / path) for name, path in values["child_paths"].items()}
        group.write_text(json.dumps({"child_paths": paths}), encoding="utf-8")


def _tell_of_another_triton(python: Path, kernels: Path) -> None:
    """Say so where the kernels were compiled by another build of Triton, which is no obstacle."""
    process = subprocess.run([str(python), "-c", KEY_CODE], capture_output=True, text=True)
    if process.stdout != (kernels / KEY).read_text(encoding="utf-8"):
        told = "the Triton here is not the one that compiled the pack's kernels, and compiles them again"
        print(f"install: {told}", file=sys.stderr)


def _holds_packages(place: str) -> bool:
    return Path(place).name in ("site-packages", "dist-packages") and Path(place).is_dir()


def _use(tree: Path, package: Path) -> None:
    """Links to the folders of a repository in place of the installed ones, which this process has just made."""
    for room in list(package.iterdir()):
        shutil.rmtree(room)
        room.symlink_to(tree / room.name, target_is_directory=True)


def main() -> None:
    """Install; a mistake is told in one line, with exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the environment to make")
    parser.add_argument("--tree", type=Path, metavar="REPOSITORY", help="use the code of this repository of longmix")
    arguments = parser.parse_args()
    try:
        print(install(Path(__file__).resolve().parent, arguments.folder, arguments.tree))
    except PackError as error:
        print(f"install: error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
