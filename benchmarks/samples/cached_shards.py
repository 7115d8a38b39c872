"""The cost of knowing that a cached copy of a remote shard is still the one that was made.

`python benchmarks/samples/cached_shards.py [--megabytes 256]`: processor time of the first use after a start of the
machine, which hashes the copy, and of each later one, which compares what the file system says of it.
"""

import argparse
import hashlib
import os
import tempfile
import time
from pathlib import Path

from longmix.data_prep.remote import RemoteFolder
from longmix.trainer.samples import verified_copies
from longmix.trainer.samples.shard_cache import ShardCache
from longmix.trainer.settings.sections import CacheSection

USES = 2000


def measure(folder: Path, megabytes: int) -> tuple[float, float]:
    """(bytes hashed per second of the processor at the first use, seconds of the processor for each later use)."""
    data = os.urandom(2**20) * megabytes
    (folder / "there").mkdir()
    (folder / "there" / "shard.parquet").write_bytes(data)
    entry = {"file": "shard.parquet", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    cache, remote = ShardCache(CacheSection(str(folder / "cache"))), RemoteFolder(f"file://{folder}/there")
    # As if the machine had been started since.
    verified_copies.forget(cache.fetch(remote, entry))
    began = time.process_time()
    cache.fetch(remote, entry)
    first = time.process_time() - began
    began = time.process_time()
    for _ in range(USES):
        cache.fetch(remote, entry)
    return len(data) / first, (time.process_time() - began) / USES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256, help="size of the shard (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        speed, later = measure(Path(folder), arguments.megabytes)
    print(f"first use: {speed / 1e9:.2f} GB/s; later uses: {later * 1e6:.0f} us each")


if __name__ == "__main__":
    main()
