"""What a checkpoint costs, from real runs."""

import csv

import pytest


@pytest.mark.slow
@pytest.mark.full
def test_both_ways_to_write_are_recorded(script, monkeypatch, tmp_path):
    record = script("record")
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results.csv")
    monkeypatch.setattr("sys.argv", ["checkpoint_cost.py", "--steps", "3", "--hidden-size", "64", "--threads", "1"])
    script("checkpoint_cost").main()
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ways = [row["case"].partition(",")[0] for row in rows]
    assert ways == ["blocking", "blocking", "asynchronous", "asynchronous"]
    assert [row["figure"] for row in rows] == ["median wait", "longest wait"] * 2
    assert all(float(row["value"]) > 0 for row in rows)
    sizes = {row["case"].partition(", ")[2] for row in rows}
    assert len(sizes) == 1 and sizes.pop().endswith(" MB")
