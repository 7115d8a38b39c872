"""Forecasting runs: which windows are cut, what is measured, and that nothing of the future is seen."""

import json
import types

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForTimeSeriesPrediction

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.shard_writer import ShardWriter
from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64, write_dataset
from longmix.trainer.cli import main
from longmix.trainer.many_runs.read import find_runs
from longmix.trainer.objectives import forecasting
from longmix.trainer.prediction import series as predicted
from longmix.trainer.report import tables
from longmix.trainer.report.page import page
from longmix.trainer.report.summary import summarize
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.windows import WindowedDataset, as_seen
from longmix.trainer.settings import forecast_figures, reading
from longmix.trainer.settings.sections import ObjectiveSection

COLUMNS = {"series": {"dtype": "float32", "shape": [2]}}
TRAIN, VALIDATION, TEST = (0, 60, 0), (40, 80, 20), (50, 110, 30)


def steps(first, last):
    """Of two variables: the number of the step, and a wave of 6 steps."""
    numbers = np.arange(first, last)
    return np.stack([numbers, np.sin(numbers * np.pi / 3)], axis=1).astype(np.float32)


def described(lookback, **changes):
    series = {"names": ["step", "wave"], "mean": [0.5, 2.0], "scale": [1.0, 3.0], "lookback": lookback, "season": 6}
    return {**series, **changes}


def write_series(folder, span, scaled_by=1.0, **changes):
    first, last, lookback = span
    rows = scaled_by * steps(first, last)
    samples = ({"series": row} for row in rows)
    return write_dataset(
        folder, samples, COLUMNS, split=folder.name, split_rule="made", series=described(lookback, **changes)
    )


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """A folder with the splits of one series of 110 steps, the borders at 60 and 80."""
    folder = tmp_path_factory.mktemp("series")
    for name, span in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST)):
        write_series(folder / name, span, scaled_by=0.1)
    return folder


def windows_of(folder, input_length, horizon):
    section = ObjectiveSection(name="forecasting", input_length=input_length, horizon=horizon)
    return as_seen(ShardedDataset(str(folder)), section)


@pytest.mark.parametrize(("input_length", "horizon"), [(20, 5), (2, 1), (13, 20)])
@pytest.mark.parametrize(("span", "own"), [(TRAIN, 0), (VALIDATION, 60), (TEST, 80)])
def test_each_window_of_a_split_is_cut_once_and_forecasts_steps_of_its_own(span, own, input_length, horizon, tmp_path):
    write_series(tmp_path / "part", span)
    dataset = windows_of(tmp_path / "part", input_length, horizon)
    first, last, _ = span
    # What is forecast begins at every step of the split that has enough before it and after it.
    begins = [step for step in range(own, last - horizon + 1) if step - input_length >= first]
    assert len(dataset) == len(begins) == dataset.manifest.samples
    assert dataset.manifest.tokens == len(begins) * input_length
    for window, begin in zip(dataset.read(np.arange(len(dataset))), begins, strict=True):
        np.testing.assert_array_equal(window["values"], steps(begin - input_length, begin))
        np.testing.assert_array_equal(window["labels"], steps(begin, begin + horizon))


def test_windows_run_across_row_groups_and_shards(tmp_path):
    with ShardWriter(tmp_path, COLUMNS, samples_per_shard=23, row_group_samples=4) as writer:
        for row in steps(0, 100):
            writer.write({"series": row})
    Manifest(
        split="train", split_rule="made", columns=COLUMNS, samples=100, shards=writer.entries, series=described(0)
    ).save(tmp_path)
    dataset = windows_of(tmp_path, 30, 10)
    order = np.array([60, 0, 17, 3, 22, 23])
    for window, begin in zip(dataset.read(order), order, strict=True):
        found = np.concatenate([window["values"], window["labels"]])
        np.testing.assert_array_equal(found, steps(begin, begin + 40))
    assert [part.tolist() for part in dataset.locate(np.array([0, 23, 60]))] == [[0, 1, 2], [0, 0, 14]]


def test_errors_and_naive_forecasts_are_those_computed_by_hand():
    generator = np.random.default_rng(0)
    past, future = generator.normal(size=(5, 8, 2)), generator.normal(size=(5, 7, 2))
    batch = {"values": torch.tensor(past), "labels": torch.tensor(future)}

    class Zero(torch.nn.Module):
        config = None

        def forward(self, values):
            from types import SimpleNamespace

            return SimpleNamespace(logits=torch.zeros(len(values), 7, 2))

    manifest = Manifest(split="", split_rule="", columns={}, series=described(0, season=3))
    objective = forecasting.Forecasting(AutoModelForTimeSeriesPrediction, manifest)
    found = [
        objective.evaluation(Zero(), {name: value[part] for name, value in batch.items()})
        for part in (slice(2), slice(2, 5))
    ]
    figures = objective.figures(sum(sums for sums, _ in found), [outputs for _, outputs in found])
    last, seasonal = [], []
    for sample in range(5):
        for step in range(7):
            for channel in range(2):
                truth = future[sample, step, channel]
                last.append(past[sample, 7, channel] - truth)
                seasonal.append(past[sample, [5, 6, 7][step % 3], channel] - truth)
    expected = {"mse": (future**2).mean(), "mae": abs(future).mean(), "loss": (future**2).mean(), "items": 5}
    for name, errors in (("last_value", last), ("seasonal", seasonal)):
        expected[f"{name}_mse"] = sum(error**2 for error in errors) / len(errors)
        expected[f"{name}_mae"] = sum(map(abs, errors)) / len(errors)
    for place, variable in enumerate(("step", "wave")):
        parts = {"": future[:, :, place], "last_value_": last[place::2], "seasonal_": seasonal[place::2]}
        for prefix, errors in parts.items():
            expected[f"{prefix}mse_of_{variable}"] = np.square(errors).mean()
            expected[f"{prefix}mae_of_{variable}"] = np.abs(errors).mean()
    assert figures.keys() == expected.keys()
    for name, value in expected.items():
        assert figures[name] == pytest.approx(value, rel=1e-5), name
    short = forecasting.Forecasting(
        AutoModelForTimeSeriesPrediction, Manifest(split="", split_rule="", columns={}, series=described(0, season=9))
    )
    sums, outputs = short.evaluation(Zero(), batch)
    without = short.figures(sums, [outputs])
    assert without.keys() == {name for name in expected if not name.startswith("seasonal")}
    assert all(without[name] == pytest.approx(figures[name], rel=1e-5) for name in without)
    assert set(forecasting.naive_forecasts(batch["values"], 7, 9)) == {"last_value"}


def test_many_variables_have_no_figures_of_each():
    names = [f"v{number}" for number in range(forecast_figures.MOST_VARIABLES + 1)]
    manifest = Manifest(split="", split_rule="", columns={}, series=described(0, names=names))
    batch = {"values": torch.randn(3, 8, len(names)), "labels": torch.zeros(3, 4, len(names))}
    objective = forecasting.Forecasting(AutoModelForTimeSeriesPrediction, manifest)

    class Zero(torch.nn.Module):
        config = None

        def forward(self, values):
            return types.SimpleNamespace(logits=torch.zeros(3, 4, len(names)))

    sums, outputs = objective.evaluation(Zero(), batch)
    assert set(objective.figures(sums, [outputs])) == {
        "loss", "mse", "mae", "last_value_mse", "last_value_mae", "seasonal_mse", "seasonal_mae", "items"
    }  # fmt: skip


def test_a_verdict_names_the_best_naive_forecast_and_the_variables_that_lose():
    figures = {
        "mse": 0.5,
        "last_value_mse": 0.9,
        "seasonal_mse": 0.4,
        "mse_of_a_of_b": 0.2,
        "seasonal_mse_of_a_of_b": 0.3,
    }
    figures |= {"mse_of_f1": 0.8, "last_value_mse_of_f1": 0.7}
    assert forecast_figures.verdict(figures) == (
        "the model loses to a naive forecast, the last season, repeated: MSE 0.5 against 0.4; "
        "on 1 of 2 variables it loses to a naive forecast ('f1')"
    )
    assert forecast_figures.verdict({"mse": 0.3, "last_value_mse": 0.9, "seasonal_mse": 0.4}) is None
    assert forecast_figures.verdict({"mse": 0.4, "seasonal_mse": 0.4}) is not None  # what is learned is nothing
    assert forecast_figures.verdict({"loss": 1.0}) is None
    assert forecast_figures.variable_of("mse_of_a_of_b") == ("mse", "a_of_b")
    assert forecast_figures.variable_of("last_value_mse") is None is forecast_figures.variable_of("accuracy_at_1")


def test_the_loss_is_a_mean_over_the_global_batch_however_it_is_cut(make_forecaster):
    model, batch, objective = make_forecaster()
    whole = objective.forward(model, batch, 6)[0]
    parts = [
        objective.forward(model, {name: value[part] for name, value in batch.items()}, 6)
        for part in (slice(2), slice(2, 6))
    ]
    torch.testing.assert_close(sum(loss for loss, _ in parts), whole)
    torch.testing.assert_close(whole, ((model(batch["values"]).logits - batch["labels"]) ** 2).mean())
    sums = sum(sums for _, sums in parts)
    assert sums[2] == 6 and sums[0] / 6 == pytest.approx(whole.item(), rel=1e-5)


@pytest.fixture
def make_forecaster():
    def make():
        from longmix.modeling import model_class

        torch.manual_seed(0)
        shape = {"input_channels": 2, "input_length": 8, "horizon": 4, "max_position_embeddings": 8}
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = model_class("transformer", "Config")(**shape, **sizes)
        batch = {"values": torch.randn(6, 8, 2), "labels": torch.randn(6, 4, 2)}
        manifest = Manifest(split="", split_rule="", columns={}, series=described(0))
        objective = forecasting.Forecasting(AutoModelForTimeSeriesPrediction, manifest)
        return model_class("transformer", "ForForecasting")(config).eval(), batch, objective

    return make


def of(series, **changes):
    return {
        "data.train": str(series / "train"),
        "data.eval": str(series / "validation"),
        "objective": {"name": "forecasting", "input_length": 16, "horizon": 6},
        **changes,
    }


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


@pytest.mark.parametrize("model_type", ["s3attention", "paramixer"])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(model_type, train, series, tmp_path):
    train(tmp_path / "whole", model_type, **of(series))
    train(tmp_path / "cut", model_type, **of(series, **{"run.stop_at_step": 3}))
    train(tmp_path / "cut", model_type, **of(series))
    ours, theirs = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_figures_and_naive_forecasts_stand_side_by_side(train, series, tmp_path, read_metrics, capsys, monkeypatch):
    best = {"metric": "mse", "mode": "min"}
    changes = of(series, **{"data.test": str(series / "test"), "checkpoint.best": best, "eval.samples": None})
    train(tmp_path / "run", "transformer", **changes)
    (tested,) = read_metrics(tmp_path / "run", "test")
    assert tested["items"] == 30 - 6 + 1 and tested["loss"] == tested["mse"]
    # The first variable rises by 0.1 a step; the second repeats itself.
    future, waves = 0.1 * np.arange(1, 7), 0.1 * steps(80, 110)[:, 1]
    errors = [waves[begin - 1 : begin] - waves[begin : begin + 6] for begin in range(1, 25)]
    errors.append(0.1 * steps(79, 80)[:, 1] - waves[:6])
    assert tested["last_value_mse"] == pytest.approx(((future**2).mean() + np.square(errors).mean()) / 2, rel=1e-4)
    assert tested["seasonal_mse"] == pytest.approx(0.6**2 / 2, rel=1e-4)
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["input_channels"], config["input_length"], config["horizon"]) == (2, 16, 6)
    # Evaluate has the figures of each variable even where there are too many for every evaluation of a run.
    monkeypatch.setattr(forecasting, "MOST_VARIABLES", 1)
    assert main(["evaluate", str(tmp_path / "run" / "model"), "--data", str(series / "test")]) == 0
    told = capsys.readouterr()
    naive = f"last value: MSE {tested['last_value_mse']:.4f}  MAE {tested['last_value_mae']:.4f}  last season: MSE"
    assert f"test 6/6  MSE {tested['mse']:.4f}  MAE {tested['mae']:.4f}  {naive}" in told.err
    lost = "the model loses to a naive forecast, the last value, repeated: MSE "
    assert f"test 6/6  {lost}{tested['mse']:.4g} against {tested['last_value_mse']:.4g}; on " in told.err
    assert f"eval 0/6  {lost}" not in told.err  # nothing was learned yet
    assert [line.split()[1] for line in told.err.splitlines() if line.startswith("step ")] == [
        f"{tested['mse_of_step']:.4g}"  # each variable of the test split, once
    ]
    lines = told.out[told.out.index("loss ") :].splitlines()
    printed, table = dict(map(str.split, lines[: lines.index("")])), lines[lines.index("") + 1 :]
    assert [line.split()[0] for line in table[2:5]] == ["all", "step", "wave"] and table[5].startswith(lost)
    assert table[3].split()[1] == f"{tested['mse_of_step']:.4g}"
    report = summarize(find_runs([str(tmp_path / "run")]))
    text, html = tables.markdown(report, {}, None), page(report, {}, None)
    assert f"| `transformer` | step | {tested['mse_of_step']:.4g} |" in text
    assert f"<td>transformer</td><td>step</td><td>{tested['mse_of_step']:.4g}</td>" in html
    assert lost in text and lost in html and "mse of step" not in text and "mse of step" not in html
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "seasonal_mse" in card and "_of_step" not in card
    for name in ("mse", "mae", "last_value_mae", "seasonal_mse"):
        assert float(printed[name]) == pytest.approx(tested[name], abs=1e-4), name
    classes = {"split": "test", "split_rule": "made", "vocab_size": 9, "sequence_length": 2, "num_labels": 4}
    columns = {"input_ids": LIST_INT32, "labels": SCALAR_INT64}
    write_dataset(tmp_path / "classes", [{"input_ids": [3, 4], "labels": 2}], columns, **classes)
    assert main(["evaluate", str(tmp_path / "run" / "model"), "--data", str(tmp_path / "classes")]) == 2
    told = capsys.readouterr().err
    assert "classes holds no time series, but " in told
    assert "was trained for forecasting: name data of the kind" in told


def test_forecasts_are_in_the_units_of_the_data_and_every_step_has_one(train, series, tmp_path, capsys):
    train(tmp_path / "run", **of(series, **{"optim.max_steps": 1, "optim.warmup_steps": 0}))
    model = AutoModelForTimeSeriesPrediction.from_pretrained(tmp_path / "run" / "model").eval()
    mean, scale = np.array([0.5, 2.0]), np.array([1.0, 3.0])

    def predict(data, *more):
        assert main(["predict", str(tmp_path / "run"), "--data", str(data), "--output", *more]) == 0
        with open(more[0], encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [row["row"] for row in rows], np.array([[row["forecast_step"], row["forecast_wave"]] for row in rows])

    def expected(past):
        with torch.no_grad():
            return model(values=torch.from_numpy(past)[None]).logits[0].double().numpy() * scale + mean

    output = str(tmp_path / "out.jsonl")
    numbers, found = predict(series / "test", output, "--part-rows", "2", "--batch-size", "2")
    assert numbers == list(range(30))
    windows = windows_of(series / "test", 16, 6).read(np.arange(0, 30, 6))
    np.testing.assert_allclose(found, np.concatenate([expected(one["values"]) for one in windows]), rtol=1e-5)
    # A table in its own units, and what follows it.
    own = 0.1 * steps(0, 110) * scale + mean
    (tmp_path / "new.csv").write_text("wave,step\n" + "".join(f"{wave!r},{step!r}\n" for step, wave in own.tolist()))
    numbers, found = predict(tmp_path / "new.csv", output)
    assert numbers == list(range(110, 116))
    np.testing.assert_allclose(found, expected(0.1 * steps(94, 110)), rtol=1e-5)
    # A code for a missing value is told of: of what lies before the window it is of no concern.
    assert "warning" not in capsys.readouterr().err
    lines = (tmp_path / "new.csv").read_text().splitlines()
    for number, is_told in ((-20, False), (-3, True)):
        coded = [*lines]
        coded[number] = f"-9999,{coded[number].split(',')[1]}"
        (tmp_path / "coded.csv").write_text("\n".join(coded))
        predict(tmp_path / "coded.csv", output)
        told = capsys.readouterr().err
        assert (f"warning: {tmp_path / 'coded.csv'}, line 109: 'wave' is -9999, 3334 standard" in told) == is_told
        assert ("warning" in told) == is_told
    # Dates count where there are some: they go forward, and evenly in the window.
    dates = [f"2024-01-{1 + hour // 24:02} {hour % 24:02}:00" for hour in range(120)]
    for skipped, told in ((None, None), (20, None), (100, "line 102 (2024-01-05 05:00) comes 2:00:00 after the row")):
        # The steps ahead have dates, too, unless those of the window follow no rule.
        kept = [date for number, date in enumerate(dates) if number != skipped][:110]
        dated = [f"{date},{line}" for date, line in zip(["date", *kept], lines, strict=True)]
        (tmp_path / "dated.csv").write_text("\n".join(dated))
        np.testing.assert_array_equal(predict(tmp_path / "dated.csv", output)[1], found)
        err = capsys.readouterr().err
        place = f"do not follow each other evenly: {tmp_path / 'dated.csv'}, "
        assert f"{place}{told} before" in err if told else "evenly" not in err
        assert ("the forecast has no dates, for those of" in err) == bool(told)
        with open(output, encoding="utf-8") as file:
            ahead = [json.loads(line).get("date") for line in file]
        after = dates.index(kept[-1]) + 1
        assert ahead == ([None] * 6 if told else dates[after : after + 6])
    newest_first = [*dated[:1], *(f"{date},{line}" for date, line in zip(kept[::-1], lines[1:], strict=True))]
    (tmp_path / "dated.csv").write_text("\n".join(newest_first))
    assert main(["predict", str(tmp_path / "run"), "--data", str(tmp_path / "dated.csv"), "--output", output]) == 2
    assert "line 3: 'date' goes back to '2024-01-05 13:00': sort the rows by it" in capsys.readouterr().err
    dated = [f"{date},{line}" for date, line in zip(["date", *dates[:110]], lines, strict=True)]
    # Clocks that are set back are told of; dates that say nothing of the time, or cannot be read, are nothing to tell.
    for date, told in (
        ("2024-01-05 11:15", "line 111 (2024-01-05 11:15) comes 0:45:00 before the row before"),
        ("?", ""),
    ):
        (tmp_path / "dated.csv").write_text("\n".join([*dated[:-1], f"{date},{lines[-1]}"]))
        np.testing.assert_array_equal(predict(tmp_path / "dated.csv", output)[1], found)
        err = capsys.readouterr().err
        assert told in err and ("evenly" in err) == bool(told)
    (tmp_path / "dated.csv").write_text(
        "\n".join([dated[0], *(f"2024-01-0{1 + n // 60},{lines[n]}" for n in range(1, 111))])
    )
    np.testing.assert_array_equal(predict(tmp_path / "dated.csv", output)[1], found)
    assert "evenly" not in capsys.readouterr().err
    # As a spreadsheet of other countries writes it; between commas such a number is none.
    with_semicolons = (tmp_path / "new.csv").read_text().replace(",", ";").replace(".", ",")
    (tmp_path / "german.csv").write_text(with_semicolons)
    np.testing.assert_array_equal(predict(tmp_path / "german.csv", output)[1], found)
    quoted = "\n".join('"' + line.replace(";", '","') + '"' for line in with_semicolons.splitlines())
    (tmp_path / "quoted.csv").write_text(quoted)
    assert main(["predict", str(tmp_path / "run"), "--data", str(tmp_path / "quoted.csv"), "--output", output]) == 2
    assert "expected a number" in capsys.readouterr().err
    for last, told in (("1,002;7", "column 'wave' holds '1,002' beside '998': commas are read as"), ("1,5;7", None)):
        (tmp_path / "thousands.csv").write_text("wave;step\n8.5;1\n" + "998;1,010\n" * 20 + f"{last}\n")
        predict(tmp_path / "thousands.csv", output)
        err = capsys.readouterr().err
        assert told in err if told else "commas" not in err
    (tmp_path / "thousands.csv").write_text("wave;step\n" + "8.5;1,010\n" * 20)
    assert main(["predict", str(tmp_path / "run"), "--data", str(tmp_path / "thousands.csv"), "--output", output]) == 2
    assert "holds '1,010' and '8.5': a number may have a comma or a point" in capsys.readouterr().err
    # A model of an earlier version does not know the units.
    (tmp_path / "run" / "model" / "inputs.json").unlink()
    assert main(["predict", str(tmp_path / "run"), "--data", str(tmp_path / "new.csv"), "--output", output]) == 2
    assert "does not say by which means and scales its series was standardised" in capsys.readouterr().err
    assert predict(series / "test", output)[0] == list(range(30))


def test_later_steps_of_a_table_are_scored_as_those_of_a_prepared_split(train, series, tmp_path, capsys):
    train(tmp_path / "run", **of(series, **{"optim.max_steps": 1, "optim.warmup_steps": 0}))

    def evaluate(data, *more):
        code = main(["evaluate", str(tmp_path / "run"), "--data", str(data), *more])
        told = capsys.readouterr()
        lines = told.out[told.out.index("loss ") :] if code == 0 else ""
        figures = dict(line.split() for line in lines.partition("\n\n")[0].splitlines())
        return code, {name: float(value.replace(",", "")) for name, value in figures.items()}, told.err

    _, expected, _ = evaluate(series / "test")
    # 16 steps before the split's own, which the first window reads.
    own = (0.1 * steps(64, 110) * np.array([1.0, 3.0]) + np.array([0.5, 2.0])).tolist()
    dates = [f"2024-01-{1 + row // 4:02} {6 * (row % 4):02}:00" for row in range(len(own))]
    lines = [f"{date},{wave!r},{step!r}" for date, (step, wave) in zip(dates, own, strict=True)]
    (tmp_path / "later.csv").write_text("\n".join(["date,wave,step", *lines]))
    code, found, told = evaluate(tmp_path / "later.csv")
    assert code == 0 and "warning" not in told and found["items"] == expected["items"]
    for name in ("mse", "mae", "last_value_mse", "last_value_mae"):
        assert found[name] == pytest.approx(expected[name], abs=1e-4), name
    assert "seasonal_mse" in found  # of four rows, a day
    # No window reaches over a hole, 25 rows before the end.
    (tmp_path / "later.csv").write_text("\n".join(["date,wave,step", *lines[:20], *lines[21:]]))
    code, found, told = evaluate(tmp_path / "later.csv")
    assert code == 0 and found["items"] == 25 - 22 + 1
    assert (
        "no window reaches over such a place (--gaps): " in told
        and "line 22 (2024-01-06 06:00) comes 12:00:00 after" in told
    )
    code, found, told = evaluate(tmp_path / "later.csv", "--gaps", "keep", "--samples", "3")
    assert code == 0 and found["items"] == 3 and "warning" not in told
    # Dates that cannot be read say nothing of holes, and a line says so.
    (tmp_path / "later.csv").write_text("\n".join(["date,wave,step", *lines[:20], *lines[21:], "?,0,0"]))
    code, found, told = evaluate(tmp_path / "later.csv")
    assert code == 0 and found["items"] == 46 - 22 + 1
    assert "note: no dates are read, so windows may reach over missing rows: " in told and "date holds '?'" in told
    (tmp_path / "later.csv").write_text("\n".join(["date,wave,step", *lines, "2024-02-01,1e39,0"]))
    code, _, told = evaluate(tmp_path / "later.csv")
    assert code == 2 and "line 48: 'wave' is 1e39, which no model can read: correct it" in told
    for kept, what in (
        (lines[:21], "later.csv has 21 rows, but a window of the model takes 22: 16 that it reads, and 6 that it"),
        (
            [*lines[:20], *lines[21:40]],
            "later.csv has no 22 rows, as a window of the model takes, without a place where rows are",
        ),
    ):
        (tmp_path / "later.csv").write_text("\n".join(["date,wave,step", *kept]))
        code, _, told = evaluate(tmp_path / "later.csv")
        assert code == 2 and what in told
    code, _, told = evaluate(tmp_path / "later.csv", "--max-length", "9")
    assert code == 2 and "--max-length is for texts" in told


@pytest.mark.parametrize("horizon", [1, 7, 30])
def test_the_last_forecast_of_a_split_is_not_cut_off(series, horizon):
    dataset = ShardedDataset(str(series / "test"))
    found = []
    for past, row, skipped in predicted.windows_of(dataset, 16, horizon):
        np.testing.assert_array_equal(past, np.float32(0.1) * steps(64 + row, 80 + row))
        found += range(row + skipped, row + horizon)
    assert found == list(range(30))


def test_no_forecast_reaches_over_a_break(series):
    """30 steps for inputs alone, then 30 of the split's own, which break after the tenth."""
    dataset = ShardedDataset(str(series / "test"))
    assert dataset.manifest.series["lookback"] == 30
    dataset.manifest.series["breaks"] = [40]
    found = []
    for past, row, skipped in predicted.windows_of(dataset, 16, 4):
        np.testing.assert_array_equal(past, np.float32(0.1) * steps(64 + row, 80 + row))
        assert row + 4 <= 10 or row - 16 >= 10
        found += range(row + skipped, row + 4)
    assert found == [*range(10), *range(26, 30)]
    # Steps 26 to 30 are too few for 7.
    assert [row for _, row, _ in predicted.windows_of(dataset, 16, 7)] == [0, 3]


def test_what_does_not_belong_together_is_refused(train, series, data, tmp_path):
    def refuses(message, **changes):
        with pytest.raises(UserError, match=message):
            train(tmp_path / "run", changes.pop("model_type", "transformer"), **of(series, **changes))

    refuses("objective.name is mlm, but .*train holds a time series: forecasting", objective={"name": "mlm"})
    tokens = {"data.train": str(data / "train"), "data.eval": None}
    refuses("objective.name is forecasting, but .* holds no time series: longmix prepare forecasting", **tokens)
    section = {"name": "forecasting", "input_length": 21, "horizon": 6}
    refuses("input_length is 21, but .*validation holds 20 time steps before its own for inputs", objective=section)
    section = {"name": "forecasting", "input_length": 16, "horizon": 21}
    refuses("16 and objective.horizon 21 make no window of .*validation, which holds 40", objective=section)
    write_series(tmp_path / "validation", VALIDATION, mean=[0.4, 2.0])
    refuses("holds other variables than .*, or standardised otherwise", **{"data.eval": str(tmp_path / "validation")})
    refuses("model.model_type bert has no AutoModelForTimeSeriesPrediction", model_type="bert")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"name": "forecasting", "horizon": 5}, "objective.input_length is missing: objective forecasting takes"),
        (
            {"name": "forecasting", "input_length": 1, "horizon": 5},
            "objective.input_length is 1, but must be at least 2",
        ),
        ({"name": "forecasting", "input_length": 9, "horizon": 0}, "objective.horizon is 0, but must be at least 1"),
        ({"name": "mlm", "horizon": 5}, "objective.horizon is 5, but is for objective forecasting"),
    ],
)
def test_a_run_file_says_what_is_forecast(objective, message, run_values, tmp_path):
    with pytest.raises(UserError, match=message):
        reading.from_dict(run_values(tmp_path / "run", objective=objective), "test")


def test_another_horizon_is_told_once(train, series, tmp_path):
    """The windows belong to the objective: the data are the same."""
    train(tmp_path / "run", **of(series, **{"run.stop_at_step": 2}))
    other = {"name": "forecasting", "input_length": 16, "horizon": 5}
    with pytest.raises(UserError, match=r"objective\.horizon was 6 and is now 5\. Choose"):
        train(tmp_path / "run", **of(series, objective=other))


def test_damaged_steps_are_found(series, tmp_path):
    rows = steps(0, 60)
    rows[40, 1] = np.nan
    samples = ({"series": row} for row in rows)
    write_dataset(tmp_path / "t", samples, COLUMNS, split="train", split_rule="made", series=described(0))
    with pytest.raises(UserError, match="series holds values that are not finite"):
        windows_of(tmp_path / "t", 16, 6).read([30])
    assert isinstance(windows_of(series / "train", 16, 6), WindowedDataset)
