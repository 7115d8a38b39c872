"""`longmix report`: which runs count, mean and interval over seeds, the papers' figures, and the files."""

import base64
import csv
import json
import math
import re
import sys
from html.parser import HTMLParser

import pytest
import yaml
from scipy import stats

from longmix.data_prep.errors import UserError
from longmix.trainer import cli
from longmix.trainer.fingerprint import fingerprint
from longmix.trainer.report import cited, plots, tables
from longmix.trainer.report.page import page
from longmix.trainer.report.runs import find_runs, read_run
from longmix.trainer.report.summary import Figure, error_of, summarize

FIELDS = {"model_type": "wavspa", "space": "adaptive", "attention": "softmax"}
STEPS = 40


def write_run(folder, seed=0, test=0.5, evaluations=(0.1, 0.4, 0.3), is_whole=True, **changes):
    """A run folder of ListOps whose validation accuracy is `evaluations` at the steps 0, 20 and 40."""
    values = {
        "run": {"dir": str(folder), "seed": seed},
        "model": {"model_type": "wavspa"},
        "data": {"train": "data/listops/train", "eval": "data/listops/validation", "test": "data/listops/test"},
        "objective": {"name": "classification"},
        "optim": {"lr": 1e-3, "max_steps": STEPS},
        "checkpoint": {"every_steps": 20, "best": {"metric": "accuracy", "mode": "max"}},
        "provenance": {
            "git_commit": "0123456789abcdef",
            "git_diff": "",
            "device": "a processor",
            "processes": 1,
            "parameters": 1500,
            "data": {"task": {"name": "listops"}, "sequence_length": 64, "fingerprints": {"data.train": ["x"]}},
        },
    }
    for key, value in changes.items():
        section = values
        *parents, last = key.split("__")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    records = []
    for number, accuracy in enumerate(evaluations):
        records.append({"kind": "eval", "step": 20 * number, "loss": 1.0, "accuracy": accuracy, "items": 9})
        if number:
            speed = {"tokens_seen": 3600 * number, "tokens_per_second": 2.0}
            records.append({"kind": "train", "step": 20 * number, "loss": 1.0, **speed})
    if values["data"]["test"] is not None and is_whole:
        records.append({"kind": "test", "step": STEPS, "loss": 0.9, "accuracy": test, "items": 9})
    (folder / "model").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if is_whole:
        (folder / "model" / "config.json").write_text(json.dumps({**FIELDS, **values["model"]}))
    return folder


def write_classes(folder, labels):
    from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64, write_dataset

    samples = ({"input_ids": [2 + label], "labels": label} for label in labels)
    columns = {"input_ids": LIST_INT32, "labels": SCALAR_INT64}
    return write_dataset(folder, samples, columns, split="test", split_rule="all", num_labels=3)


def report_of(*paths):
    return summarize(find_runs([str(path) for path in paths]))


def test_mean_and_interval_over_seeds(tmp_path):
    values = [0.5, 0.56, 0.47, 0.52]
    for seed, value in enumerate(values):
        write_run(tmp_path / f"seed-{seed}", seed, value)
    (row,) = report_of(tmp_path).rows
    figure = row.figures["accuracy"]
    low, high = stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=stats.sem(values))
    assert figure.values == values and figure.mean == pytest.approx(sum(values) / 4)
    assert figure.interval == pytest.approx((low, high)) and row.seeds == [0, 1, 2, 3]
    # 3,600 tokens between records at 2 tokens a second: twice half an hour.
    assert (row.mean_of("hours"), row.mean_of("tokens_per_second"), row.mean_of("parameters")) == (1.0, 2.0, 1500)
    assert (row.all_of("commit"), row.all_of("device")) == ("0123456789ab", "a processor")
    (row,) = report_of(tmp_path / "seed-0").rows
    assert row.figures["accuracy"].interval is None and row.figures["accuracy"].deviation is None


@pytest.mark.parametrize(("values", "interval"), [([0.99, 0.95], (0.7159, 1)), ([0.04, 0.02], (0, 0.1571))])
def test_the_interval_of_a_share_stays_within_it(tmp_path, values, interval):
    for seed, value in enumerate(values):
        write_run(tmp_path / f"seed-{seed}", seed, value)
    (row,) = report_of(tmp_path).rows
    assert row.figures["accuracy"].interval == pytest.approx(interval, abs=1e-4)
    # The loss of these runs is a figure that may be any number.
    low, high = Figure("loss", values).interval
    assert low + high == pytest.approx(sum(values)) and (low < 0 or high > 1)
    assert Figure("pearson", [0.5, 0.9]).interval == (-1, 1) and Figure("matthews", [-0.9, -0.5]).interval == (-1, 1)


def test_seeds_that_agree_have_no_interval_in_the_table(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"seed-{seed}", seed, 0.5)
    assert "| 50.00 |" in tables.markdown(report_of(tmp_path), {}, None)


def test_figures_are_those_of_the_test_record_alone(tmp_path):
    """The validation split chooses; its own figures, however good, are never shown for the test split's."""
    run = read_run(write_run(tmp_path / "run", test=0.2, evaluations=(0.1, 0.9, 0.8)))
    assert (run.split, run.figures["accuracy"]) == ("test", 0.2)


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ({"metric": "accuracy", "mode": "max"}, 0.4),
        ({"metric": "accuracy", "mode": "min"}, 0.3),
        (None, 0.3),
    ],
)
def test_without_a_test_split_the_chosen_checkpoints_validation_figures(tmp_path, best, expected):
    folder = write_run(tmp_path / "run", data__test=None, checkpoint__best=best)
    run = read_run(folder)
    assert (run.split, run.figures["accuracy"]) == ("validation", expected)
    assert "it has chosen the checkpoint, too" in tables.markdown(report_of(folder), {}, None)


def test_the_chosen_checkpoint_is_that_of_the_run(train, data, tmp_path):
    """Of a real run whose evaluations come more often than its checkpoints; equal figures included."""
    changes = {"eval.every_steps": 1, "checkpoint.every_steps": 3, "optim.max_steps": 7}
    outcome = train(tmp_path / "run", **changes, **{"checkpoint.best": {"metric": "masked_accuracy", "mode": "max"}})
    run = read_run(tmp_path / "run")
    assert run.problem is None and run.metric == "perplexity"
    expected = {name: value for name, value in outcome.state.figures.items() if name != "items"}
    assert run.figures == pytest.approx(expected)
    assert run.hours > 0 and run.task == data.name and run.length == 24


def test_what_is_not_finished_or_has_failed_is_named_and_never_averaged(tmp_path):
    sweep = tmp_path / "sweep"
    for seed in (0, 1):
        write_run(sweep / f"seed-{seed}", seed, 0.5)
    write_run(sweep / "seed-2", 2, evaluations=(0.1, 0.9), is_whole=False)
    write_run(sweep / "seed-3", 3, evaluations=(0.1, 0.9), is_whole=False)
    (sweep / "seed-3" / "failure.json").write_text('{"exit_code": 1, "reason": "not finite"}')
    write_run(sweep / "seed-4", 4, is_whole=False)
    (sweep / "seed-5").mkdir()
    (sweep / "seed-5" / "failure.json").write_text('{"exit_code": 2, "reason": "no such data"}')
    (sweep / "sweep.json").write_text('{"seeds": 7}')
    report = report_of(sweep)
    (row,) = report.rows
    assert row.seeds == [0, 1] and row.left_out == 5 and tables.seeds(row) == "2 of 7"
    assert {folder.name: reason for folder, reason in report.left_out} == {
        "seed-2": "not finished: stands at step 20 of 40",
        "seed-3": "failed at step 20 of 40: not finite",
        "seed-4": "not finished: has not read its test split yet",
        "seed-5": "failed before its first step: no such data",
        "seed-6": "not started: its sweep has not come so far",
    }
    text = tables.markdown(report, {}, None)
    assert all(f"seed-{seed}`: " in text for seed in range(2, 7)) and "2 of 7" in text
    with pytest.raises(UserError, match=r"nothing to report yet: .*seed-2: not finished"):
        report_of(sweep / "seed-2")


def test_a_failure_that_the_run_has_outlived_counts_no_more(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "failure.json").write_text('{"exit_code": 1, "reason": "x"}')
    assert read_run(folder).problem is None


def test_only_seeds_of_one_configuration_and_one_data_set_are_averaged(tmp_path):
    write_run(tmp_path / "a" / "seed-0", 0)
    write_run(tmp_path / "a" / "seed-1", 1, optim__lr=2e-3)
    rows = report_of(tmp_path / "a").rows
    assert [row.label for row in rows] == ["wavspa (optim.lr 0.001)", "wavspa (optim.lr 0.002)"]
    write_run(tmp_path / "b" / "seed-0", 0)
    with pytest.raises(UserError, match="are the same run, with seed 0"):
        report_of(tmp_path / "a", tmp_path / "b")
    # The same folder named twice is no second run.
    assert len(report_of(tmp_path / "a", tmp_path / "a" / "seed-0").rows) == 2
    write_run(tmp_path / "c" / "seed-1", 1, provenance__data__fingerprints={"data.train": ["y"]})
    with pytest.raises(UserError, match="the same configuration, but other data"):
        report_of(tmp_path / "b", tmp_path / "c")


def test_chance_is_the_share_of_the_most_frequent_class(tmp_path):
    write_classes(tmp_path / "test", [0, 1, 1, 2, 1, 1, 0, 1])
    for seed, value in enumerate((0.7, 0.71, 0.72)):
        write_run(tmp_path / f"seed-{seed}", seed, value, data__test=str(tmp_path / "test"))
    (row,) = report_of(tmp_path / "seed-0", tmp_path / "seed-1", tmp_path / "seed-2").rows
    assert row.chance == 5 / 8 and row.against_chance == "above"
    write_run(tmp_path / "seed-3", 3, 0.5, data__test=str(tmp_path / "test"))
    (row,) = report_of(*(tmp_path / f"seed-{seed}" for seed in range(4))).rows
    assert row.against_chance == "contains it"


def test_data_of_a_relative_path_are_where_the_run_was_begun(tmp_path, monkeypatch):
    manifest = write_classes(tmp_path / "place" / "data", [0, 1, 1, 2])
    noted = {"data.test": [fingerprint(manifest)]}
    changes = {"data__test": "data", "run__dir": "runs/a/seed-0", "provenance__data__fingerprints": noted}
    folder = write_run(tmp_path / "place" / "runs" / "a" / "seed-0", **changes)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert report_of(folder).rows[0].chance == 0.5
    # Another data set of that name, here or there, says nothing of the run.
    write_classes(tmp_path / "other" / "data", [0, 1, 2])
    assert report_of(folder).rows[0].chance == 0.5
    (tmp_path / "place" / "data").rename(tmp_path / "place" / "moved")
    report = report_of(folder)
    assert report.rows[0].chance is None
    told = "chance reaches is unknown: data.test, data, holds other data than those of the run"
    assert told in tables.markdown(report, {}, None)
    (tmp_path / "other" / "data").rename(tmp_path / "other" / "moved")
    assert "unknown: data.test, data, is not to be found" in tables.markdown(report_of(folder), {}, None)
    assert 'title="data.test, data, is not to be found"' in page(report_of(folder), {}, None)


def test_another_objective_on_the_tasks_data_is_another_setting(tmp_path):
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
    assert titles == {"listops, N = 1999", "listops, N = 1999, mlm", "listops, N = 1999, clm"}
    wikitext = {
        "model__model_type": "flt",
        "model__spectral_kind": "local",
        "model__mask_bound": 4.0,
        "data__train": "data/wikitext/train",
    }
    for name, values in (("clm", [30.1]), ("mlm", [])):
        changes = {**wikitext, "provenance__data__task": None, "objective__name": name}
        assert [c.value for c in cited.citations(read_run(write_run(tmp_path / f"text-{name}", **changes)))] == values


def test_data_sets_of_one_name_that_differ_are_settings_of_their_own(tmp_path):
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


def test_no_two_settings_write_one_file(tmp_path):
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


def test_an_evaluation_whose_loss_is_not_finite_is_not_chosen(tmp_path):
    folder = write_run(tmp_path / "run", data__test=None)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    best = next(record for record in records if record["kind"] == "eval" and record["accuracy"] == 0.4)
    best["loss"] = None
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert read_run(folder).figures["accuracy"] == 0.3


def test_rows_are_told_apart_by_their_folders_where_much_differs(tmp_path):
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


def test_labels_have_the_values_that_a_model_has_and_not_what_its_run_file_leaves_out(tmp_path):
    write_run(tmp_path / "default")
    write_run(tmp_path / "linear", model__space="none", model__attention="linear")
    labels = [row.label for row in report_of(tmp_path).rows]
    assert labels == ["wavspa (attention softmax, space adaptive)", "wavspa (attention linear, space none)"]
    # The same, said and left out.
    write_run(tmp_path / "said", model__space="adaptive")
    assert report_of(tmp_path / "default", tmp_path / "said").rows[1].label == "wavspa (said)"


def test_a_digest_names_no_data(tmp_path):
    task = {"name": "pathfinder", "source": "8d348bc3" * 8}
    folder = write_run(tmp_path / "run", provenance__data__task=task, data__train="data/pathfinder-official/train")
    assert report_of(folder).rows[0].setting.title == "pathfinder (pathfinder-official), N = 64"


def test_only_lengths_of_one_data_set_and_one_horizon_are_a_curve(tmp_path):
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


def test_figures_sort_by_what_is_shown(tmp_path):
    write_run(tmp_path / "run", 0, 0.125)
    text = page(report_of(tmp_path), {}, None)
    assert '<td data-key="12.5" class="number">12.50</td>' in text


def test_the_papers_figures_stand_beside_those_of_their_model_and_task(tmp_path):
    def figures(folder, **changes):
        return [entry.value for entry in cited.citations(read_run(write_run(tmp_path / folder, **changes)))]

    full = {"provenance__data__sequence_length": 1999}
    assert figures("wavspa", **full) == [55.40]
    assert figures("none", model__space="none", model__attention="performer", **full) == [18.01]
    assert figures("other", provenance__data__task={"name": "probe"}, **full) == []
    s3 = {
        "model__model_type": "s3attention",
        "provenance__data__task": {"name": "forecasting", "source": "exchange_rate.csv"},
    }
    assert figures("exchange", **s3, objective__horizon=96, objective__input_length=96) == [0.086, 0.204]
    assert figures("far", **s3, objective__horizon=720, objective__input_length=96) == [0.727, 0.669]


@pytest.mark.parametrize(
    ("task", "full", "smaller", "value"),
    [
        ({"name": "listops"}, 1999, 199, 55.40),
        ({"name": "text-bytes"}, 4096, 1000, 81.60),
        ({"name": "retrieval", "columns": ["label", "text1", "text2"]}, 4000, 512, 79.27),
        ({"name": "image", "noise": 0}, 1024, 256, 55.58),
        ({"name": "pathfinder", "path_length": 14}, 1024, 256, 81.12),
    ],
)
def test_a_smaller_version_of_a_task_is_not_compared_with_the_papers(tmp_path, task, full, smaller, value):
    for length, values in ((full, [value]), (smaller, []), (None, [])):
        about = {"provenance__data__task": task, "provenance__data__sequence_length": length}
        run = read_run(write_run(tmp_path / str(length), **about))
        assert [entry.value for entry in cited.citations(run)] == values


@pytest.mark.parametrize(
    ("task", "length", "model", "values"),
    [
        ({"name": "image", "noise": 8, "noise_splits": "all"}, 1024, {"model_type": "transformer"}, [28.12]),
        ({"name": "image", "noise": 8, "noise_splits": "test"}, 1024, {"model_type": "transformer"}, []),
        ({"name": "image", "noise": 0}, 1024, {"model_type": "transformer"}, [42.44]),
        ("image", 1024, {"model_type": "s3attention"}, []),
        ({"name": "pathfinder", "path_length": 6}, 1024, {"model_type": "transformer"}, []),
        ({"name": "pathfinder", "path_length": 14}, 1024, {"model_type": "transformer"}, [71.40]),
        ({"name": "retrieval", "columns": ["label", "query", "text"]}, 4000, {"model_type": "transformer"}, []),
        ({"name": "forecasting", "source": "exchange_rate.csv"}, 24, {"model_type": "s3attention"}, []),
        ("wikitext", 512, {"model_type": "flt", "spectral_kind": "local", "mask_bound": 1e-12}, [31.1]),
    ],
)
def test_a_variant_of_a_task_or_model_has_the_papers_figures_for_that_variant(tmp_path, task, length, model, values):
    about = {"provenance__data__task": task, "provenance__data__sequence_length": length, "model": model}
    objective = {"forecasting": "forecasting", "wikitext": "clm"}.get(task if isinstance(task, str) else task["name"])
    if objective is not None:
        about["objective"] = {"name": objective, "input_length": length, "horizon": 96}
    run = read_run(write_run(tmp_path / "run", **about))
    assert [entry.value for entry in cited.citations(run)] == values


def test_every_cited_figure_names_paper_and_table():
    tables_of_papers = cited._tables()
    assert len({table["paper"] for _, table in tables_of_papers}) == 5
    for paper, table in tables_of_papers:
        assert paper["cite"] and re.fullmatch(r"table \w+", table["table"])
        for row in table["rows"]:
            assert len(row["values"]) == len(table["columns"]) and row["name"] and row["model"]
        assert all(column.get("metric", table.get("metric")) for column in table["columns"])


class Page(HTMLParser):
    """Headings and rows of the table, and whatever could be fetched."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.sources, self.is_cell = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        self.is_cell = tag in ("td", "button")
        if self.is_cell:
            self.rows[-1].append("")
        self.sources += [value for name, value in attributes if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data):
        if self.is_cell:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag):
        self.is_cell = False


@pytest.fixture
def sweeps(tmp_path):
    """Two mixers at two lengths with two seeds each; one of them has an odd name."""
    for length, lowest in ((64, 0.436), (1999, 0.372)):
        for model in ("wavspa", "<b>|"):
            for seed in (0, 1):
                changes = {"model__model_type": model, "provenance__data__sequence_length": length}
                folder = tmp_path / "runs" / f"{model[:2]}-{length}" / f"seed-{seed}"
                write_run(folder, seed, lowest + seed / 100, **changes)
    return tmp_path / "runs"


def test_the_files_agree_and_the_page_fetches_nothing(sweeps, tmp_path, capsys):
    output = tmp_path / "report"
    assert cli.main(["report", str(sweeps), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == (output / "report.md").read_text().strip()
    rows = list(csv.DictReader((output / "report.csv").read_text().splitlines()))
    values = json.loads((output / "report.json").read_text())
    assert [float(row["mean"]) for row in rows] == [row["mean"] for row in values["rows"]]
    assert [round(row["mean"], 4) for row in values["rows"]] == [0.441, 0.441, 0.377, 0.377]
    assert [row["length"] for row in values["rows"]] == [64, 64, 1999, 1999]
    # The papers' figure is of the task at its full length.
    assert [[entry["value"] for entry in row["cited"]] for row in values["rows"]] == [[], [], [], [0.554]]
    shown = Page((output / "report.html").read_text())
    assert shown.rows[0][:4] == ["task", "model", "metric", "mean"] and len(shown.rows) == 5
    assert sorted(row[3] for row in shown.rows[1:]) == ["37.70", "37.70", "44.10", "44.10"]
    assert {row[1] for row in shown.rows[1:]} == {"<b>|", "wavspa"}
    svgs = sorted(output.glob("*.svg"))
    assert [path.name.split("-")[0] for path in svgs] == ["learning", "learning", "length", "speed", "speed"]
    assert all(f"({path.name})" in printed for path in svgs)
    assert len(shown.sources) == 5
    inlined = {base64.b64decode(source.removeprefix("data:image/svg+xml;base64,")) for source in shown.sources}
    assert inlined == {path.read_bytes() for path in svgs}
    # The same runs give the same files.
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    assert cli.main(["report", str(sweeps), "--output", str(output)]) == 0
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_without_matplotlib_there_are_tables_and_one_line_that_says_how_to_get_plots(sweeps, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    output = tmp_path / "report"
    assert cli.main(["report", str(sweeps), "--output", str(output)]) == 0
    assert sorted(path.name for path in output.iterdir()) == [f"report.{end}" for end in ("csv", "html", "json", "md")]
    for name in ("report.md", "report.html"):
        assert plots.HOW_TO_GET_PLOTS.split(":")[0] in (output / name).read_text()


def test_curves_show_the_mean_and_the_range_of_the_seeds(sweeps, monkeypatch):
    from matplotlib.axes import Axes

    drawn, shaded = [], []
    plot, fill = Axes.plot, Axes.fill_between
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: (drawn.append(a), plot(self, *a, **k))[1])
    monkeypatch.setattr(Axes, "fill_between", lambda self, *a, **k: (shaded.append(a), fill(self, *a, **k))[1])
    first = sweeps / "wa-64" / "seed-1" / "metrics.jsonl"
    first.write_text(first.read_text().replace('"accuracy": 0.4', '"accuracy": 0.6'))
    plots.draw(report_of(sweeps / "wa-64"))
    steps, means = drawn[0]
    assert (steps, means) == ([0, 20, 40], pytest.approx([10, 50, 30]))
    assert shaded[0][1:] == (pytest.approx([10, 40, 30]), pytest.approx([10, 60, 30]))


def test_the_places_of_a_chain_are_drawn_and_no_columns_of_the_table(tmp_path, capsys):
    for seed in (0, 1):
        folder = write_run(tmp_path / "runs" / f"seed-{seed}", seed)
        path = folder / "metrics.jsonl"
        path.write_text(path.read_text().replace('"items"', f'"accuracy_at_9": 0.{seed}, "accuracy_at_10": 1, "items"'))
    assert cli.main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "report")]) == 0
    printed = capsys.readouterr().out
    assert "accuracy at" not in printed and "![Error against place, listops, N = 64](places-" in printed
    assert "accuracy at" not in (tmp_path / "report" / "report.html").read_text()
    rows = csv.DictReader((tmp_path / "report" / "report.csv").read_text().splitlines())
    assert {row["metric"]: float(row["mean"]) for row in rows if "_at_" in row["metric"]} == {
        "accuracy_at_9": 0.05,
        "accuracy_at_10": 1.0,
    }


def test_errors_of_figures():
    assert error_of("accuracy", 0.9) == pytest.approx(10)
    assert error_of("mse", 0.2) == 0.2 and error_of("matthews", 0.25) == 0.75


def test_a_figure_that_is_not_finite_is_no_number(tmp_path):
    write_run(tmp_path / "run", test=None)
    report = report_of(tmp_path)
    assert math.isnan(report.rows[0].figures["accuracy"].mean)
    assert json.loads(tables.as_json(report))["rows"][0]["mean"] is None
    assert "| not finite |" in tables.markdown(report, {}, None)


def test_a_run_whose_figures_are_no_numbers_is_left_out_with_the_reason(tmp_path):
    write_run(tmp_path / "whole")
    write_run(tmp_path / "odd")
    (tmp_path / "odd" / "metrics.jsonl").write_text(
        f'{{"kind": "train", "step": {STEPS}}}\n{{"kind": "test", "step": {STEPS}, "accuracy": "much"}}\n'
    )
    ((folder, reason),) = report_of(tmp_path).left_out
    assert folder.name == "odd" and reason == "has no figures: metrics.jsonl holds none that is a number"


def test_one_seed_that_is_not_finite_leaves_no_interval(tmp_path):
    for seed, value in enumerate((0.5, None, 0.6)):
        write_run(tmp_path / f"seed-{seed}", seed, test=value)
    (row,) = report_of(tmp_path).rows
    figure = row.figures["accuracy"]
    assert figure.deviation is None and figure.interval is None and row.against_chance is None
    assert cli.main(["report", str(tmp_path), "--output", str(tmp_path / "report")]) == 0
    assert "| not finite |" in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("config.yaml", "a: [", "not valid YAML"),
        ("config.yaml", "- 1", "is not that of a run"),
        ("config.yaml", "run: 3\nmodel: {}\ndata: {}", "is not that of a run"),
        ("other.txt", "", "holds no run"),
        (None, None, "is missing: name folders"),
    ],
)
def test_folders_of_something_else(tmp_path, capsys, name, content, text):
    folder = tmp_path / "folder"
    if name is not None:
        folder.mkdir()
        (folder / name).write_text(content)
    assert cli.main(["report", str(folder), "--output", str(tmp_path / "report")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line and not (tmp_path / "report").exists()


def test_an_output_that_cannot_be_written(tmp_path, capsys):
    write_run(tmp_path / "run")
    (tmp_path / "report").write_text("")
    assert cli.main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "report")]) == 2
    assert "--output" in capsys.readouterr().err


def test_damaged_records_are_passed_over(tmp_path):
    folder = write_run(tmp_path / "run")
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "test", "step"\n3\n[]\n\xff\n{"kind": "test", "step": "x", "accuracy": 1.0}\n')
    assert read_run(folder).figures["accuracy"] == 0.5
