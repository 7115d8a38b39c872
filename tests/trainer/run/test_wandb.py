"""`log.wandb`: the figures of a run in Weights & Biases, offline, whatever happens to the run or to the service."""

import importlib.util
import json
import math
import os
import struct
import sys
import time

import pytest
import yaml

from longmix.data_prep.errors import UserError
from longmix.trainer.checkpoints import wandb_log
from longmix.trainer.checkpoints.run_log import RunLog
from longmix.trainer.cli import main

KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def library(require_or_skip, monkeypatch):
    if importlib.util.find_spec("wandb") is None:
        require_or_skip("wandb", "the extra longmix[wandb] is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    yield
    if sys.modules.get("wandb") is not None:
        sys.modules["wandb"].teardown()  # with it what it has read of the environment


def records_of(path):
    """The records in a file of wandb's: a header of 7 bytes, then pieces in blocks of 32 KiB, each with 4 bytes of
    checksum, 2 of length and 1 of its kind: whole, first, middle, last."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts = (parts if kind in (3, 4) else b"") + data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield Record.FromString(parts)


def history(run):
    """(project and id of every start, rows of the last one): what `wandb sync RUN/wandb/latest-run` sends."""
    ids, rows = set(), []
    for path in sorted((run / "wandb").glob("offline-run-*/*.wandb"), key=os.path.getctime):
        ids.add(path.stem)
        rows = []
        for record in records_of(path):
            if record.HasField("run"):
                ids.add(f"run-{record.run.run_id}")
                assert record.run.project == "mixers"
            if record.HasField("history"):
                items = record.history.item
                rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    assert path.parent == (run / "wandb" / "latest-run").resolve()
    return ids, rows


@pytest.mark.slow
def test_each_start_gives_the_whole_history_under_one_id(read_metrics, tmp_path):
    for first_step, last_step in ((0, 5), (3, 6)):
        log = RunLog(
            tmp_path, True, first_step, 9, False, start_wandb=lambda: wandb_log.WandbLog(tmp_path, "mixers", {"a": 1})
        )
        for step in range(first_step + 1, last_step + 1):
            log.record("train", step, {"loss": 1 / step, "lr": math.nan})
        log.record("eval", last_step, {"loss": 0.5})
        log.close()
        time.sleep(1 - time.time() % 1)  # wandb names its folders by the second
    sys.modules["wandb"].teardown()  # as the end of a process does
    ids, rows = history(tmp_path)
    assert len(ids) == 1 and len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2
    assert (
        [row["step"] for row in rows] == [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6, 6]
    )
    assert [row["_step"] for row in rows] == list(range(7))
    assert [row.get("train/loss") for row in rows] == [*(1 / step for step in range(1, 7)), None]
    assert rows[-1]["eval/loss"] == 0.5 and not any("train/lr" in row for row in rows)


@pytest.mark.slow
@pytest.mark.full
def test_a_killed_and_resumed_run_is_one_history(longmix, run_values, write_run_file, read_metrics, tmp_path):
    run = tmp_path / "run"
    changes = {"log.wandb": "mixers", "optim.max_steps": 16, "checkpoint.every_steps": 3, "eval.every_steps": 5}
    file = write_run_file(tmp_path / "run.yaml", run_values(run, **changes))
    killed = longmix("train", file)
    killed.wait_until(lambda: (run / "metrics.jsonl").is_file() and len(read_metrics(run, "train")) > 7)
    killed.process.kill()
    killed.process.wait()
    code, said = longmix("train", file).wait()
    assert code == 0, said
    ids, rows = history(run)
    assert ids == {f"run-{json.loads((run / 'wandb' / 'longmix.json').read_text())['id']}"}
    assert len(list((run / "wandb").glob("offline-run-*"))) == 2
    for kind in ("train", "eval"):
        records = read_metrics(run, kind)
        of_kind = [row for row in rows if f"{kind}/loss" in row]
        assert [row["step"] for row in of_kind] == [record["step"] for record in records]
        assert [row[f"{kind}/loss"] for row in of_kind] == pytest.approx([record["loss"] for record in records])
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    assert all("train/tokens_seen" in row for row in rows if "train/loss" in row)
    assert yaml.safe_load((run / "config.yaml").read_text())["log"]["wandb"] == "mixers"
    for path in run.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_without_the_library_or_a_key_a_line_says_what_to_do(run_values, write_run_file, tmp_path, capsys, monkeypatch):
    file = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", **{"log.wandb": "mixers"}))
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(UserError, match="no key for Weights & Biases: wandb login, or set WANDB_API_KEY"):
        wandb_log.require_wandb("mixers")
    assert main(["train", file, "--check"]) == 2
    assert "no key for Weights & Biases" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["train", file]) == 2
    assert "log.wandb is mixers, which needs wandb: pip install 'longmix[wandb]'" in capsys.readouterr().err
    assert not (tmp_path / "run" / "checkpoints").exists()


class Refusing:
    """In place of WandbLog: a service that fails at a step."""

    def __init__(self, at):
        self.at, self.steps, self.is_closed = at, [], False

    def record(self, kind, step, figures):
        if step == self.at:
            raise RuntimeError("the network is gone")  # the library has errors of its own
        self.steps.append(step)

    def close(self):
        self.is_closed = True


def test_a_service_that_fails_stops_nothing(tmp_path, capsys, read_metrics):
    (tmp_path / "run").mkdir()
    service = Refusing(at=2)
    log = RunLog(tmp_path / "run", True, 0, 9, tensorboard=False, start_wandb=lambda: service)
    for step in range(1, 5):
        log.record("train", step, {"loss": 1.0})
    log.close()
    said = capsys.readouterr().err
    assert service.steps == [1] and not service.is_closed
    assert said.count("Weights & Biases refuses: the network is gone; nothing more is sent until the next start") == 1
    assert len(read_metrics(tmp_path / "run")) == 4

    def unreachable():
        raise RuntimeError("no answer")

    log = RunLog(tmp_path / "run", True, 0, 9, tensorboard=False, start_wandb=unreachable)
    log.record("train", 1, {"loss": 1.0})
    log.close()
    assert "Weights & Biases refuses: no answer" in capsys.readouterr().err


@pytest.mark.slow
def test_a_service_that_does_not_take_the_rest_in_time_is_left(tmp_path, capsys, monkeypatch):
    import wandb

    log = RunLog(tmp_path, True, 0, 9, False, start_wandb=lambda: wandb_log.WandbLog(tmp_path, "mixers", {}))
    settings = wandb.run.settings
    assert settings.finish_timeout == settings.init_timeout == wandb_log.PATIENCE_SECONDS
    assert settings.finish_timeout_raises and settings.disable_code and settings.disable_git

    def finish(self):
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(wandb.Run, "finish", finish)
        log.close()
    assert f"wandb sync {tmp_path}/wandb/latest-run sends the rest" in capsys.readouterr().err


def test_only_the_first_rank_sends(tmp_path):
    RunLog(tmp_path, False, 0, 9, tensorboard=False, start_wandb=lambda: pytest.fail("a second run")).close()


@pytest.mark.parametrize("project", ["", "a/b", "a" * 129])
def test_a_project_that_cannot_be_is_refused(run_values, write_run_file, tmp_path, capsys, project):
    file = write_run_file(tmp_path / "run.yaml", run_values(tmp_path / "run", **{"log.wandb": project}))
    assert main(["train", file]) == 2
    assert "log.wandb is" in capsys.readouterr().err
