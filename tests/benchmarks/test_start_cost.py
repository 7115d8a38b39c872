"""What a start costs, from real ones."""

import csv

import pytest


@pytest.mark.slow
@pytest.mark.full
def test_each_number_of_processes_is_recorded(script, monkeypatch, tmp_path):
    record = script("record")
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results.csv")
    monkeypatch.setattr("sys.argv", ["start_cost.py", "--processes", "1", "2"])
    script("start_cost").main()
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = ["1 processes, all connections", "2 processes, all connections", "2 processes, connections as needed"]
    assert list(dict.fromkeys(row["case"] for row in rows)) == names
    assert len(rows) == 6 * len(names)
    assert all(float(row["value"]) > 0 for row in rows if row["unit"])
    sockets = [float(row["value"]) for row in rows if row["figure"] == "sockets of a process"]
    assert sockets[1] > 0
