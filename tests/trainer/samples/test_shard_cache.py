"""Data sets at URLs: the same samples as here, through a bounded cache that several processes share."""

import contextlib
import errno
import json
import os
import shutil
import threading
import time

import numpy as np
import pytest

from longmix.data_prep.errors import MachineFault, UserError
from longmix.data_prep.files import sha256_of_file, sha256_of_folder
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.remote import RemoteFolder
from longmix.trainer.cli import main
from longmix.trainer.samples import run_data
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.decoded_groups import DecodedGroups
from longmix.trainer.samples.shard_cache import ShardCache
from longmix.trainer.samples.tokenizer import tokenizer_folder
from longmix.trainer.samples.verified_copies import RECORD
from longmix.trainer.settings import reading
from longmix.trainer.settings.sections import CacheSection

# Of the fixture `bucket`.
SHARDS, SHARD_SAMPLES = 6, 50
SAMPLES = SHARDS * SHARD_SAMPLES


def largest(folder):
    return max(shard["bytes"] for shard in Manifest.load(folder).shards)


def shown(folder):
    """What lies in a cache besides the records of its copies."""
    return [path for path in folder.iterdir() if ".verified" not in path.name]


def held(folder):
    """Bytes of copies, whole or not, in a cache."""
    total = 0
    for path in shown(folder):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_a_remote_data_set_gives_the_samples_of_a_local_one_and_copies_each_shard_once(
    storage, bucket, open_remote, tmp_path
):
    here, there = ShardedDataset(str(bucket)), open_remote(bucket, tmp_path / "cache")
    assert there.manifest == here.manifest and len(there) == SAMPLES
    indices = np.random.default_rng(1).permutation(SAMPLES)
    there.fetch(indices)
    for first, second in zip(here.read(indices), there.read(indices), strict=True):
        assert first["labels"] == second["labels"] and np.array_equal(first["input_ids"], second["input_ids"])
    again = open_remote(bucket, tmp_path / "cache")
    assert [sample["labels"] for sample in again.read(indices[:20])] == indices[:20].tolist()
    assert sorted(storage.opened_shards()) == [f"shard-{number:05d}.parquet" for number in range(SHARDS)]
    hashes = {shard["sha256"] for shard in here.manifest.shards}
    assert {path.name for path in shown(tmp_path / "cache")} == {".lock", *hashes}
    names = {path.name for path in (tmp_path / "cache").iterdir()}
    assert names == {".lock", *hashes, *(f".{name}.{os.geteuid()}.verified" for name in hashes)}
    mask = os.umask(0)
    os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in shown(tmp_path / "cache")} == {0o666 & ~mask}


def test_a_run_says_that_its_cache_is_too_small_for_what_it_reads_at_a_time(storage, bucket, tmp_path, monkeypatch):
    def note(processes, ranks_here, train=f"storage://{bucket}", **cache):
        cache = {"dir": str(tmp_path / "cache"), **cache}
        values = {
            "data": {"train": train, "cache": cache, "partitions": 4},
            "batch": {"samples": 16, "micro_batch": 1},
            "objective": {"name": "classification"},
            "run": {"dir": str(tmp_path / "run")},
            "model": {"model_type": "transformer"},
            "optim": {"max_steps": 2, "lr": 1e-3},
        }
        configuration = reading.from_dict(values, "test")
        data = run_data.open_data(configuration, processes)
        return run_data.small_cache_note(configuration, data, processes, ranks_here)

    four = sum(sorted((shard["bytes"] for shard in Manifest.load(bucket).shards), reverse=True)[:4])
    assert note(1, 1, max_bytes=four) is None and note(1, 1, train=str(bucket), max_bytes=1) is None
    told = note(1, 1, max_bytes=four - 1)
    assert "this machine reads 4 ranges of the samples at a time, whose shards take" in told
    assert "raise data.cache.max_bytes, or name a larger disk" in told
    # One rank of four holds a range, and begins with the next one.
    assert note(4, 1, max_bytes=four - 1) is None
    assert note(4, 2, max_bytes=four - 1) is not None
    # Without a bound a tenth of the disk stays free.
    usage = shutil.disk_usage(tmp_path)
    for free, is_told in ((usage.total // 10 + four, False), (usage.total // 10 + four - 1, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        assert (note(1, 1) is not None) == is_told


def test_the_cache_stays_within_its_bound_and_drops_what_was_used_longest_ago(storage, bucket, open_remote, tmp_path):
    cache = tmp_path / "cache"
    bound = 3 * largest(bucket)
    dataset = open_remote(bucket, cache, bound)
    (cache / "thesis.tex").write_text("precious")
    foreign = (cache / "thesis.tex").stat().st_size
    for shard in (0, 1, 2, 0, 3):
        dataset.read(np.asarray([shard * SHARD_SAMPLES + 20]))
        dataset._groups = DecodedGroups(0, 0)
        assert held(cache) - foreign <= bound
    kept = {path.name for path in shown(cache)}
    hashes = [shard["sha256"] for shard in dataset.manifest.shards]
    assert kept == {".lock", "thesis.tex", hashes[0], hashes[2], hashes[3]}
    # What was evicted comes again.
    assert dataset.read(np.asarray([SHARD_SAMPLES]))[0]["labels"] == SHARD_SAMPLES
    assert (cache / "thesis.tex").read_text() == "precious"
    # Nothing is left of what is known of those that have gone.
    records = {RECORD.fullmatch(path.name) for path in cache.iterdir()} - {None}
    assert {record[1] for record in records} == {path.name for path in shown(cache)} - {".lock", "thesis.tex"}


def test_what_was_used_longest_ago_is_dropped_whatever_the_clock_says(
    storage, bucket, open_remote, tmp_path, monkeypatch
):
    """The clock is set back by a day again and again, the system's own, too, and once forward by a year."""
    now, utime = [time.time_ns()], os.utime

    def clock():
        now[0] -= 86_400 * 10**9
        return now[0]

    def dated(path, times=None, *, ns=None):
        utime(path, ns=ns or (clock(), clock()))

    monkeypatch.setattr(time, "time_ns", clock)
    monkeypatch.setattr(os, "utime", dated)
    dataset = open_remote(bucket, tmp_path / "cache", 3 * largest(bucket))
    for shard in (0, 1, 2, 0, 3, 2, 4):
        dataset.read(np.asarray([shard * SHARD_SAMPLES + 20]))
        dataset._groups = DecodedGroups(0, 0)
        now[0] += 365 * 86_400 * 10**9 * (shard == 1)
    kept = {path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".verified"}
    assert kept == {".lock", *(dataset.manifest.shards[shard]["sha256"] for shard in (3, 2, 4))}


def test_readers_that_share_a_small_cache_all_get_what_they_ask_for(storage, bucket, open_remote, tmp_path):
    cache, bound = tmp_path / "cache", 2 * largest(bucket)
    worst, mistakes = [], []

    def read(seed):
        generator = np.random.default_rng(seed)
        try:
            dataset = open_remote(bucket, cache, bound)
            for _ in range(25):
                dataset._groups = DecodedGroups(0, 0)
                index = int(generator.integers(SAMPLES))
                assert dataset.read(np.asarray([index]))[0]["labels"] == index
                worst.append(held(cache))
        except BaseException as error:
            mistakes.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mistakes and max(worst) <= bound


READS_ALL = """
import sys
import numpy as np
from longmix.trainer.settings import reading
from longmix.trainer.settings.sections import CacheSection
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.decoded_groups import DecodedGroups

dataset = ShardedDataset("file://" + sys.argv[1], CacheSection(sys.argv[2], int(sys.argv[3])))
indices = np.arange(len(dataset))
dataset.fetch(indices)
dataset._groups = DecodedGroups(0, 0)
print(sum(int(sample["labels"]) for sample in dataset.read(indices)))
"""


@pytest.mark.full
def test_processes_share_a_cache_that_is_too_small_for_them(bucket, tmp_path, start):
    cache, bound = tmp_path / "cache", 2 * largest(bucket)
    readers = [start("-c", READS_ALL, bucket, cache, bound) for _ in range(2)]
    for reader in readers:
        assert reader.wait() == (0, f"{SAMPLES * (SAMPLES - 1) // 2}\n")
    assert held(cache) <= bound and not list(cache.glob(".*.part"))


def test_who_wants_what_another_copies_waits_for_it(storage, bucket, tmp_path):
    # A copy that a killed process has left: nobody holds it.
    cache = tmp_path / "cache"
    cache.mkdir()
    left = [f".{shard['sha256']}.part" for shard in Manifest.load(bucket).shards[:2]]
    for name in left:
        (cache / name).write_bytes(b"half")
    first = ShardCache(CacheSection(str(cache)))
    shard = Manifest.load(bucket).shards[0]
    begun, go_on = threading.Event(), threading.Event()

    def slowly(contents):
        begun.set()
        assert go_on.wait(60)
        return contents

    storage.faults = [slowly]
    paths = []
    readers = [
        threading.Thread(target=lambda: paths.append(first.fetch(RemoteFolder(f"storage://{bucket}"), shard)))
        for _ in range(3)
    ]
    readers[0].start()
    assert begun.wait(60)
    for reader in readers[1:]:
        reader.start()
    readers[1].join(0.2)
    go_on.set()
    for reader in readers:
        reader.join()
    assert storage.opened_shards() == [shard["file"]] and len(set(paths)) == 1 and len(paths) == 3
    assert sha256_of_file(paths[0]) == shard["sha256"] and not list(cache.glob(".*.part"))


def test_failing_reads_are_tried_again_with_growing_delays(storage, bucket, open_remote, tmp_path, caplog):
    storage.faults = [OSError("connection reset"), TimeoutError("too slow"), lambda contents: contents[:-100]]
    dataset = open_remote(bucket, tmp_path / "cache")
    assert dataset.read(np.asarray([7]))[0]["labels"] == 7
    assert len(storage.delays) == 3
    for number, delay in enumerate(storage.delays):
        assert 2**number <= delay <= 1.5 * 2**number
    assert "connection reset; trying again" in caplog.text and "bytes, the manifest says" in caplog.text


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ([OSError("no route to host")] * 8, "cannot be read after 8 attempts: no route to host"),
        ([lambda contents: contents[:50] + b"x" + contents[51:]] * 8, "its SHA-256 is not the manifest's"),
        ([lambda contents: contents + b"x"] * 8, "it has more than"),
        ([lambda contents: contents[:-1]] * 8, "the manifest says"),
        ([PermissionError("who are you?")], r"cannot be read: who are you\?"),
        ([OSError(errno.ENOSPC, "No space left on device")], "No space left on device"),
    ],
)
def test_what_cannot_be_copied_is_told_and_leaves_nothing(storage, bucket, open_remote, tmp_path, faults, message):
    dataset = open_remote(bucket, tmp_path / "cache")
    storage.faults = list(faults)
    with pytest.raises((UserError, MachineFault), match=f"shard-00001.parquet.*{message}"):
        dataset.read(np.asarray([SHARD_SAMPLES]))
    assert not storage.faults
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]
    assert dataset.read(np.asarray([SHARD_SAMPLES]))[0]["labels"] == SHARD_SAMPLES


def test_the_cache_writes_through_no_link(storage, bucket, open_remote, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (tmp_path / "canary").write_bytes(b"precious")
    for name in (".lock", f".{Manifest.load(bucket).shards[0]['sha256']}.part"):
        (cache / name).symlink_to(tmp_path / "canary")
        with pytest.raises(UserError, match=r"data\.cache\.dir .*cache cannot be used: .*it is a symbolic link"):
            open_remote(bucket, cache).read(np.asarray([0]))
        (cache / name).unlink()
    assert (tmp_path / "canary").read_bytes() == b"precious"


def test_missing_remote_things_are_told_at_once(storage, bucket, open_remote, tmp_path):
    (bucket / "shard-00002.parquet").unlink()
    dataset = open_remote(bucket, tmp_path / "cache")
    with pytest.raises(UserError, match=r"shard-00002\.parquet is missing, the manifest names it"):
        dataset.read(np.asarray([2 * SHARD_SAMPLES]))
    with pytest.raises(UserError, match=r"bound/train holds no manifest\.json: it is no data set, or the URL is wrong"):
        open_remote(tmp_path / "bound" / "train", tmp_path / "cache")
    with pytest.raises(UserError, match="nowhere://bucket/train cannot be used: Protocol not known"):
        ShardedDataset("nowhere://bucket/train")
    with pytest.raises(UserError, match=r"s3://key:\.\.\.@bucket/train holds a password, which would be written"):
        ShardedDataset("s3://key:hunter2@bucket/train")
    assert storage.delays == []


def test_bounds_that_hold_no_shard_and_folders_that_are_none_are_refused(storage, bucket, open_remote, tmp_path):
    with pytest.raises(UserError, match=r"has \d+ bytes, more than .* may hold: 100 \(data\.cache\.max_bytes\)"):
        open_remote(bucket, tmp_path / "cache", 100).read(np.asarray([0]))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"data\.cache\.dir .*file cannot be used"):
        open_remote(bucket, tmp_path / "file")


def test_without_a_bound_a_tenth_of_the_disk_stays_free(storage, bucket, open_remote, tmp_path, monkeypatch):
    cache, size = tmp_path / "cache", largest(bucket)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10 * size, 0, 3 * size - held(cache)))
    dataset = open_remote(bucket, cache)
    for shard in range(4):
        dataset.read(np.asarray([shard * SHARD_SAMPLES]))
        assert held(cache) <= 2 * size
    assert len(shown(cache)) == 3


def test_the_tokenizer_of_a_remote_data_set_is_copied_and_compared(storage, bucket, tmp_path):
    folder = bucket.parent / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "tokenizer.model").write_bytes(b"pieces")
    section = CacheSection(str(tmp_path / "cache"))
    manifest = Manifest.load(bucket)
    manifest.tokenizer = {"path": "../tokenizer", "sha256": sha256_of_folder(folder)}
    copy = tokenizer_folder(f"storage://{bucket}", manifest, section)
    assert copy != folder and sha256_of_folder(copy) == manifest.tokenizer["sha256"]
    (copy / "tokenizer.model").write_bytes(b"other")
    assert tokenizer_folder(f"storage://{bucket}", manifest, section) == copy
    assert (copy / "tokenizer.model").read_bytes() == b"pieces"
    assert tokenizer_folder(str(bucket), manifest).samefile(folder)
    elsewhere = copy.rename(tmp_path / "elsewhere")
    (elsewhere / "tokenizer.model").write_bytes(b"other")
    copy.symlink_to(elsewhere)
    with pytest.raises(
        UserError, match=r"data\.cache\.dir .*cannot be replaced by a copy of the tokenizer: move it away"
    ):
        tokenizer_folder(f"storage://{bucket}", manifest, section)
    assert (elsewhere / "tokenizer.model").read_bytes() == b"other"
    (folder / "tokenizer.model").write_bytes(b"another")
    shutil.rmtree(tmp_path / "cache")
    for place in (f"storage://{bucket}", str(bucket)):
        with pytest.raises(UserError, match=r"is not the tokenizer that .*train was prepared with"):
            tokenizer_folder(place, manifest, section)
    shutil.rmtree(tmp_path / "cache" / "tokenizers")
    (tmp_path / "cache" / "tokenizers").write_text("no folder")
    with pytest.raises(UserError, match=r"data\.cache\.dir .*cache cannot be used: .*tokenizers"):
        tokenizer_folder(f"storage://{bucket}", manifest, section)


def test_training_from_a_url_equals_training_from_its_copy_here(
    storage, data, train, run_values, write_run_file, read_metrics, tmp_path, capsys
):
    local = train(tmp_path / "local", **{"optim.max_steps": 4})
    urls = {"data.train": f"storage://{data / 'train'}", "data.eval": f"storage://{data / 'validation'}"}
    cache = {"data.cache": {"dir": str(tmp_path / "cache"), "max_bytes": 10**6}}
    afar = train(tmp_path / "remote", **{"optim.max_steps": 4}, **urls, **cache)
    assert local.code == afar.code == 0
    for first, second in zip(read_metrics(tmp_path / "local"), read_metrics(tmp_path / "remote"), strict=True):
        assert first.get("loss") == second.get("loss") and first.get("grad_norm") == second.get("grad_norm")
    path = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", **urls, **cache))
    assert main(["train", path, "--check"]) == 0
    assert "this run file is valid" in capsys.readouterr().out
    manifest = json.loads((data / "train" / "manifest.json").read_text())
    assert {path.name for path in (tmp_path / "cache").iterdir()} >= {shard["sha256"] for shard in manifest["shards"]}
