"""A clock that is set back or forward, by a user, by NTP or by a battery that is empty, changes nothing."""

import re
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DAY = 86_400.0
# What asks a clock that can be set, or a file's date.
SETTABLE = re.compile(
    r"\b(time\.time|time_ns|localtime|gmtime|strftime|utcnow|getmtime|getctime|utime|st_[amc]time)|\.(now|today)\("
    r"|from time import"
)
# Those that may ask all the same, and why.
ALLOWED = {
    "data_prep/text/shares.py",  # a share's signs of life: that a file's date has changed, not which it is
    "trainer/checkpoints/run_log.py",  # TensorBoard's dates, from the clock at the start
    "trainer/samples/shard_cache.py",  # the order of use, as it was noted
    "trainer/samples/verified_copies.py",  # notes it, so that no clock turns it around; whether a file was changed
}


def test_nothing_else_asks_a_clock_that_can_be_set():
    paths = [path for part in ("data_prep", "kernels", "modeling", "trainer") for path in (ROOT / part).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in paths if SETTABLE.search(path.read_text())}
    assert found == ALLOWED and len(paths) > 200


def set_again_and_again(monkeypatch):
    """Every look at the clock finds it set back by a day, and every fifth forward by a week."""
    looks, told = [0], time.time

    def look():
        looks[0] += 1
        return told() - DAY * looks[0] + 7 * DAY * (looks[0] // 5)

    monkeypatch.setattr(time, "time", look)
    monkeypatch.setattr(time, "time_ns", lambda: int(look() * 1e9))


@pytest.mark.slow
@pytest.mark.full
def test_a_clock_that_is_set_changes_no_result_and_stops_nothing(train, read_metrics, untimed, tmp_path, monkeypatch):
    changes = {"optim.max_steps": 8, "checkpoint.asynchronous": True, "run.max_hours": 1.0, "run.hang_minutes": 0.5}
    changes["log.tensorboard"] = True
    assert train(tmp_path / "reference", **changes).code == 0
    set_again_and_again(monkeypatch)
    assert train(tmp_path / "run", **changes, **{"run.stop_at_step": 3}).code == 75
    assert train(tmp_path / "run", **changes).code == 0
    records = [read_metrics(tmp_path / name) for name in ("reference", "run")]
    assert untimed(records[0]) == untimed(records[1])
    trained = [record for record in records[1] if record["kind"] == "train"]
    assert all(record["tokens_per_second"] > 0 and 0 <= record["data_wait_fraction"] <= 1 for record in trained)
    for start in (tmp_path / "run" / "tensorboard").rglob("events.*"):
        dates = dates_of(start)
        assert dates == sorted(dates) and 0 <= dates[-1] - dates[0] < DAY


def dates_of(events):
    """The times of the points in a file of TensorBoard's."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [event.wall_time for event in EventFileLoader(str(events)).Load() if event.summary.value]
