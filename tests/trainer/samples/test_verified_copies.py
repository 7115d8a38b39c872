"""Copies of remote shards are hashed once after each start of the machine, and made anew where they have changed."""

import errno
import json
import os
import threading

import numpy as np
import pytest

from longmix.data_prep.files import sha256_of_file
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.remote import RemoteFolder
from longmix.trainer.samples import verified_copies
from longmix.trainer.samples.shard_cache import ShardCache
from longmix.trainer.settings.sections import CacheSection


def test_a_copy_that_was_damaged_here_is_made_anew_once(storage, bucket, open_remote, tmp_path):
    dataset = open_remote(bucket, tmp_path / "cache")
    dataset.read(np.asarray([0]))
    entry = dataset.manifest.shards[0]
    copy = tmp_path / "cache" / entry["sha256"]
    for damaged in (b"x" * entry["bytes"], copy.read_bytes()[:-7]):
        copy.write_bytes(damaged)
        assert open_remote(bucket, tmp_path / "cache").read(np.asarray([3]))[0]["labels"] == 3
        assert sha256_of_file(copy) == entry["sha256"]
    assert storage.opened_shards() == [entry["file"]] * 3


def test_a_copy_that_decays_without_a_word_of_the_file_system_is_made_anew(storage, bucket, open_remote, tmp_path):
    """A disk that loses bits changes no time of the file: its record goes on saying that the hash was right."""
    dataset = open_remote(bucket, tmp_path / "cache")
    dataset.read(np.asarray([0]))
    entry = dataset.manifest.shards[0]
    copy = tmp_path / "cache" / entry["sha256"]
    copy.write_bytes(b"x" * entry["bytes"])
    verified_copies.note(copy, copy.stat())
    assert open_remote(bucket, tmp_path / "cache").read(np.asarray([3]))[0]["labels"] == 3
    assert sha256_of_file(copy) == entry["sha256"]


@pytest.fixture
def hashed(monkeypatch):
    """Names of the copies that were hashed here."""
    names = []
    defect = verified_copies.defect
    monkeypatch.setattr(
        verified_copies, "defect", lambda copy, name, size: names.append(name) or defect(copy, name, size)
    )
    return names


@pytest.fixture
def copied(storage, bucket, tmp_path):
    """(cache, folder at the URL, entry of a shard) after the shard was fetched once."""
    cache, there = ShardCache(CacheSection(str(tmp_path / "cache"))), RemoteFolder(f"storage://{bucket}")
    entry = Manifest.load(bucket).shards[0]
    cache.fetch(there, entry)
    storage.opened.clear()
    return cache, there, entry


def test_a_copy_is_hashed_once_after_each_start_of_the_machine(copied, storage, hashed, monkeypatch):
    cache, there, entry = copied
    path = cache.fetch(there, entry)
    # What arrived was hashed then.
    assert hashed == []
    for start in ("one", "two"):
        monkeypatch.setattr(verified_copies, "_machine", lambda start=start: start)
        assert cache.fetch(there, entry) == cache.fetch(there, entry) == path
        assert hashed == [entry["sha256"]]
        hashed.clear()
    # Machines that share a folder do not forget for one another.
    monkeypatch.setattr(verified_copies, "_machine", lambda: "one")
    cache.fetch(there, entry)
    # Of an earlier version, which noted nothing.
    verified_copies.forget(path)
    assert hashed == []
    cache.fetch(there, entry)
    cache.fetch(there, entry)
    assert hashed == [entry["sha256"]] and storage.opened == []


def swap(path):
    """Another file with the size and mtime of a copy."""
    before = path.stat()
    path.with_name("swapped").write_bytes(bytes(reversed(path.read_bytes())))
    os.utime(path.with_name("swapped"), ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(path.with_name("swapped"), path)


def rewrite(path):
    """Other bytes in a copy, with its mtime of before."""
    before, contents = path.stat(), path.read_bytes()
    path.write_bytes(contents[:40] + b"x" + contents[41:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def link(path):
    path.rename(path.with_name("moved"))
    rewrite(path.with_name("moved"))
    path.symlink_to("moved")


def make_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("work", [swap, rewrite, link, make_a_pipe])
def test_a_copy_that_was_changed_is_made_anew_with_a_line(copied, storage, caplog, work):
    cache, there, entry = copied
    path = cache.folder / entry["sha256"]
    work(path)
    assert cache.fetch(there, entry) == path and sha256_of_file(path) == entry["sha256"] and not path.is_symlink()
    assert storage.opened == [entry["file"]] and len(caplog.records) == 1
    assert f"{path} is not the copy that was made (it" in caplog.text and "it is made anew" in caplog.text


def test_a_copy_with_another_date_is_hashed_again(copied, storage, hashed):
    cache, there, entry = copied
    os.utime(cache.folder / entry["sha256"])
    cache.fetch(there, entry)
    cache.fetch(there, entry)
    assert hashed == [entry["sha256"]] and storage.opened == []


def test_a_record_that_others_can_write_proves_nothing(copied, storage, hashed):
    cache, there, entry = copied
    path = cache.folder / entry["sha256"]
    record = verified_copies._record(path)
    for spoil in (
        lambda: record.chmod(0o602),
        lambda: record.write_text("[" * 100_000),
        lambda: record.write_text("[]"),
    ):
        spoil()
        cache.fetch(there, entry)
        assert hashed == [entry["sha256"]] and record.stat().st_mode & 0o777 == 0o600
        hashed.clear()
    # With a record that says so, it would be believed.
    swap(path)
    record.write_text(json.dumps({verified_copies._machine(): verified_copies._identity(path.stat())}))
    cache.fetch(there, entry)
    assert hashed == []
    record.chmod(0o606)
    cache.fetch(there, entry)
    assert hashed == [entry["sha256"]] and sha256_of_file(path) == entry["sha256"]


def test_one_hashes_while_others_wait(copied, hashed, monkeypatch):
    cache, there, entry = copied
    verified_copies.forget(cache.folder / entry["sha256"])
    begun, go_on, defect = threading.Event(), threading.Event(), verified_copies.defect

    def slowly(*arguments):
        begun.set()
        assert go_on.wait(60)
        return defect(*arguments)

    monkeypatch.setattr(verified_copies, "defect", slowly)
    readers = [threading.Thread(target=cache.fetch, args=(there, entry)) for _ in range(3)]
    readers[0].start()
    assert begun.wait(60)
    for reader in readers[1:]:
        reader.start()
    readers[1].join(0.05)
    go_on.set()
    for reader in readers:
        reader.join()
    assert hashed == [entry["sha256"]]


def test_a_disk_that_takes_no_record_stops_nothing(copied, hashed, monkeypatch):
    cache, there, entry = copied
    verified_copies.forget(cache.folder / entry["sha256"])

    def refuse(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(verified_copies, "new_beside", refuse)
    cache.fetch(there, entry)
    assert hashed == [entry["sha256"]]
