"""The dates of what a forecast says, by the rule of those before it."""

import pytest

from longmix.data_prep.manifest import Manifest
from longmix.trainer.export.card import inputs_of
from longmix.trainer.finetune.records import open_table
from longmix.trainer.prediction.dates_ahead import dates_ahead
from longmix.trainer.prediction.series_tables import dates_after

WORKING = ["2024-02-26", "2024-02-27", "2024-02-28", "2024-02-29", "2024-03-01", "2024-03-04", "2024-03-05"]


@pytest.mark.parametrize(
    ("before", "ahead"),
    [
        # The same time from row to row, in the form of the last one.
        (["2023-12-31 22:00", "2023-12-31 23:00", "2024-01-01 00:00"], ["2024-01-01 01:00", "2024-01-01 02:00"]),
        (["2024-02-27", "2024-02-28", "2024-02-29"], ["2024-03-01", "2024-03-02"]),
        (["2024-02-15", "2024-02-22", "2024-02-29"], ["2024-03-07", "2024-03-14"]),
        (["2024/02/28 12:00", "2024/02/29 00:00", "2024/02/29 12:00"], ["2024/03/01 00:00", "2024/03/01 12:00"]),
        (["29.2.2024", "1.3.2024", " 2.3.2024 "], ["03.03.2024", "04.03.2024"]),
        (["2024-01-01T00:00:00Z", "2024-01-01T00:00:30Z", "2024-01-01T00:01:00Z"], ["2024-01-01T00:01:30Z"]),
        (["2024-01-01T00:00:00.25", "2024-01-01T00:00:00.5", "2024-01-01T00:00:00.75"], ["2024-01-01T00:00:01"]),
        (["20240101", "20240102", "20240103"], ["2024-01-04T00:00:00"]),
        # Whole months: on one day, on the last one, quarters and years.
        (["2023-11-01", "2023-12-01", "2024-01-01"], ["2024-02-01", "2024-03-01", "2024-04-01"]),
        (["2023-11-30", "2023-12-31", "2024-01-31"], ["2024-02-29", "2024-03-31", "2024-04-30"]),
        (["2023-06-30", "2023-07-30", "2023-08-30"], [f"{month}-30" for month in ("2023-09", "2023-10", "2023-11")]),
        (["2023-11-30", "2023-12-30", "2024-01-30"], ["2024-02-29", "2024-03-30"]),
        (["2023-04-01", "2023-07-01", "2023-10-01"], ["2024-01-01", "2024-04-01"]),
        (["2020-02-29", "2024-02-29", "2028-02-29"], ["2032-02-29"]),
        (["2021-12-31 00:00:00", "2022-12-31 00:00:00", "2023-12-31 00:00:00"], ["2024-12-31 00:00:00"]),
        # Working days; a holiday among many is none of the rule's.
        (WORKING, ["2024-03-06", "2024-03-07", "2024-03-08", "2024-03-11"]),
        (
            [
                day
                for day in [*WORKING, "2024-03-06", "2024-03-07", "2024-03-08", "2024-03-11", "2024-03-12"]
                if day != "2024-03-06"
            ],
            ["2024-03-13"],
        ),
        # Offsets: the same one, and one that is changed on the way, where time passes evenly.
        (["2024-01-01T00:00+01:00", "2024-02-01T00:00+01:00", "2024-03-01T00:00+01:00"], ["2024-04-01T00:00+01:00"]),
        (["2024-03-31 00:00+01:00", "2024-03-31 01:00+01:00", "2024-03-31 03:00+02:00"], ["2024-03-31 04:00+02:00"]),
    ],
)
def test_dates_follow_the_rule_of_those_before(before, ahead):
    assert dates_ahead(before, len(ahead)) == ahead


@pytest.mark.parametrize(
    "before",
    [
        ["2024-01-01", "2024-01-02"],  # any rule
        ["2024-01-01", "2024-01-01", "2024-01-01"],
        ["2024-01-01", "2024-01-02", "2024-01-04"],
        ["2024-01-01", "2024-02-02", "2024-03-01"],
        ["2024-01-01", "2024-02-01", "2024-04-01"],
        ["2024-01-01", "2024-02-01", "2024-03-01 12:00"],
        [day for day in WORKING if day != "2024-02-28"],  # one in six is no exception
        ["2024-03-01 09:00", "2024-03-04 10:00", "2024-03-05 09:00"],
        ["2024-03-30 00:00+01:00", "2024-03-31 00:00+01:00", "2024-04-01 00:00+02:00"],
        ["2024-03-30 00:00", "2024-03-31 00:00+01:00", "2024-04-01 00:00+01:00"],
        ["9999-12-29", "9999-12-30", "9999-12-31"],
        ["9999-10-01", "9999-11-01", "9999-12-01"],
    ],
)
def test_there_are_no_dates_without_a_rule_that_goes_on(before):
    assert dates_ahead(before, 2) is None


@pytest.mark.parametrize(
    ("header", "rows", "columns", "expected"),
    [
        ("date,x", ["2024-01-01,1", "2024-01-02,2", "2024-01-03,3"], None, ("date", ["2024-01-04", "2024-01-05"])),
        ("ds,date", ["2024-01-01,1", "2024-01-02,2", "2024-01-03,3"], ["ds"], ("ds", ["2024-01-04", "2024-01-05"])),
        ("row,x", ["2024-01-01,1", "2024-01-02,2", "2024-01-03,3"], ["row"], ("date", ["2024-01-04", "2024-01-05"])),
        (
            "year,month,day,x",
            ["2024,1,31,1", "2024,2,29,2", "2024,3,31,3"],
            ["year", "month", "day"],
            ("date", ["2024-04-30 00:00:00", "2024-05-31 00:00:00"]),
        ),
        # No dates, some that cannot be read, and fewer rows than a window has.
        ("x,y", ["1,1", "2,2", "3,3"], None, None),
        ("date,x", ["2024-01-01,1", "?,2", "2024-01-03,3"], None, None),
        ("date,x", ["2024-01-01,1", "2024-01-02,2"], None, None),
    ],
)
def test_the_columns_of_the_date_are_those_that_were_prepared(header, rows, columns, expected, tmp_path, capsys):
    path = tmp_path / "series.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    series = {} if columns is None else {"date_columns": columns}
    assert dates_after(open_table(str(path)), series, 3, 2) == expected
    assert capsys.readouterr().err == ""


def test_a_model_keeps_the_columns_of_the_date():
    fields = {"split": "train", "split_rule": "made", "columns": {}}
    series = {"names": ["x"], "mean": [0.0], "scale": [1.0], "lookback": 0, "season": None}
    for task, dates in (({"date_columns": ["ds"]}, {"date_columns": ["ds"]}), ({}, {}), ("made", {})):
        manifest = Manifest(**fields, series=series, report={"task": task})
        assert inputs_of(manifest).series == {"names": ["x"], "mean": [0.0], "scale": [1.0], **dates}
