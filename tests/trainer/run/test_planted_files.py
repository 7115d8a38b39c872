"""What somebody else has put under names that longmix writes to is not followed, waited for, or changed."""

import os
import re
import types

import pytest

from longmix.data_prep import files
from longmix.data_prep.errors import UserError
from longmix.data_prep.shard_writer import ShardFile
from longmix.data_prep.shards import SCALAR_INT64, write_dataset
from longmix.data_prep.text.blocks import BlockSpool
from longmix.trainer.checkpoints import folders
from longmix.trainer.checkpoints.hashed_files import HashedFile
from longmix.trainer.checkpoints.run_log import RunLog
from longmix.trainer.many_runs import pool
from longmix.trainer.many_runs.read import _read_records as read_records
from longmix.trainer.many_runs.requeue import _last_recorded_step as last_recorded_step
from longmix.trainer.processes import watchdog
from longmix.trainer.run.folder import RunLock, is_in_work

PRECIOUS = b"precious"
LINKS = ["link", "dangling"]


@pytest.fixture
def plant(tmp_path):
    """plant(path, "link" | "dangling" | "pipe"); what the links name is as it was at the end."""
    canary, nowhere = tmp_path / "canary", tmp_path / "nowhere"
    canary.write_bytes(PRECIOUS)

    def make(path, kind):
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(canary if kind == "link" else nowhere)

    yield make
    assert canary.read_bytes() == PRECIOUS and not nowhere.exists()


@pytest.mark.parametrize("kind", [*LINKS, "pipe"])
def test_locks_are_files_of_longmix(plant, tmp_path, kind):
    lock = tmp_path / "folder" / ".lock"
    plant(lock, kind)
    what = "named pipe" if kind == "pipe" else "symbolic link"
    message = rf"folder cannot be used: {re.escape(str(lock))}: it is a {what}, not a file of longmix's: move it away"
    with pytest.raises(UserError, match="run.dir .*" + message), RunLock(tmp_path / "folder"):
        pass
    with pytest.raises(UserError, match=message), files.locked(tmp_path / "folder"):
        pass
    assert not is_in_work(tmp_path / "folder")
    assert os.path.lexists(lock)


def test_a_lock_that_holds_something_is_not_removed(tmp_path):
    (tmp_path / ".lock").write_bytes(PRECIOUS)
    with pytest.raises(UserError, match=r"\.lock: it holds 8 bytes"), files.locked(tmp_path):
        pass
    assert (tmp_path / ".lock").read_bytes() == PRECIOUS


@pytest.mark.parametrize("kind", LINKS)
def test_temporary_names_are_new_files(plant, tmp_path, kind):
    for name in ("config.yaml", "shard.parquet"):
        plant(tmp_path / f".{name}.{os.getpid()}.tmp", kind)
    files.write_text(tmp_path / "config.yaml", "a: 1\n")
    shard = ShardFile(tmp_path / "shard.parquet", {"labels": SCALAR_INT64})
    shard.write({"labels": 1})
    assert shard.close()["samples"] == 1
    assert (tmp_path / "config.yaml").read_text() == "a: 1\n"
    assert not (tmp_path / "config.yaml").is_symlink() and not (tmp_path / "shard.parquet").is_symlink()


@pytest.mark.parametrize("kind", [*LINKS, "pipe"])
def test_files_that_are_written_in_place_are_files_of_longmix(plant, tmp_path, kind):
    plant(tmp_path / "run" / "metrics.jsonl", kind)
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be written: it is a "):
        RunLog(tmp_path / "run", True, 0, 9, tensorboard=False)
    plant(tmp_path / "engine", kind)
    with pytest.raises(FileExistsError):
        HashedFile(tmp_path / "engine")
    plant(tmp_path / "block.documents", kind)
    with pytest.raises(OSError, match="it is a "):
        BlockSpool(tmp_path / "block")
    plant(tmp_path / "run.log", kind)
    with pytest.raises(UserError, match=r"run\.log cannot be written: it is a "):
        pool.start(["longmix"], tmp_path / "run", {})


@pytest.mark.parametrize("kind", [*LINKS, "pipe"])
def test_a_watchdog_writes_to_files_of_longmix(plant, tmp_path, kind, monkeypatch):
    """It neither fails nor waits: a run goes on without."""
    world = types.SimpleNamespace(rank=0, size=2, is_first=True, progress=None)
    dog = watchdog.Watchdog(world, tmp_path, 1.0)
    dog._is_shared = True
    plant(dog._folder / "alarm", kind)
    plant(dog._path(1), kind)
    dog._set_alarm(watchdog.RAISED)
    watchdog._overwrite(dog._path(1), "x")
    assert dog._alarm() == watchdog.CALM and dog._heartbeats() == {}


def test_pipes_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert (
        read_records(tmp_path / "metrics.jsonl") == ([], None) and last_recorded_step(tmp_path / "metrics.jsonl") == 0
    )


def test_what_is_no_link_is_not_replaced_by_the_one_for_people(tmp_path):
    latest = tmp_path / "checkpoints" / "latest"
    latest.parent.mkdir()
    latest.write_bytes(PRECIOUS)
    assert folders.point_to(tmp_path, 4) == [
        f"note: {latest} is no link, and does not name the newest checkpoint: nothing reads it, move it away"
    ]
    assert latest.read_bytes() == PRECIOUS


def test_a_pipe_beside_a_data_set_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".data.1.new")
    write_dataset(tmp_path / "data", [{"labels": 1}], {"labels": SCALAR_INT64}, split="train", split_rule="all")
    assert (tmp_path / "data" / "manifest.json").is_file()
