"""The dates of what a forecast says, by the rule of those before it."""

import re
from datetime import datetime, timedelta

import pytest

from longmix.data_prep.errors import UserError
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
        (["2024-01-01T00:00:00.25", "2024-01-01T00:00:00.5", "2024-01-01T00:00:00.75"], ["2024-01-01T00:00:01.00"]),
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
    assert dates_ahead(before, len(before), len(ahead)) == ahead


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
    assert dates_ahead(before, len(before), 2) is None


def days(first, last, hours=(0,), form="%Y-%m-%d"):
    """Texts of the working days of January and February 2024, at hours of each."""
    found = [datetime(2024, 1, 1) + timedelta(days=number) for number in range(first - 1, last)]
    return [(day + timedelta(hours=hour)).strftime(form) for day in found if day.weekday() < 5 for hour in hours]


def hours(count, step, start="2024-01-01 10:00", without=()):
    """Texts of rows that are `step` minutes apart, without some of them."""
    first = datetime.fromisoformat(start)
    found = [first + timedelta(minutes=step * row) for row in range(count) if row not in without]
    return [moment.isoformat(" ", "minutes") for moment in found]


def test_no_rule_leads_where_a_longer_table_has_no_rows():
    # The last five rows are a whole week, the last four, hours of one day: the rows before tell of weekends, nights.
    assert dates_ahead(days(1, 12), 5, 3) == ["2024-01-15", "2024-01-16", "2024-01-17"]
    assert dates_ahead(days(8, 12), 5, 2) == ["2024-01-13", "2024-01-14"]  # of weekends nothing is known
    trade = days(1, 5, range(9, 17), "%Y-%m-%d %H:%M")
    assert dates_ahead(trade, 4, 2) is None
    assert dates_ahead(trade[:7], 6, 2) == ["2024-01-01 16:00", "2024-01-01 17:00"]
    bars = [text for day in range(1, 6) for text in hours(30, 13, f"2024-01-0{day} 09:30")]
    assert dates_ahead(bars, 24, 2) is None and dates_ahead(bars[:30], 24, 1) == ["2024-01-01 16:00"]
    # Saturdays count, too, and Mondays that are never there.
    six_days = [f"2024-01-{day:02}" for day in range(1, 32) if day % 7]
    assert dates_ahead(six_days[:-4], 5, 2) is None and six_days[-5] == "2024-01-26"
    assert dates_ahead([text for text in days(1, 31) if datetime.fromisoformat(text).weekday()], 4, 2) is None
    assert (
        dates_ahead([text for text in days(1, 31) if datetime.fromisoformat(text).weekday() in (0, 2, 4)], 3, 2) is None
    )


def test_a_row_that_is_lost_is_no_calendar():
    assert dates_ahead(hours(112, 15, without=[16]), 24, 1) == ["2024-01-02 14:00"]
    assert dates_ahead(hours(500, 60, without=[16, *range(90, 99)]), 24, 1) == ["2024-01-22 06:00"]
    assert dates_ahead([f"2024-01-{day:02}" for day in range(1, 32) if day != 7], 5, 1) == ["2024-02-01"]
    # Other times of the day than ever before: seven hours make no day, and a schedule may change.
    assert dates_ahead(hours(12, 420)[:10], 5, 2) == hours(12, 420)[10:]
    changed = [*hours(200, 60), *hours(26, 15, "2024-01-09 18:00")]
    assert dates_ahead(changed, 24, 1) == ["2024-01-10 00:30"]


@pytest.mark.parametrize(
    ("before", "ahead"),
    [
        # What the last one leaves out stands in others.
        (["2024-03-28 22:00:00", "2024-03-28 23:00:00", "2024-03-29"], ["2024-03-29 01:00:00"]),
        (["2024-01-01 00:00:00.5", "2024-01-01 00:00:01.0", "2024-01-01 00:00:01.5"], ["2024-01-01 00:00:02.0"]),
        (["2024-01-01 00:00:00", "2024-01-01 00:00:00.500", "2024-01-01 00:00:01"], ["2024-01-01 00:00:01.500"]),
        (
            ["2024-01-01 00:00:00.000Z", "2024-01-01 00:00:01.000Z", "2024-01-01 00:00:02.000Z"],
            ["2024-01-01 00:00:03.000Z"],
        ),
        (["20240227", "20240228", "20240229"], ["20240301"]),
        (["20240103T0000", "20240103T1200", "20240104T0000"], ["20240104T1200"]),
        (["2024-01-01 00:00+0100", "2024-01-01 01:00+0100", "2024-01-01 02:00+0100"], ["2024-01-01 03:00+0100"]),
    ],
)
def test_dates_say_as_much_as_those_before(before, ahead):
    assert dates_ahead(before, 3, 1) == ahead


def test_dates_that_fit_no_form_are_left_out():
    assert dates_ahead(["2024-W01-1", "2024-W01-2", "2024-W01-3"], 3, 1) == ["2024-01-04T00:00:00"]
    # Neither the last one nor the longest says seconds.
    assert dates_ahead(["2024-01-01 00:00", "2024-01-01 00:00:30", "2024-01-01 00:01"], 3, 1) == ["2024-01-01 00:01:30"]


@pytest.mark.parametrize(
    ("header", "rows", "columns", "expected", "told"),
    [
        ("date,x", ["2024-01-01,1", "2024-01-02,2", "2024-01-03,3"], None, ("date", ["2024-01-04", "2024-01-05"]), ""),
        ("ds,date", ["2024-01-01,1", "2024-01-02,2", "2024-01-03,3"], ["ds"], ("ds", ["2024-01-04", "2024-01-05"]), ""),
        (
            "row,x",
            ["2024-01-01,1", "2024-01-02,2", "2024-01-03,3"],
            ["row"],
            ("date", ["2024-01-04", "2024-01-05"]),
            "",
        ),
        (
            "forecast_x,x",
            ["2024-01-01,1", "2024-01-02,2", "2024-01-03,3"],
            ["forecast_x"],
            ("date", ["2024-01-04", "2024-01-05"]),
            "",
        ),
        (
            "day,time,x",
            ["01.04.2024,01:00,1", "01.04.2024,02:00,2", "01.04.2024,03:00,3"],
            ["day", "time"],
            ("date", ["01.04.2024 04:00", "01.04.2024 05:00"]),
            "",
        ),
        (
            "day,time,x",
            ["2024-04-01 ,01:00+02:00,1", "2024-04-01, 02:00+02:00,2", "2024-04-01,03:00+02:00,3"],
            ["day", "time"],
            ("date", ["2024-04-01 04:00+02:00", "2024-04-01 05:00+02:00"]),
            "",
        ),
        (
            "year,month,day,x",
            ["2024,1,31,1", "2024,2,29,2", "2024,3,31,3"],
            ["year", "month", "day"],
            ("date", ["2024-04-30 00:00:00", "2024-05-31 00:00:00"]),
            "",
        ),
        # No dates; some that cannot be read, that say too little, and that follow no rule.
        ("x,y", ["1,1", "2,2", "3,3"], None, None, ""),
        (
            "date,x",
            ["2024-01-01,1", "?,2", "2024-01-03,3"],
            None,
            None,
            "note: no dates are read: .*line 3: date holds",
        ),
        ("date,x", ["2024-01-01,1", "2024-01-01,2", "2024-01-02,3"], None, None, "most rows of .* the date of the row"),
        (
            "date,x",
            ["2024-01-01,1", "2024-01-02,2", "2024-01-05,3"],
            None,
            None,
            "note: the forecast has no dates, for",
        ),
    ],
)
def test_the_columns_of_the_date_are_those_that_were_prepared(header, rows, columns, expected, told, tmp_path, capsys):
    path = tmp_path / "series.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    series = {"names": ["x"], **({} if columns is None else {"date_columns": columns})}
    assert dates_after(open_table(str(path)), series, 3, 2) == expected
    err = capsys.readouterr().err
    assert re.search(told, err) if told else err == ""


def test_rows_that_go_back_again_and_again_are_no_clocks(tmp_path):
    path = tmp_path / "series.csv"
    stacked = ["date,x", *(f"2024-01-01 00:{minute:02},1" for _ in range(3) for minute in range(30))]
    path.write_text("\n".join(stacked))
    with pytest.raises(UserError, match=r"line 32: 'date' goes back to '2024-01-01 00:00'"):
        dates_after(open_table(str(path)), {"names": ["x"]}, 3, 2)


def test_rows_that_go_back_are_refused_but_for_clocks(tmp_path):
    path = tmp_path / "series.csv"
    for hour, is_refused in ((2, False), (1, True)):
        path.write_text(
            f"date,x\n2024-01-01 01:00,1\n2024-01-01 03:00,2\n2024-01-01 0{hour}:00,3\n2024-01-02 00:00,4\n"
        )
        if is_refused:
            with pytest.raises(UserError, match=r"line 4: 'date' goes back to '2024-01-01 01:00': sort the rows by it"):
                dates_after(open_table(str(path)), {"names": ["x"]}, 3, 2)
        else:
            assert dates_after(open_table(str(path)), {"names": ["x"]}, 3, 2) is None


def test_a_model_keeps_the_columns_of_the_date():
    fields = {"split": "train", "split_rule": "made", "columns": {}}
    series = {"names": ["x"], "mean": [0.0], "scale": [1.0], "lookback": 0, "season": None}
    for task, dates in (({"date_columns": ["ds"]}, {"date_columns": ["ds"]}), ({}, {}), ("made", {})):
        manifest = Manifest(**fields, series=series, report={"task": task})
        assert inputs_of(manifest).series == {"names": ["x"], "mean": [0.0], "scale": [1.0], **dates}
