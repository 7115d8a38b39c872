"""Series as they come: what stands for missing values, readings that stand still, holes in time, odd files."""

import datetime

import numpy as np
import pyarrow.parquet as pq
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tasks.forecasting import ForecastingSettings, describe, prepare_forecasting
from longmix.data_prep.tasks.series_files import Reading, read_series
from longmix.data_prep.tasks.series_quality import gaps
from longmix.trainer.cli import main
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.windows import as_seen
from longmix.trainer.settings.sections import ObjectiveSection

HOUR = datetime.timedelta(hours=1)
START = datetime.datetime(2019, 3, 1)


def make_weather(path, rows=400, seed=0, cells=None, left_out=(), repeated=(), form="iso", encoding="utf-8"):
    """An hourly station file: temperature (with days), rain (mostly none), pressure.

    `cells`: {(row, column): text} that replace what was measured. `left_out`, `repeated`: rows. Rows count from 0.
    """
    generator = np.random.default_rng(seed)
    hours = np.arange(rows)
    temperature = np.round(12 + 6 * np.sin(2 * np.pi * hours / 24) + generator.normal(size=rows), 1)
    rain = np.where(generator.random(rows) < 0.03, np.round(generator.exponential(3, size=rows), 1), 0.0)
    pressure = np.round(1013 + generator.normal(size=rows).cumsum() * 0.3, 1)
    names = ["temperature °C", "rain", "pressure"]
    lines = [("date" if form == "iso" else "year,month,day,hour") + "," + ",".join(names)]
    for row in range(rows):
        if row in left_out:
            continue
        moment = START + row * HOUR
        date = str(moment) if form == "iso" else f"{moment.year},{moment.month},{moment.day},{moment.hour}"
        values = [
            (cells or {}).get((row, place), str(column[row]))
            for place, column in enumerate((temperature, rain, pressure))
        ]
        lines += [",".join([date, *values])] * (2 if row in repeated else 1)
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return str(path)


@pytest.fixture
def prepare(tmp_path):
    """prepare(output, generator's options, **settings) -> manifests of tmp_path/OUTPUT."""

    def make(output="out", made=None, **settings):
        source = make_weather(tmp_path / "weather.csv", **(made or {}))
        return prepare_forecasting(ForecastingSettings(source, **settings), tmp_path / output)

    return make


def is_suspicious(found):
    variables = found["variables"].values()
    return any(variable["suspected"] or variable["unchanged"]["runs"] for variable in variables)


def quality(manifests):
    return manifests["train"].report["quality"]


@pytest.mark.parametrize(
    ("code", "times"), [("-9999", 81), ("-9999.0", 1), ("9e36", 1), ("999", 5), ("-99", 3), ("40000", 1)]
)
def test_values_far_from_all_others_are_told_with_their_cells(prepare, code, times):
    cells = {(50 + number, 0): code for number in range(times)} | {(5, 2): "-9999"}
    found = quality(prepare(made={"cells": cells}))["variables"]
    (suspected,) = found["temperature °C"]["suspected"][:1]
    assert suspected["value"] == float(code) and suspected["number"] == times and suspected["rows"][0] == 51
    assert suspected["dates"][0] == str(START + 50 * HOUR)
    assert found["pressure"]["suspected"][0]["rows"] == [6] and not found["rain"]["suspected"]


def test_two_codes_of_one_variable_are_told(prepare):
    cells = {(9, 2): "-9999", (10, 2): "-9999", (11, 2): "-8888", (12, 2): "9e36"}
    found = quality(prepare(made={"cells": cells}))["variables"]["pressure"]["suspected"]
    assert {item["value"] for item in found} == {-9999, -8888, 9e36}


def test_ordinary_series_are_not_suspected(prepare, tmp_path):
    found = quality(prepare(made={"rows": 3000}))
    assert not is_suspicious(found) and not found["gaps"]["number"]
    # A switch, visibility that ends at 9999, and the sun, that is away every night.
    lines = ["date,switch,visibility,sun"]
    generator = np.random.default_rng(1)
    for row in range(3000):
        sun = max(0.0, np.sin(2 * np.pi * row / 96)) * generator.random()
        visibility = min(9999, int(generator.exponential(6000)))
        lines.append(f"{START + row * HOUR / 4},{int(row % 200 > 100)},{visibility},{sun:.3f}")
    (tmp_path / "more.csv").write_text("\n".join(lines))
    found = quality(prepare_forecasting(ForecastingSettings(str(tmp_path / "more.csv")), tmp_path / "more"))
    assert not is_suspicious(found)


def test_a_reading_that_stands_still_is_told(prepare):
    cells = {(100 + number, 0): "11.5" for number in range(60)}
    manifests = prepare(made={"cells": cells})
    found = quality(manifests)["variables"]
    assert found["temperature °C"]["unchanged"] == {
        "runs": 1, "cells": 60, "longest": [{"row": 101, "date": str(START + 100 * HOUR), "rows": 60, "value": 11.5}]
    }  # fmt: skip
    assert found["rain"]["unchanged"]["runs"] == found["pressure"]["unchanged"]["runs"] == 0
    line = next(line for line in describe(manifests, "out") if "stands still" in line)
    assert "column 'temperature °C'" in line and line.endswith(f"11.5 for 60 rows from row 101 ({START + 100 * HOUR})")


def test_what_stands_for_a_missing_value_is_filled_and_leaves_the_scale_alone(prepare):
    cells = {(50 + number, 0): "-9999.0" for number in range(20)} | {(5, 2): "M"}
    with pytest.raises(UserError, match=r"row 6, column 'pressure' holds 'M', which is no number.*--missing-value M"):
        prepare(made={"cells": cells})
    with pytest.raises(UserError, match="row 6, column 'pressure' holds 'M', which --missing-value names: fill it"):
        prepare(made={"cells": cells}, missing_value=("-9999", "M"))
    manifests = prepare(made={"cells": cells}, missing_value=("-9999", "M"), missing="interpolate")
    variables = quality(manifests)["variables"]
    assert variables["temperature °C"]["missing"] == 20 and variables["temperature °C"]["smallest"] > -20
    assert not any(variable["suspected"] for variable in variables.values())
    assert manifests["train"].report["filled"] == 21 and max(manifests["train"].series["scale"]) < 20


def test_holes_and_repeated_dates_are_refused_with_what_to_choose(prepare):
    with pytest.raises(UserError, match=r"row 101 \(2019-03-09 08:00:00\) comes 4 days, 5:00:00 after .* --gaps split"):
        prepare(made={"left_out": range(100, 200)})
    with pytest.raises(UserError, match=r"row 12 \(2019-03-01 10:00:00\) repeats the date .*; 1 more such place"):
        prepare(made={"repeated": (10, 30)})


def windows_of(folder, input_length=24, horizon=12):
    objective = ObjectiveSection(name="forecasting", input_length=input_length, horizon=horizon)
    dataset = as_seen(ShardedDataset(str(folder)), objective)
    return dataset, dataset.read(np.arange(len(dataset)))


def test_no_window_reaches_over_a_hole(prepare, tmp_path):
    left_out = {*range(100, 150), *range(300, 310)}  # in training, and in the rows before the test split
    manifests = prepare(made={"left_out": left_out, "repeated": (200,)}, gaps="split")
    dates = [START + row * HOUR for row in range(400) for _ in range(1 + (row == 200)) if row not in left_out]
    for name, manifest in manifests.items():
        start, end = manifest.report["rows"]
        first = start - manifest.series["lookback"]
        steps = [row for file in sorted((tmp_path / "out" / name).glob("*.parquet"))
                 for row in pq.read_table(file)["series"].to_pylist()]  # fmt: skip
        even = [
            place
            for place in range(first, end - 36 + 1)
            if place + 24 >= start and all(dates[place + k + 1] - dates[place + k] == HOUR for k in range(35))
        ]
        dataset, windows = windows_of(tmp_path / "out" / name)
        assert len(windows) == len(dataset) == len(even)
        for window, place in zip(windows, even, strict=True):
            expected = np.asarray(steps[place - first : place - first + 36])
            np.testing.assert_array_equal(np.concatenate([window["values"], window["labels"]]), expected)
    assert "breaks" in manifests["train"].series
    with pytest.raises(UserError, match=r"make no window of .*in 3 pieces"):
        windows_of(tmp_path / "out/train", input_length=100, horizon=50)


def test_kept_gaps_are_what_was_made_before_there_was_a_choice(prepare, tmp_path):
    kept = prepare(made={"left_out": range(100, 150)}, gaps="keep")
    assert kept["train"].report["task"].keys() == {
        "name", "format", "source", "sha256", "split", "missing", "drop_columns"
    }  # fmt: skip
    assert all("breaks" not in manifest.series for manifest in kept.values())
    # Such a folder is left as it is by the command that made it, which named no option.
    assert prepare(made={"left_out": range(100, 150)}) == kept
    with pytest.raises(UserError, match="already holds other data"):
        prepare(made={"left_out": range(100, 150)}, gaps="split")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        # Months have 28 to 31 days; nobody trades at weekends.
        (lambda day: day.day == 1, []),
        (lambda day: day.weekday() < 5, []),
        (lambda day: day.weekday() < 5 and day != datetime.date(2019, 5, 1), [43]),
    ],
)
def test_the_calendar_is_no_gap(tmp_path, step, expected):
    days = [START.date() + datetime.timedelta(days=number) for number in range(600)]
    lines = [f"{day},{number}" for number, day in enumerate(filter(step, days))]
    (tmp_path / "x.csv").write_text("\n".join(["date,a", *lines]))
    assert gaps(read_series(tmp_path / "x.csv")) == expected


def test_a_weekend_over_which_clocks_change_is_no_gap(tmp_path):
    days = [START.date() + datetime.timedelta(days=number) for number in range(400)]
    summer = (datetime.date(START.year, 3, 10), datetime.date(START.year, 11, 3))
    lines = [f"{day}T00:00:00-0{4 if summer[0] < day < summer[1] else 5}:00,1" for day in days if day.weekday() < 5]
    (tmp_path / "x.csv").write_text("\n".join(["date,a", *lines]))
    found = read_series(tmp_path / "x.csv")
    assert {71 * 3600, 73 * 3600} < set(found.seconds) and gaps(found) == []
    (tmp_path / "x.csv").write_text("\n".join(["date,a", *lines[:20], *lines[21:]]))
    assert gaps(read_series(tmp_path / "x.csv")) == [20]
    # Of hours every other day the first is missing once: no clock has been changed.
    hours = [f"{day}T{hour:02d}:00:00,1" for day in days[:40:2] for hour in range(8, 18)]
    (tmp_path / "x.csv").write_text("\n".join(["date,a", *hours[:100], *hours[101:]]))
    assert gaps(read_series(tmp_path / "x.csv")) == [100]


@pytest.mark.parametrize("breaks", [[0], [5, 5], [10**6], ["5"], 5, [True]])
def test_breaks_that_mislead_are_refused(prepare, tmp_path, breaks):
    manifest = prepare()["train"]
    manifest.series = {**manifest.series, "breaks": breaks}
    manifest.save(tmp_path / "out" / "train")
    with pytest.raises(UserError, match=r"series\.breaks is"):
        Manifest.load(tmp_path / "out" / "train")


# -----------------------------------------------------------------------------
# Files as others write them.


def test_a_date_in_several_columns(prepare, tmp_path):
    parts = ("year", "month", "day", "hour")
    prepare()
    with pytest.raises(UserError, match=r"no column named date; .*--date-columns year month day hour$"):
        prepare("other", {"form": "parts"})
    prepare("other", {"form": "parts"}, date_columns=parts)
    tables = [pq.read_table(next((tmp_path / name / "test").glob("*.parquet"))) for name in ("out", "other")]
    assert tables[0] == tables[1]
    lines = ["day,time,a", *(f"{4 + number // 24:02}.03.2019,{number % 24:02}:00,{number}" for number in range(48))]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    series = read_series(tmp_path / "x.csv", Reading(date_columns=("day", "time")))
    assert series.interval == HOUR and series.names == ["a"] and series.dates[25] == "05.03.2019 01:00"
    (tmp_path / "y.csv").write_text("year,month,day,a\n2019,13,1,5\n")
    with pytest.raises(UserError, match="row 1, column 'year' 'month' 'day' holds '2019 13 1', which are no year, mon"):
        read_series(tmp_path / "y.csv", Reading(date_columns=("year", "month", "day")))


def test_columns_of_text_are_named_in_one_line(tmp_path):
    lines = ["date,wind,a,sky,note", *(f"2019-03-{day:02},SSW,1,clear,{'' if day < 4 else 'x'}" for day in range(1, 9))]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    message = r"row 1, column 'wind' holds 'SSW', .*so do 'sky', 'note'.*--drop-columns wind sky note"
    with pytest.raises(UserError, match=message):
        read_series(tmp_path / "x.csv", Reading(missing_allowed=True))


def test_headers_that_are_not_utf8(tmp_path):
    source = tmp_path / "x.csv"
    make_weather(source, encoding="cp1252")
    with pytest.raises(UserError, match=r"x\.csv is not UTF-8: .*--encoding cp1252"):
        read_series(source)
    assert read_series(source, Reading(encoding="cp1252")).names[0] == "temperature °C"
    make_weather(source, encoding="utf-16")
    assert read_series(source).names[0] == "temperature °C"
    make_weather(source, cells={(3, 1): "ü"})
    with pytest.raises(UserError, match="is not ascii"):
        read_series(source, Reading(encoding="ascii"))
    for encoding in ("klingon", "base64", "\0"):
        with pytest.raises(UserError, match=r"--encoding is .* none that Python knows"):
            ForecastingSettings(str(source), encoding=encoding)


def test_the_command_prints_what_it_found_and_its_advice_works(tmp_path, capsys):
    cells = {(50 + number, 0): "-9999" for number in range(5)}
    source = make_weather(tmp_path / "x.csv", cells=cells, left_out=range(200, 210))
    command = ["prepare", "forecasting", "--source", source, "--output", str(tmp_path / "out"), "--gaps", "split"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "in 2 pieces, which no window reaches beyond" in printed
    line = next(line for line in printed.splitlines() if "warning: column 'temperature" in line)
    assert "-9999 in row 51 (2019-03-03 02:00:00), row 52" in line and "and 2 more cells" in line
    assert "warning: time does not go on evenly: row 201" in printed
    advice = line.split("missing value, ")[1].split(" fills")[0].split()
    command[command.index(str(tmp_path / "out"))] = str(tmp_path / "other")
    assert main([*command, *advice]) == 0
    assert "warning: column" not in capsys.readouterr().out
