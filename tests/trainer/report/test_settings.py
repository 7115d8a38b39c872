"""The tables of a report: which runs stand in one, what it is called, and what tells its rows apart."""

import json
import re
import shutil

import pytest
import yaml

from longmix.trainer import cli
from longmix.trainer.many_runs.read import read_run
from longmix.trainer.report import cited, plots, tables
from longmix.trainer.report.page import page


def test_another_objective_on_the_tasks_data_is_another_setting(tmp_path, write_run, write_classes, report_of):
    """clm has an accuracy, too, which is none of the task's: neither chance nor the papers' figures belong to it."""
    write_classes(tmp_path / "data", [0, 1, 1])
    for name in ("classification", "regression", "mlm", "clm"):
        changes = {"objective__name": name, "provenance__data__sequence_length": 1999}
        write_run(tmp_path / "runs" / name, data__test=str(tmp_path / "data"), **changes)
    rows = {row.runs[0].objective: row for row in report_of(tmp_path / "runs").rows}
    assert [rows[name].chance for name in rows] == [2 / 3, None, None, None] and len(rows) == 4
    assert {name: [entry.value for entry in row.cited] for name, row in rows.items() if name != "regression"} == {
        "classification": [55.40],
        "mlm": [],
        "clm": [],
    }
    titles = {rows[name].setting.title for name in ("classification", "mlm", "clm")}
    assert titles == {"listops, N = 1999", "listops, N = 1999, mlm with 15 % masked", "listops, N = 1999, clm"}
    wikitext = {
        "model__model_type": "flt",
        "model__spectral_kind": "local",
        "model__mask_bound": 4.0,
        "data__train": "data/wikitext/train",
    }
    for name, values in (("clm", [30.1]), ("mlm", [])):
        changes = {**wikitext, "provenance__data__task": None, "objective__name": name}
        assert [c.value for c in cited.citations(read_run(write_run(tmp_path / f"text-{name}", **changes)))] == values


def test_data_sets_of_one_name_that_differ_are_settings_of_their_own(tmp_path, write_run, report_of):
    """Of one CSV, split or standardised in two ways: their errors do not compare."""
    for name, model in (("etth1", "flt"), ("etth1", "wavspa"), ("etth1-ratio", "flt")):
        changes = {
            "model__model_type": model,
            "data__train": f"data/{name}/train",
            "data__test": f"data/{name}/test",
            "provenance__data__task": {"name": "forecasting", "source": "ETTh1.csv"},
            "provenance__data__fingerprints": {"data.train": ["x"], "data.test": [name]},
        }
        write_run(tmp_path / name / model, **changes)
    titles = {setting.title: len(rows) for setting, rows in report_of(tmp_path).settings.items()}
    assert titles == {"forecasting (ETTh1, etth1), N = 64": 2, "forecasting (ETTh1, etth1-ratio), N = 64": 1}
    assert [setting.title for setting in report_of(tmp_path / "etth1").settings] == ["forecasting (ETTh1), N = 64"]
    # The folder was made anew between two runs.
    changes |= {"data__test": "data/etth1/test", "model__model_type": "flt", "optim__lr": 1.0}
    write_run(tmp_path / "etth1" / "later", seed=1, **changes)
    titles = [setting.title for setting in report_of(tmp_path / "etth1").settings]
    assert titles == ["forecasting (ETTh1, etth1), N = 64", "forecasting (ETTh1, etth1, 2), N = 64"]


def test_no_two_settings_write_one_file(tmp_path, write_run, report_of):
    """Data of other folders whose names say nothing more, or give the same letters; of the same data one table."""
    for number, (folder, noted) in enumerate(
        [("listops", "a"), ("listops-64", "b"), ("ab_c", "c"), ("ab-c", "d"), ("v1/ab-c", "d"), ("ab-c", None)]
    ):
        changes = {
            "data__train": f"data/{folder}/train",
            "data__test": f"data/{folder}/test",
            "provenance__data__fingerprints": {} if noted is None else {"data.test": [noted]},
        }
        write_run(tmp_path / "runs" / str(number), optim__lr=number, **changes)
    assert cli.main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "report")]) == 0
    settings = report_of(tmp_path / "runs").settings
    assert [len(rows) for rows in settings.values()] == [1, 1, 1, 2, 1]
    text = (tmp_path / "report" / "report.md").read_text()
    pictures = re.findall(r"\(((?:learning|speed)-\S+)\.svg\)", text)
    assert len(pictures) == len(set(pictures)) == 2 * len(settings)
    assert len(set(re.findall(r"^## .*", text, re.MULTILINE))) >= len(settings)


def test_rows_are_told_apart_by_their_folders_where_much_differs(tmp_path, write_run, report_of):
    def labels(*paths):
        return [row.label for row in report_of(*(tmp_path / path for path in paths)).rows]

    for number, path in enumerate(("listops/first", "listops/second", "image/first", "swept/seed-0")):
        changes = {"optim__lr": number, "optim__weight_decay": number, "precision": number}
        write_run(tmp_path / path, **changes)
    assert labels("listops") == ["wavspa (first)", "wavspa (second)"]
    assert labels("listops/first", "image", "swept") == [
        "wavspa (listops/first)",
        "wavspa (image/first)",
        f"wavspa ({tmp_path.name}/swept)",
    ]
    assert labels("listops/second", "swept") == ["wavspa (second)", "wavspa (swept)"]
    # Folders that begin with the model type say it already.
    for number, name in enumerate(("wavspa", "wavspa-wide")):
        write_run(tmp_path / "named" / name, optim__lr=number, optim__weight_decay=number, precision=number)
    assert labels("named") == ["wavspa", "wavspa-wide"]
    for rate, name in enumerate(("wavspa", "faster")):
        write_run(tmp_path / "rates" / name, optim__lr=rate)
    assert labels("rates") == ["wavspa (optim.lr 1)", "wavspa"]


@pytest.mark.parametrize("values", [([1], [2]), ("a" * 30, "b" * 30)])
def test_rows_are_told_apart_by_their_folders_where_a_difference_is_long(tmp_path, write_run, report_of, values):
    for name, value in zip(("first", "second"), values, strict=True):
        write_run(tmp_path / name, optim__schedule=value)
    assert [row.label for row in report_of(tmp_path).rows] == ["wavspa (first)", "wavspa (second)"]


def test_labels_have_the_values_that_a_model_has_and_not_what_its_run_file_leaves_out(tmp_path, write_run, report_of):
    write_run(tmp_path / "default")
    write_run(tmp_path / "linear", model__space="none", model__attention="linear")
    labels = [row.label for row in report_of(tmp_path).rows]
    assert labels == ["wavspa (attention softmax, space adaptive)", "wavspa (attention linear, space none)"]
    # The same, said and left out.
    write_run(tmp_path / "said", model__space="adaptive")
    assert report_of(tmp_path / "default", tmp_path / "said").rows[1].label == "wavspa (said)"


def test_a_digest_names_no_data(tmp_path, write_run, report_of):
    task = {"name": "pathfinder", "source": "8d348bc3" * 8}
    folder = write_run(tmp_path / "run", provenance__data__task=task, data__train="data/pathfinder-official/train")
    assert report_of(folder).rows[0].setting.title == "pathfinder (pathfinder-official), N = 64"


@pytest.mark.full
def test_only_lengths_of_one_data_set_and_one_horizon_are_a_curve(tmp_path, write_run, report_of):
    def write(data, length, task, **changes):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        about = {"provenance__data__sequence_length": length, "provenance__data__task": task}
        write_run(folder, data__train=f"data/{data}/train", **about, **changes)

    for length in (128, 512):
        # Made for each length, and of more samples for the longer ones.
        write(f"adding-{length}", length, {"name": "adding", "length": length, "train_samples": length})
        for files in ("human", "mouse"):
            write(f"{files}-{length}", length, {"name": "dna", "length": length, "files": files})
    # Unlike in more than the length, and each of one length alone: no curve.
    for files, length in (("yeast", 64), ("fly", 1024)):
        write(f"{files}-{length}", length, {"name": "genes", "length": length, "files": files})
    # Two of one length: those with as many samples as the others go with them.
    for length, samples in ((16, 9), (32, 9), (16, 1)):
        data = f"order-{length}-{samples}"
        write(data, length, {"name": "order", "length": length, "train_samples": samples})
    for horizon, source in ((24, "a.csv"), (48, "a.csv"), (24, "b.csv")):
        for length in (96, 192):
            changes = {"objective__name": "forecasting", "objective__horizon": horizon}
            write(source, None, {"name": "f", "source": source}, objective__input_length=length, **changes)
    found = [(title, [row.setting.length for row in rows]) for title, rows in plots._over_lengths(report_of(tmp_path))]
    assert sorted(found) == [
        ("adding", [128, 512]),
        ("dna (human)", [128, 512]),
        ("dna (mouse)", [128, 512]),
        ("f (a), horizon 24", [96, 192]),
        ("f (a), horizon 48", [96, 192]),
        ("f (b), horizon 24", [96, 192]),
        ("order (order-16-9, order-32-9)", [16, 32]),
    ]
    names = [name for each in plots.draw(report_of(tmp_path)).values() for _, name, _ in each]
    assert len(names) == len(set(names)) and len([name for name in names if name.startswith("length")]) == 7


def test_evaluations_that_hide_other_shares_are_other_settings(tmp_path, write_run, report_of):
    """The share is that of config.yaml; runs of earlier versions evaluated at the share of their training."""
    shares = {"new": {"eval__mask_probability": 0.15}, "old": {}, "own": {"eval__mask_probability": 0.4}}
    for name, values in shares.items():
        write_run(tmp_path / "runs" / name, objective__name="mlm", objective__mask_probability=0.3, **values)
    found = {
        row.runs[0].folder.name: row.setting.title.rpartition(", ")[2] for row in report_of(tmp_path / "runs").rows
    }
    assert found == {"new": "mlm with 15 % masked", "old": "mlm with 30 % masked", "own": "mlm with 40 % masked"}


def _lines(text, word):
    return [line for line in text.splitlines() if word in line]


def test_rows_of_unequal_budget_are_marked_and_the_caption_says_what_is_equal(tmp_path, write_run, report_of):
    common = {"batch__samples": 64, "objective__name": "mlm", "data__test": "data/text/test"}
    write_run(tmp_path / "flt", model__model_type="flt", optim__max_steps=30, **common)
    write_run(tmp_path / "paramixer", model__model_type="paramixer", optim__max_steps=140, **common)
    write_run(tmp_path / "wavspa", optim__max_steps=30, optim__lr=5e-4, **common)
    for folder, steps in (("flt", 30), ("paramixer", 140), ("wavspa", 30)):
        records = [json.loads(line) for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()]
        records[-1]["step"] = steps
        seen = {"samples_seen": 64 * steps, "tokens_seen": 6400 * steps}
        records.insert(-1, {"kind": "train", "step": steps, "loss": 1.0, "tokens_per_second": 2.0, **seen})
        (tmp_path / folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    report = report_of(tmp_path)
    assert {row.label: row.letter for row in report.rows} == {"flt": "A", "paramixer": "B", "wavspa": "A"}
    text = tables.markdown(report, {}, None)
    assert "Not held equal: samples. Only rows of one letter compare" in text and "Held equal: batch 64" in text
    (line,) = _lines(text, "| `paramixer`")
    assert "| B |" in line and "8,960" in line and "896,000" in line and "140" in line
    assert "batch |" not in text and "| rate |" in text
    record = next(record for record in tables.records(report) if record["model"] == "paramixer")
    assert (record["compares_with"], record["samples_seen"], record["steps"]) == ("B", 8960, 140)
    assert "Not held equal: samples" in page(report, {}, None)


def test_rows_of_other_training_data_objective_or_selection_are_marked(tmp_path, write_run, report_of):
    changes = {
        "model": {},
        "data": {"optim__lr": 5e-4, "provenance__data__fingerprints": {"data.train": ["y"]}},
        "objective": {"objective__label_smoothing": 0.1},
        "selection": {"checkpoint__best": None},
        "initial": {"model__from": "runs/other/model"},
    }
    for name, change in changes.items():
        write_run(tmp_path / name, **change)
    report = report_of(tmp_path)
    assert sorted(row.letter for row in report.rows) == list("ABCDE")
    said = tables.held_equal(report.rows)
    assert "Not held equal: training data and tokenizer, objective, selection, model.from." in said
    assert [row.letter for row in report_of(tmp_path / "model").rows] == [""]


def test_mixtures_of_other_shares_are_other_training_data(tmp_path, write_run, report_of):
    """Weights count by their share: 1 to 9 is 0.1 to 0.9; a folder is a mixture of one. The shares are told."""
    mixtures = {"a": (1, 9), "b": (9, 1), "c": (0.1, 0.9), "d": (2,), "e": None}
    for rate, (name, weights) in enumerate(mixtures.items(), start=1):
        folders = ("data/wiki/train", "data/books/train")
        parts = [{"path": path, "weight": weight} for path, weight in zip(folders, weights or (1,), strict=False)]
        noted = {"data.train": ["x", "y"][: len(parts)]}
        changes = {"data__train": parts if weights else folders[0], "provenance__data__fingerprints": noted}
        write_run(tmp_path / name, optim__lr=rate, optim__weight_decay=rate, precision=rate, **changes)
    report = report_of(tmp_path)
    assert {row.runs[0].folder.name: row.letter for row in report.rows} == dict(zip("abcde", "ABACC", strict=True))
    told = "A: wiki 0.1, books 0.9; B: wiki 0.9, books 0.1"
    shares = f"shares of the data sets ({told}; C: one alone)"
    assert f"Not held equal: training data and tokenizer, {shares}. Only" in tables.held_equal(report.rows)
    # Of other shares alone, of equal ones, and of runs without a mixture.
    said = {names: tables.held_equal([row for row in report.rows if row.letter in names]) for names in ("AB", "A", "C")}
    assert f"Not held equal: shares of the data sets ({told}). Only" in said["AB"]
    assert "training data and tokenizer, shares of the data sets (wiki 0.1, books 0.9), objective" in said["A"]
    assert "shares" not in said["C"] and "Not held" not in said["A"] + said["C"]


def _write_finetuned(write_run, output, source, length, dev, reported="dev"):
    """A run of `longmix finetune` on a user's own task, as it lies below --output."""
    about = {"provenance__data__task": "custom", "provenance__data__sequence_length": length}
    data = output / "custom" / "data"
    named = {"data__train": str(data / "train"), "data__eval": str(data / "selection"), "data__test": None}
    about["provenance__data__fingerprints"] = {"data.eval": [source]}
    folder = write_run(output / "custom" / "seed-0", **named, **about)
    (folder / "job.json").write_text("{}")
    (data / "selection").mkdir(parents=True)
    report = {"task": "custom", "source": f"somewhere/{source}", "indices": []}
    (data / "selection" / "manifest.json").write_text(json.dumps({"report": report}))
    split = {"split": reported, "samples": 9, "figures": {"accuracy": {"values": [dev]}, "score": {"values": [dev]}}}
    task = {"task": "custom", "seeds": [0], "splits": [split], "settings": {"learning_rate": 1e-3}}
    (output / "results.json").write_text(json.dumps({"tasks": [task]}))
    return folder


def test_custom_tasks_have_the_names_of_the_users_data_and_are_no_curve(tmp_path, write_run, report_of):
    _write_finetuned(write_run, tmp_path / "a", "news", 64, 0.25)
    _write_finetuned(write_run, tmp_path / "b", "weather", 128, 0.5)
    report = report_of(tmp_path)
    assert {setting.title for setting in report.settings} == {"custom (news), N = 64", "custom (weather), N = 128"}
    assert plots._over_lengths(report) == []


def test_custom_tasks_whose_folders_have_one_name_are_told_apart_by_those_above(tmp_path, write_run, report_of):
    _write_finetuned(write_run, tmp_path / "a", "news/data", 64, 0.25)
    _write_finetuned(write_run, tmp_path / "b", "weather/data", 64, 0.5)
    titles = {setting.title for setting in report_of(tmp_path).settings}
    assert titles == {"custom (data, news/data), N = 64", "custom (data, weather/data), N = 64"}
    # Of one path the content changed between the two: their outputs have other names.
    for output in ("a", "b"):
        manifest = tmp_path / output / "custom" / "data" / "selection" / "manifest.json"
        manifest.write_text(json.dumps({"report": {"source": "news/data"}}))
    titles = {setting.title for setting in report_of(tmp_path).settings}
    assert titles == {f"custom (data, {output}/custom/data/selection), N = 64" for output in ("a", "b")}


def test_fine_tuning_calls_the_test_split_so_where_there_is_no_dev_file(tmp_path, write_run, report_of):
    _write_finetuned(write_run, tmp_path / "a", "news", 64, 0.25, reported="test")
    text = tables.markdown(report_of(tmp_path), {}, None)
    assert "selection accuracy (%) | test accuracy (%)" in text
    assert "test: the given test file with labels" in text and "dev: the given dev file" not in text


def test_fine_tuning_shows_the_figures_of_dev_and_selection_by_name(tmp_path, write_run, report_of):
    folder = _write_finetuned(write_run, tmp_path / "a", "news", 64, 0.25)
    report = report_of(tmp_path)
    (row,) = report.rows
    assert {name: figure.mean for name, figure in row.figures.items()} == {"accuracy": 0.4, "dev_accuracy": 0.25}
    text = tables.markdown(report, {}, None)
    assert "selection accuracy (%) | dev accuracy (%)" in text and "which chose nothing" in text
    assert "dev accuracy (%)" in page(report, {}, None)
    # Before the last seed has finished there is no table of fine-tuning's own.
    (tmp_path / "a" / "results.json").unlink()
    text = tables.markdown(report_of(tmp_path), {}, None)
    assert "dev has no figures until longmix finetune has finished every seed" in text and "chose nothing" not in text
    # Of a rate that was not chosen there is no dev figure, and a damaged table ends no report.
    (tmp_path / "a" / "results.json").write_text('{"tasks": [{"task": "custom", "settings": {"learning_rate": 3}}, 4]}')
    assert read_run(folder).figures == {"loss": 1.0, "accuracy": 0.4}


def test_fine_tuning_is_held_against_the_most_frequent_class_of_the_split_that_it_reports(
    tmp_path, write_run, write_classes, report_of
):
    """A selection score of 40 % and a dev score of 60 % beside 33 % say nothing where dev has 70 % of one class."""
    folders = [_write_finetuned(write_run, tmp_path / "a", "news", 64, 0.25)]
    data = tmp_path / "a" / "custom" / "data" / "selection"
    shutil.rmtree(data)
    write_classes(data, [0, 1, 2])
    config = yaml.safe_load((folders[0] / "config.yaml").read_text())
    config["provenance"]["data"]["fingerprints"] = {}
    (folders[0] / "config.yaml").write_text(yaml.safe_dump(config))
    folders.append(tmp_path / "a" / "custom" / "seed-1")
    shutil.copytree(folders[0], folders[1])
    config["run"] |= {"dir": str(folders[1]), "seed": 1}
    (folders[1] / "config.yaml").write_text(yaml.safe_dump(config))
    figures = {"accuracy": {"values": [0.59, 0.61], "baseline": 0.75}, "score": {"values": [0.59, 0.61]}}
    split = {"split": "dev", "samples": 20, "figures": figures}
    task = {"task": "custom", "seeds": [0, 1], "splits": [split], "settings": {"learning_rate": 1e-3}}
    (tmp_path / "a" / "results.json").write_text(json.dumps({"tasks": [task]}))
    report = report_of(*folders)
    (row,) = report.rows
    assert row.figures["accuracy"].baseline == pytest.approx(1 / 3) and row.figures["dev_accuracy"].baseline == 0.75
    assert row.against_chance == "below"
    text = tables.markdown(report, {}, None)
    assert "most frequent class: selection accuracy (%) 33.33, dev accuracy (%) 75.00." in text
    shutil.rmtree(data)
    text = tables.markdown(report_of(*folders), {}, None)
    assert "dev accuracy (%) 75.00. What chance reaches on selection is unknown: data.eval" in text
    # A table of an earlier version without it, or a damaged one, says nothing of it.
    del figures["accuracy"]["baseline"]
    (tmp_path / "a" / "results.json").write_text(json.dumps({"tasks": [4, task]}))
    assert report_of(*folders).rows[0].reported_chances == {}
