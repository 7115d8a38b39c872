"""What a checkpoint costs, from real runs."""

import csv

import pytest


@pytest.mark.slow
@pytest.mark.full
def test_both_ways_to_write_are_recorded(script, monkeypatch, tmp_path):
    record = script("record")
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results.csv")
    words = [
        "--steps",
        "3",
        "--hidden-size",
        "64",
        "--threads",
        "1",
        "--stage",
        "3",
        "--processes",
        "2",
        "--samples",
        "4",
    ]
    monkeypatch.setattr("sys.argv", ["checkpoint_cost.py", *words, "--resume-with", "1"])
    script("checkpoint_cost").main()
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        disk, *rows = csv.DictReader(file)
    assert disk["unit"] == "MB/s"
    names = [row["case"].split(", ") for row in rows]
    assert [name[0] for name in names] == ["blocking"] * 5 + ["asynchronous"] * 5
    assert {tuple(name[1:4]) for name in names} == {("ZeRO 3", "bf16", "2 processes")}
    assert [row["unit"] for row in rows] == ["s", "s", "GiB", "s", "GiB"] * 2
    assert all(float(row["value"]) > 0 for row in [disk, *rows])
    # A process that has loaded torch.
    assert all(float(row["value"]) > 0.1 for row in rows if row["unit"] == "GiB")
    sizes = {name[4] for name in names}
    assert len(sizes) == 1 and sizes.pop().endswith(" MB")
