"""What a machine without network needs to measure its GPU, in one folder of less than 60 MB.

    python benchmarks/gpu_pack.py PACK [--python 3.12] [--have FILE] [--corpus FILE ...] [--glue FOLDER]
                                       [--compile-with PYTHON]

Run it where a package index can be reached, carry the repository and PACK to the other machine, and there

    python benchmarks/gpu.py --work FOLDER --pack PACK

measures: it has `python PACK/install.py FOLDER/python --tree .` make an environment beside the packages that are there.
PACK holds

- wheels/: longmix, and of what it needs all that the other machine lacks, for its Python (Linux on x86-64). --have
  names a file of what it has, which `python -m pip list --format freeze` prints there; without it packing/present.txt
  counts: PyTorch 2.11, Triton 3.6, transformers 5.17 and what is commonly beside them, and no DeepSpeed;
- corpus/: the data sets train/ and validation/, and their tokenizer, made from the first --corpus-megabytes of the
  texts of --corpus, else of the documentation that every Python carries;
- glue/: GLUE's small tasks, from --glue; else the task of ./quickstart, which is not GLUE's;
- triton-cache.tar.xz: the kernels as gpu_model/launches.py launches them, those of the base models' blocks, in part,
  and all of the kit's stage 1, compiled for A100 and H100; what the kit launches besides is compiled there. Triton
  takes them only where its own files are the same to the byte: --compile-with names a Python of the same version with
  the other machine's torch and Triton, which needs no GPU. Without it the first use compiles all of them there;
- prediction.json: what benchmarks/gpu_cost.py says of the layers;
- install.py, and MANIFEST.json with the size and SHA-256 of every file.

A pack larger than --limit is refused with the names of its largest parts. PACK appears whole or not at all, and takes
the place only of a pack that nobody has changed.
"""

import argparse
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import record
from gpu_kit import prediction
from packing import data, install, kernels, wheels

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import MARKER, make_folder, sha256_of_file, write_json
from longmix.data_prep.made_folders import new_folder, put_in_place, refuse_foreign
from longmix.trainer.processes.ending import exit_code
from longmix.trainer.quickstart.text import MEGABYTE

KIND = "pack"
PRESENT = Path(wheels.__file__).with_name("present.txt")
_NAMED = 5  # of the largest parts of a pack that is too large


def make(pack: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the folder `pack`; returns its manifest.

    Raises:
        UserError: something is missing or too large; then nothing is there.
    """
    refuse_foreign(pack, KIND)
    have = wheels.pinned(arguments.have.read_text(encoding="utf-8").splitlines(), str(arguments.have))
    make_folder(pack.parent)
    with new_folder(pack) as new, tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        _tell("wheels")
        wheels.gather(new / "wheels", arguments.python, have, work)
        refuse_larger(parts_of(new), arguments.limit)
        made = data.embedded(work) if not (arguments.corpus and arguments.glue) else None
        _tell("corpus")
        texts = arguments.corpus or [str(made.text)]
        left_out = data.prepare(texts, arguments.corpus_megabytes, arguments.sequence_length, new / "corpus", work)
        tasks = data.take_glue(arguments.glue or str(made.glue), new / "glue")
        if arguments.compile_with is not None:
            _tell("kernels")
            kernels.compile_for(arguments.compile_with, arguments.python, have, new / install.KERNELS)
        _tell("the cost model's figures")
        prediction.write(new / prediction.FILE)
        shutil.copyfile(install.__file__, new / "install.py")
        refuse_larger(parts_of(new), arguments.limit)
        files = described(new)
        manifest = {
            "commit": record.commit(),
            "python": arguments.python,
            "have": have,
            "corpus": {"texts": arguments.corpus or "the documentation that Python carries", "left_out": left_out},
            "glue": tasks if arguments.glue else "the task of ./quickstart, which is not GLUE's",
            "bytes": sum(entry["bytes"] for entry in files),
            "files": files,
        }
        write_json(new / install.MANIFEST, manifest)
        put_in_place(new, pack, KIND, hashed=files)
    return manifest


def parts_of(pack: Path) -> dict[str, int]:
    """Bytes of each wheel and of each of the other things in a pack."""
    found = {}
    for path in sorted(path for path in pack.rglob("*") if path.is_file()):
        inner = path.relative_to(pack)
        name = str(inner) if inner.parts[0] == "wheels" else inner.parts[0]
        found[name] = found.get(name, 0) + path.stat().st_size
    return found


def refuse_larger(parts: dict[str, int], limit: float) -> None:
    """Raise UserError if the parts have more than `limit` megabytes together."""
    total = sum(parts.values())
    if total > limit * MEGABYTE:
        largest = sorted(parts.items(), key=lambda part: -part[1])[:_NAMED]
        named = ", ".join(f"{name} {size / MEGABYTE:.1f}" for name, size in largest)
        raise UserError(
            f"the pack would have {total / MEGABYTE:.1f} MB, more than --limit {limit:g}; its largest parts: {named}: "
            "give --have with all that the other machine has, a smaller --corpus-megabytes, or a higher --limit"
        )


def described(pack: Path) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of every file that a new pack holds."""
    return [
        {"file": path.relative_to(pack).as_posix(), "bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
        for path in sorted(pack.rglob("*"))
        if path.is_file() and path != pack / MARKER
    ]


def _tell(part: str) -> None:
    print(f"gathering {part}", flush=True)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no positive number")
    return value


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The arguments; a mistake ends the process with exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, metavar="PACK", help="the folder to make")
    parser.add_argument("--python", default="3.12", metavar="X.Y", help="of the other machine (default: %(default)s)")
    parser.add_argument("--have", type=Path, default=PRESENT, metavar="FILE", help="lines NAME==VERSION: what it has")
    parser.add_argument("--corpus", nargs="+", metavar="FILE", help="texts: .txt, .jsonl, .parquet, folders of them")
    parser.add_argument(
        "--corpus-megabytes", type=_positive, default=32, metavar="MB", help="of them, at most (default: %(default)g)"
    )
    parser.add_argument(
        "--sequence-length", type=int, default=512, metavar="N", help="tokens of a sample (default: %(default)s)"
    )
    parser.add_argument("--glue", metavar="FOLDER", help="GLUE, as `longmix finetune --data` reads it")
    parser.add_argument(
        "--compile-with", metavar="PYTHON", help="compiles the kernels: it has the other machine's torch and Triton"
    )
    parser.add_argument(
        "--limit", type=_positive, default=60, metavar="MB", help="megabytes (10^6 bytes) of it (default: %(default)g)"
    )
    arguments = parser.parse_args(words)
    if not arguments.have.is_file():
        parser.error(f"--have {arguments.have}: there is no such file")
    return arguments


def main() -> int:
    """Make the pack and tell its size; returns the exit code."""
    arguments = parse()

    def work() -> int:
        manifest = make(arguments.pack, arguments)
        for name, size in sorted(parts_of(arguments.pack).items(), key=lambda part: -part[1]):
            print(f"{size / MEGABYTE:8.2f} MB  {name}")
        print(f"{manifest['bytes'] / MEGABYTE:8.2f} MB  in all: {arguments.pack}")
        return 0

    return exit_code(work, "gpu_pack")


if __name__ == "__main__":
    raise SystemExit(main())
