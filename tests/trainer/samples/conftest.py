"""A data set at a URL whose file system fails as a test wants."""

import io
import os
import shutil
import threading

import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

from longmix.data_prep import remote
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import ShardWriter
from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.settings.sections import CacheSection

SHARDS, SHARD_SAMPLES = 6, 50
SAMPLES = SHARDS * SHARD_SAMPLES


class Storage(LocalFileSystem):
    """Local files under a protocol of their own, which counts what is opened and fails as a test wants.

    `faults` holds, for each opening to come, an exception to raise or a function from the bytes to other bytes.
    """

    protocol = "storage"
    cachable = False
    opened: list[str]
    faults: list
    lock = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("storage://"))

    def open(self, path, mode="rb", **options):
        with self.lock:
            Storage.opened.append(os.path.basename(path))
            is_shard = path.endswith(".parquet")
            fault = Storage.faults.pop(0) if Storage.faults and is_shard else None
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            with open(path, "rb") as file:
                return io.BytesIO(fault(file.read()))
        return super().open(path, mode, **options)

    @classmethod
    def opened_shards(cls):
        return [name for name in cls.opened if name.endswith(".parquet")]


@pytest.fixture
def storage(monkeypatch):
    """The class of the file system; nobody waits between attempts, `storage.delays` says how long they would."""
    fsspec.register_implementation("storage", Storage, clobber=True)
    Storage.opened, Storage.faults, Storage.delays = [], [], []
    monkeypatch.setattr(remote, "_sleep", Storage.delays.append)
    return Storage


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """A folder with a data set of 6 shards of 50 samples; sample i has the label i."""
    folder = tmp_path_factory.mktemp("bucket") / "train"
    columns = {"input_ids": LIST_INT32, "labels": SCALAR_INT64}
    generator = np.random.default_rng(0)
    with ShardWriter(folder, columns, samples_per_shard=SHARD_SAMPLES, row_group_samples=16) as writer:
        for number in range(SAMPLES):
            writer.write({"input_ids": generator.integers(5, 90, 40).tolist(), "labels": number})
    Manifest(split="train", split_rule="test", columns=columns, samples=SAMPLES, shards=writer.entries).save(folder)
    return folder


@pytest.fixture
def bucket(written, tmp_path):
    """A copy of that folder for one test."""
    return shutil.copytree(written, tmp_path / "bucket" / "train")


@pytest.fixture(scope="session")
def open_remote():
    """open_remote(folder, cache, max_bytes=None) -> ShardedDataset of the folder at its URL."""
    return lambda bucket, cache, max_bytes=None: ShardedDataset(
        f"storage://{bucket}", CacheSection(str(cache), max_bytes)
    )
