"""The processor time of each stage of `longmix prepare text --share`, and what it means for a terabyte.

`python benchmarks/samples/preparing.py TEXT [--validation TEXT] [--hosts 64] [--cores 32] [--cores-of-a-share 8]`
prepares the text in one share and one process, and prints the megabytes of text for each second of the processor; then
the time that a terabyte takes on so many hosts, with several shares on each, all of them busy and the disk fast enough.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

from longmix.data_prep.text import blocks, sharing
from longmix.data_prep.text.shares import Share
from longmix.data_prep.text.state import TextSettings
from longmix.data_prep.text.unpacking import opened

STAGES = ("count", "make_plan", "pack", "write", "finish")
TERABYTE = 1e6  # megabytes


def measure(settings: TextSettings, output: Path) -> dict[str, float]:
    """Seconds of the processor of each stage; of `pack` without encoding, which is `encode`."""
    seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def timed(name: str):
        began = time.process_time()
        yield
        seconds[name] += time.process_time() - began

    def wrapped(name: str, function):
        def call(*arguments):
            with timed(name):
                return function(*arguments)

        return call

    job, pack_block = sharing._Job, blocks.pack_block
    before = {name: getattr(job, name) for name in STAGES}
    try:
        blocks.pack_block = wrapped("encode", pack_block)
        for name, function in before.items():
            setattr(job, name, wrapped(name, function))
        sharing.prepare_share(settings, output, Share(0, 1), workers=1)
    finally:
        blocks.pack_block = pack_block
        for name, function in before.items():
            setattr(job, name, function)
    seconds["pack"] -= seconds["encode"]
    return dict(seconds)


def bytes_of_text(file: Path) -> int:
    """Bytes of a file, unpacked where it is compressed."""
    with opened(file) as (stream, form):
        if form is None:
            return file.stat().st_size
        return sum(len(piece) for piece in iter(lambda: stream.read(1 << 20), b""))


def of_a_terabyte(speeds: dict[str, float], shares: int, cores: int) -> dict[str, float]:
    """Seconds of each stage that reads text, of `shares` with so many cores each, from megabytes a second of a core.

    One process counts, reads what the others encode, and writes.
    """
    part = TERABYTE / shares
    reading, encoding = part / speeds["pack"], part / speeds["encode"]
    return {
        "count": part / speeds["count"],
        "pack": max(reading, (reading + encoding) / cores),
        "write": part / speeds["write"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="a file or folder")
    parser.add_argument("--validation", action="append", default=[], metavar="TEXT", help="held-out text; repeatable")
    parser.add_argument("--hosts", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--cores", type=int, default=32, metavar="N", help="of a host (default: 32)")
    parser.add_argument("--cores-of-a-share", type=int, default=8, metavar="N", help="default: 8")
    arguments = parser.parse_args()
    path = Path(arguments.text)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    megabytes = sum(map(bytes_of_text, files)) / 1e6
    with tempfile.TemporaryDirectory() as temporary:
        settings = TextSettings(source=(arguments.text,), validation=tuple(arguments.validation))
        seconds = measure(settings, Path(temporary) / "out")
    speeds = {name: megabytes / seconds[name] for name in ("count", "pack", "encode", "write")}
    print(f"{megabytes:.1f} MB of text; MB for a second of the processor:")
    for name, speed in speeds.items():
        print(f"  {name:<8}{speed:8.1f}   ({seconds[name]:.1f} s)")
    print(f"  whatever the size: make_plan {seconds['make_plan']:.1f} s, finish {seconds['finish']:.1f} s")
    cores = arguments.cores_of_a_share
    shares = arguments.hosts * arguments.cores // cores
    stages = of_a_terabyte(speeds, shares, cores)
    times = ", ".join(f"{name} {value:.0f} s" for name, value in stages.items())
    print(
        f"1 TB in {shares} shares of {arguments.cores_of_a_share} cores: {times}; {sum(stages.values()) / 60:.1f} min"
    )


if __name__ == "__main__":
    main()
