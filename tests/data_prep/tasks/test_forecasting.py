"""Time series: standardised by their training rows, cut in time, filled from nothing later than their split."""

import csv
import datetime

import numpy as np
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import FILE_NAME, Manifest
from longmix.data_prep.tasks import forecasting
from longmix.data_prep.tasks.forecasting import ForecastingSettings, prepare_forecasting
from longmix.data_prep.tasks.series_files import Reading, read_series
from longmix.trainer.cli import main

START = datetime.datetime(2020, 1, 30)


def write_csv(path, rows, minutes=24 * 60, header="date,a,b"):
    moments = (START + datetime.timedelta(minutes=minutes * number) for number in range(len(rows)))
    path.write_text("\n".join([header, *(f"{moment},{row}" for moment, row in zip(moments, rows, strict=True)), ""]))
    return str(path)


def walk(count, seed=0):
    """Two variables that drift: the mean of each part is another one."""
    steps = np.random.default_rng(seed).normal(loc=(1.0, -3.0), size=(count, 2))
    return np.round(steps.cumsum(axis=0), 3)


def as_rows(values):
    return [",".join(map(str, row)) for row in values.tolist()]


@pytest.fixture
def prepare(tmp_path):
    """prepare(rows, minutes, header, output, **settings) -> manifests of tmp_path/OUTPUT."""

    def make(rows, minutes=24 * 60, header="date,a,b", output="out", **settings):
        source = write_csv(tmp_path / "series.csv", rows, minutes, header)
        return prepare_forecasting(ForecastingSettings(source, **settings), tmp_path / output)

    return make


def stored(folder):
    files = sorted(folder.glob("*.parquet"))
    return np.asarray([row for file in files for row in pq.read_table(file)["series"].to_pylist()])


def test_a_series_is_cut_in_time_and_standardised_by_its_training_rows(prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(forecasting, "LOOKBACK", 30)
    values = walk(200)
    manifests = prepare(as_rows(values))
    mean = [sum(column[:140]) / 140 for column in values.T.tolist()]
    scale = [
        (sum((x - m) ** 2 for x in column[:140]) / 140) ** 0.5
        for column, m in zip(values.T.tolist(), mean, strict=True)
    ]
    for (name, manifest), (first, start, end) in zip(
        manifests.items(), ((0, 0, 140), (110, 140, 160), (130, 160, 200)), strict=True
    ):
        np.testing.assert_allclose(stored(tmp_path / "out" / name), (values[first:end] - mean) / scale, atol=1e-5)
        assert Manifest.load(tmp_path / "out" / name) == manifest
        assert manifest.samples == end - first and manifest.report["rows"] == [start, end]
        assert manifest.series["lookback"] == start - first and manifest.series["names"] == ["a", "b"]
        np.testing.assert_allclose(manifest.series["mean"], mean)
        np.testing.assert_allclose(manifest.series["scale"], scale)
        assert manifest.series["season"] == 7
        assert manifest.report["dates"][0] == str(START + datetime.timedelta(days=start))


def test_what_comes_later_changes_nothing_before_it(prepare, tmp_path):
    """The training rows do not know of the test rows: not in their scale, nor in what fills them."""
    rows = as_rows(walk(100))
    rows[69] = ",1"  # the last training row
    rows[79] = "2,"
    rows[0] = "?,NaN"
    prepare(rows, missing="interpolate")
    parts = {name: stored(tmp_path / "out" / name) for name in ("train", "validation")}
    assert all(np.isfinite(values).all() for values in parts.values())
    prepare([*rows[:80], *as_rows(1000 * walk(20, seed=1))], missing="interpolate", output="other")
    for name, values in parts.items():
        np.testing.assert_array_equal(stored(tmp_path / "other" / name), values)


def test_missing_values_lie_on_the_line_between_their_neighbours():
    values = np.array([np.nan, 2, np.nan, np.nan, 5, np.nan, np.nan, 11, np.nan, 20])[:, None]
    series = forecasting.Series(["a"], [""] * 10, datetime.timedelta(days=1), values)
    filled = forecasting.fill(series, (6, 8, 10), "x.csv")
    np.testing.assert_allclose(filled[:, 0], [2, 2, 3, 4, 5, 5, 9, 11, 15.5, 20])
    # A piece that begins at row 4, and one of nothing but missing values.
    pieces = forecasting.fill(series, (6, 8, 10), "x.csv", [2, 4, 8])
    np.testing.assert_allclose(pieces[:, 0], [2, 2, 2, 2, 5, 5, 9, 11, 20, 20])
    late = forecasting.Series(
        ["a"], [""] * 10, datetime.timedelta(days=1), np.where(np.arange(10) < 6, np.nan, 1.0)[:, None]
    )
    with pytest.raises(UserError, match=r"x\.csv: column 'a' has no value in the 6 training rows"):
        forecasting.fill(late, (6, 8, 10), "x.csv")


def test_the_ett_split_counts_months_of_thirty_days(prepare, tmp_path):
    per_day = 2
    manifests = prepare(["1,2"] * (600 * per_day + 5), minutes=720, split="ett")
    assert [manifest.report["rows"] for manifest in manifests.values()] == [[0, 720], [720, 960], [960, 1200]]
    assert all(manifest.report["not_used"] == 5 and manifest.series["season"] == 2 for manifest in manifests.values())
    assert manifests["train"].series["scale"] == [1.0, 1.0]  # constant


def test_a_variable_that_is_constant_in_training_is_not_divided_by_rounding(prepare, tmp_path):
    noisy = [f"{1e8 + (number % 2) * 1e-7!r}" for number in range(700)]  # far below what a mean of 1e8 is exact to
    # A number whose mean over 700 rows is rounded to another one, in whatever order numpy adds.
    alike = next(value for value in (np.arange(1, 1000) / 10).tolist() if np.full((700, 2), value).mean(0)[0] != value)
    rows = [f"{alike},{value}" for value in noisy] + [f"{alike},1e8"] * 100 + [f"{alike + 0.5},100000003"] * 200
    manifests = prepare(rows)
    assert manifests["train"].series["scale"] == [1.0, 1.0]
    assert manifests["train"].series["mean"] == [alike, pytest.approx(1e8)]
    train, test = (stored(tmp_path / "out" / name)[-200:] for name in ("train", "test"))
    assert (train[:, 0] == 0).all() and np.abs(train[:, 1]).max() < 1e-6
    np.testing.assert_allclose(test, [[0.5, 3]] * 200, atol=1e-5)
    # Two neighbours among the floats have a deviation, which is rounding alone.
    neighbours = np.resize([0.1, np.nextafter(0.1, 1)], (700, 1))
    assert neighbours.std() > 0 and forecasting.statistics(neighbours)[1] == 1
    # Small is not constant.
    np.testing.assert_allclose(forecasting.statistics(np.array([[1e-30], [3e-30]]))[1], 1e-30)


@pytest.mark.parametrize(
    ("rows", "split", "minutes", "expected"),
    [
        (17420, "ett", 60, (8640, 11520, 14400)),
        (69680, "ett", 15, (34560, 46080, 57600)),
        (7588, "ratio", 1440, (5311, 6071, 7588)),
        (966, "ratio", 10080, (676, 773, 966)),
    ],
)
def test_borders_are_those_of_the_published_experiments(rows, split, minutes, expected):
    assert forecasting.split_borders(rows, split, datetime.timedelta(minutes=minutes), "x") == expected


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ({"minutes": 15}, 96),
        ({"hours": 1}, 24),
        ({"days": 1}, 7),
        ({"days": 7}, 52),
        ({"days": 31}, 12),
        ({"hours": 7}, None),
    ],
)
def test_seasons(interval, expected):
    interval = datetime.timedelta(**interval)
    for rows in (9, 1000):
        assert forecasting.season(interval, np.full(rows, interval.total_seconds())) == expected


@pytest.mark.parametrize(("steps", "expected"), [([1, 1, 1, 1, 3], 5), ([1, 1, 1, 1, 1, 1, 1, 1, 1, 15], 10)], ids=str)
def test_a_season_has_the_rows_that_there_are(steps, expected):
    """Days without weekends, hours without nights; now and then one more is missing."""
    hours = np.array(steps * 40) * (24 if expected == 5 else 1)
    hours[7:9] = hours[7] + hours[8], 0
    interval = datetime.timedelta(days=1) if expected == 5 else datetime.timedelta(hours=1)
    assert forecasting.season(interval, 3600.0 * hours[hours > 0]) == expected


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_fields_between_other_marks_and_decimal_commas(delimiter, tmp_path):
    lines = ["date,a,b", *(f"2020-01-{day:02d},{day}.25,{-day}e-1" for day in range(1, 13))]
    (tmp_path / "commas.csv").write_text("\n".join(lines))
    expected = read_series(tmp_path / "commas.csv").values
    (tmp_path / "other.csv").write_text("\n".join(lines).replace(",", delimiter))
    np.testing.assert_array_equal(read_series(tmp_path / "other.csv").values, expected)
    german = "\n".join(lines).replace(",", delimiter).replace(".", ",")
    (tmp_path / "german.csv").write_text(german)
    np.testing.assert_array_equal(read_series(tmp_path / "german.csv").values, expected)
    # 1.234 beside 1,5 may be a thousand: nobody knows, so nobody guesses. 1.234,5 is no number at all.
    (tmp_path / "both.csv").write_text(german.replace("7,25", "7.250"))
    with pytest.raises(UserError, match=r"holds '1,25' and '7.250': a number may have a comma or a point"):
        read_series(tmp_path / "both.csv")
    (tmp_path / "thousands.csv").write_text(german.replace("7,25", "1.007,25"))
    with pytest.raises(UserError, match=r"row 7, column 'a' holds '1.007,25', which is no number"):
        read_series(tmp_path / "thousands.csv")
    # Between commas a comma is none of decimals.
    (tmp_path / "quoted.csv").write_text("\n".join(lines).replace("7.25", '"7,25"'))
    with pytest.raises(UserError, match=r"holds '7,25', which is no number"):
        read_series(tmp_path / "quoted.csv")


@pytest.mark.parametrize(("begins", "said"), [(b"PAR1\x15\x04", "a Parquet file"), (b"\x1f\x8b\x08\x00", "compressed")])
def test_files_that_are_no_text_are_called_what_they_are(begins, said, tmp_path):
    (tmp_path / "series.csv").write_bytes(begins + b"\xff" * 9)
    with pytest.raises(UserError, match=f"is {said}"):
        read_series(tmp_path / "series.csv")


def test_dates_may_be_written_in_several_ways(tmp_path):
    days = [f"1990/1/{day} 0:00,{day}" for day in range(1, 13)]
    (tmp_path / "x.csv").write_text("\n".join(["date,a", *days]) + "\n\n")
    series = forecasting.read_series(tmp_path / "x.csv")
    assert series.interval == datetime.timedelta(days=1) and series.values[:, 0].tolist() == list(range(1, 13))


GOOD = as_rows(walk(12))


@pytest.mark.parametrize(
    ("rows", "header", "settings", "message"),
    [
        ([*GOOD[:4], "1.5,", *GOOD[5:]], "date,a,b", {}, r"row 5, column 'b' holds no value: .*--missing interpolate"),
        ([*GOOD[:4], "n/a,2", *GOOD[5:]], "date,a,b", {}, "row 5, column 'a' holds no value"),
        (
            [*GOOD[:2], "SSW,2", *GOOD[3:]],
            "date,a,b",
            {"missing": "interpolate"},
            r"row 3, column 'a' holds 'SSW'.*--drop",
        ),
        ([*GOOD[:2], "inf,2", *GOOD[3:]], "date,a,b", {}, "row 3, column 'a' holds 'inf', which is no number"),
        ([*GOOD[:2], "1_0,2", *GOOD[3:]], "date,a,b", {}, "row 3, column 'a' holds '1_0', which is no number"),
        (
            [*GOOD[:2], "1,1e300", *GOOD[3:]],
            "date,a,b",
            {},
            r"row 3, column 'b' holds '1e300', which is beyond float32",
        ),
        ([*GOOD[:2], "-1e308,2", *GOOD[3:]], "date,a,b", {}, "row 3, column 'a' holds '-1e308', which is beyond"),
        (
            [f"{number}e-30,1" for number in range(11)] + ["3e38,1"],
            "date,a,b",
            {},
            r"row 12, column 'a' is 1\.\de\+68 standard deviations from the mean of the training rows",
        ),
        ([*GOOD[:2], "1,2,3", *GOOD[3:]], "date,a,b", {}, "row 3 has 4 fields, the header has 3"),
        (GOOD, "day,a,b", {}, "no column named date; its first row holds 'day', 'a', 'b'"),
        (GOOD, "date,a,a", {}, "two columns named 'a'"),
        (GOOD, "date,a,b", {"drop_columns": ("c",)}, "--drop-columns names 'c', .* it has 'a', 'b'"),
        (GOOD, "date,a,b", {"drop_columns": ("a", "b")}, "has no variable beside date and what is dropped"),
        (GOOD[:9], "date,a,b", {}, "has 9 rows, but a series takes at least 10"),
        (GOOD, "date,a,b", {"split": "ett"}, "takes 20 months of 30 days, 600 rows, but .* has 12"),
        (GOOD, "date,a,b", {"split": "half"}, "--split is 'half', but must be one of ratio, ett"),
    ],
)
def test_what_is_no_series_is_refused_in_one_line(rows, header, settings, message, prepare):
    with pytest.raises(UserError, match=message) as told:
        prepare(rows, header=header, **settings)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("last", ["nothing", "3e38"])
def test_blank_lines_are_not_counted_as_rows_by_any_message(tmp_path, last):
    days = [f"2020-01-{day:02},{day}e-30\n\n" for day in range(1, 12)]
    (tmp_path / "x.csv").write_text("".join(["date,a\n", *days, f"2020-01-12,{last}\n"]))
    with pytest.raises(UserError, match="row 12, column 'a'"):
        prepare_forecasting(ForecastingSettings(str(tmp_path / "x.csv")), tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no column named date; its first row holds nothing"),
        (b"date,a\n\xff\xfe\n", "is not UTF-8"),
        (
            b"date,a\n2020-01-02,1\n2020-01-01,2\n",
            "row 2, column 'date' goes back to '2020-01-01': sort the rows by it, or .* series its own columns$",
        ),
        (
            b"date,a\n2020-10-25 02:45,1\n2020-10-25 02:00,2\n",
            "; or write dates with their offsets from UTC, if clocks",
        ),
        (b"date,a\nyesterday,1\n", "row 1, column 'date' holds 'yesterday', which is no date .* or 01.07.2016: write"),
        (
            b"date,a\n" + b"".join(b"2020-01-%02d,1\n2020-01-%02d,2\n" % (day, day) for day in range(1, 10)),
            "9 of 18 rows repeat the date of the row before: give each of several series .*--gaps split",
        ),
        (
            b",date,a\n" + b"".join(b"%d,2020-01-%02d,%d\n" % (day, day, day % 3) for day in range(1, 15)),
            r"column '' holds the numbers of rows, as pandas writes them .*: leave it out \(--drop-columns ''\)",
        ),
        (
            b"date,Unnamed: 0.1,a\n"
            + b"".join(b"2020-01-%02d,%d,%d\n" % (day, 40 - 2 * day, day % 3) for day in range(1, 15)),
            r"leave it out \(--drop-columns 'Unnamed: 0\.1'\)",
        ),
        (b'date,a\n2020-01-01,"' + b"1" * 200000 + b'"\n', "is no CSV file"),
        (
            b'date,a,b\n2020-01-01,1,"left open\n2020-01-02,2,x\n',
            "unexpected end of data .is a quotation mark left open",
        ),
    ],
)
def test_files_that_hold_something_else(content, message, tmp_path):
    csv.field_size_limit(131_072)  # of the process, which the readers of fine-tuning raise
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare_forecasting(ForecastingSettings(str(tmp_path / "x.csv")), tmp_path / "out")
    with pytest.raises(UserError, match=r"--source .* cannot be read"):
        prepare_forecasting(ForecastingSettings(str(tmp_path)), tmp_path / "out")


def test_the_command_makes_the_same_folder_once(tmp_path, capsys):
    source = write_csv(tmp_path / "x.csv", [f"{row},north" for row in as_rows(walk(60))], header="date,a,b,wind")
    command = ["prepare", "forecasting", "--source", source, "--output", str(tmp_path / "out")]
    assert main(command) == 2
    assert "row 1, column 'wind' holds 'north'" in capsys.readouterr().err
    assert main([*command, "--drop-columns", "wind"]) == 0
    printed = capsys.readouterr().out
    assert "validation: 6 time steps of 2 variables" in printed and "42 more before them for inputs" in printed
    assert printed.splitlines()[-1] == f"written to {tmp_path / 'out'}: train/, validation/, test/"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob(FILE_NAME)}
    assert main([*command, "--drop-columns", "wind"]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob(FILE_NAME)}
    assert main([*command, "--drop-columns", "wind", "a"]) == 2
    assert "already holds other data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lookback": 200}, "lookback is 200, but must be a whole number below"),
        ({"scale": [1.0, 0.0]}, r"series\.scale is .*a scale above 0"),
        ({"mean": [1.0]}, r"series\.mean is"),
        ({"season": 0}, r"series\.season is 0"),
        ({"names": ["a"], "mean": [0.0], "scale": [1.0]}, r"columns is .* but must be .*where there is a series"),
        ({"names": "a"}, r"series\.names is 'a'"),
        ({"more": 1}, "series is .* but must be a map with names"),
    ],
)
def test_a_manifest_that_misleads_is_refused(change, message, prepare, tmp_path):
    manifest = prepare(as_rows(walk(40)))["train"]
    manifest.series = {**manifest.series, **change}
    manifest.save(tmp_path / "out" / "train")
    with pytest.raises(UserError, match=message):
        Manifest.load(tmp_path / "out" / "train")


def rows_of_load(tmp_path, values, dates=None):
    dates = dates or [f"2020-01-{day:02d}" for day in range(1, len(values) + 1)]
    path = tmp_path / "load.tsv"
    path.write_text("\n".join(["date\tload", *(f"{date}\t{value}" for date, value in zip(dates, values, strict=True))]))
    return path


def test_commas_of_thousands_are_no_decimals(tmp_path):
    with pytest.raises(UserError, match="column 'load' holds '1,000' beside '998', and no column a comma that must"):
        read_series(rows_of_load(tmp_path, ["998", "999", "1,000", "1,010", *["998"] * 8]))
    # One other number says what commas are; so do zeros before them.
    assert read_series(rows_of_load(tmp_path, ["998", "1,000", "1,5", *["7"] * 9])).values[1] == 1
    assert read_series(rows_of_load(tmp_path, ["998", "0,125", *["7"] * 10])).values[1] == 0.125
    assert read_series(rows_of_load(tmp_path, ["99,875", "12,125", *["7"] * 10])).values[0] == 99.875
    # So does another column; a code of missing values says nothing.
    lines = [f"2020-01-{day:02d}\t{'91,125' if day > 2 else '100'}\t1,5" for day in range(1, 13)]
    (tmp_path / "two.tsv").write_text("\n".join(["date\tload\twind", *lines]))
    assert read_series(tmp_path / "two.tsv").values[2].tolist() == [91.125, 1.5]
    assert read_series(rows_of_load(tmp_path, ["1500", "998", "1,125", *["7"] * 9])).values[2] == 1.125
    reading = Reading(missing_values=("-999",), missing_allowed=True)
    assert read_series(rows_of_load(tmp_path, ["-999", "10,125", *["7"] * 10]), reading).values[1] == 10.125


def test_an_hour_that_comes_twice_has_two_offsets(tmp_path):
    hours = [("01", "02"), ("02", "02"), ("02", "01"), ("03", "01"), *((f"{hour:02d}", "01") for hour in range(4, 14))]
    dates = [f"2020-10-25 {hour}:00:00+{offset}:00" for hour, offset in hours]
    found = read_series(rows_of_load(tmp_path, ["1"] * 14, dates))
    assert set(found.seconds) == {3600.0} and found.dates == dates
    with pytest.raises(UserError, match=r"row 1, column 'date' holds '0001-01-01 00:00:00\+05:00', which is no date"):
        read_series(rows_of_load(tmp_path, ["1"] * 14, ["0001-01-01 00:00:00+05:00", *dates[1:]]))


def test_much_that_is_filled_in_is_told(tmp_path):
    """A sensor that fails is no constant that was measured."""
    rows = [
        f"2020-01-01 {hour // 60:02}:{hour % 60:02},{hour % 5},{hour % 7 if hour < 190 else ''}" for hour in range(200)
    ]
    (tmp_path / "x.csv").write_text("\n".join(["date,whole,failing", *rows]) + "\n")
    settings = ForecastingSettings(str(tmp_path / "x.csv"), missing="interpolate")
    told = [
        line
        for line in forecasting.describe(prepare_forecasting(settings, tmp_path / "out"), "out")
        if "filled in" in line
    ]
    told_of_it = (
        "warning: 25% of the values of 'failing' in test are filled in, and learned or scored as if they had been"
    )
    assert told == [f"{told_of_it} measured"]
