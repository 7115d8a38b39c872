import json

import numpy as np
import pytest

from longmix.data_prep.errors import UserError
from longmix.data_prep.shards import LIST_INT32, write_dataset
from longmix.trainer.finetune import collect, results
from longmix.trainer.finetune.submission import format_prediction, write_submission
from longmix.trainer.finetune.tasks import TASKS, custom_task
from longmix.trainer.samples.label_scale import LabelScale

GOLD = np.array([0, 1] * 50)


def wrong(count):
    return np.concatenate([1 - GOLD[:count], GOLD[count:]])


@pytest.fixture
def table():
    rte = results.summarize(
        TASKS["rte"], [0, 1], {"dev": GOLD}, {"dev": np.stack([wrong(10), wrong(20)])}, {"epochs": 3}, ["a note"]
    )
    mnli = results.summarize(
        TASKS["mnli"],
        [0],
        {"dev-matched": GOLD, "dev-mismatched": GOLD},
        {"dev-matched": wrong(50)[None], "dev-mismatched": wrong(30)[None]},
    )
    mrpc = results.summarize(TASKS["mrpc"], [0], {"dev": GOLD}, {"dev": np.ones((1, 100), dtype=int)})
    return results.Results("runs/x/model", "hash", [rte, mnli, mrpc], {"qqp": "no folder QQP"})


def test_means_spreads_and_verdicts(table):
    figure = table.tasks[0].splits[0].figures["accuracy"]
    assert figure.values == pytest.approx([0.9, 0.8])
    assert (figure.mean, figure.spread, figure.baseline) == pytest.approx((0.85, np.std([0.9, 0.8], ddof=1), 0.5))
    assert figure.interval[0] < 0.8 and figure.interval[1] > 0.9 and figure.verdict == "above"
    matched, mismatched = (split.figures["accuracy"] for split in table.tasks[1].splits)
    assert matched.spread is None and matched.verdict == "contains"
    assert mismatched.verdict == "above"
    mrpc = table.tasks[2].splits[0].figures
    assert mrpc["f1"].mean == pytest.approx(2 / 3)
    assert mrpc["score"].mean == pytest.approx((0.5 + 2 / 3) / 2)


def test_worse_than_a_constant_answer_is_said(table):
    worse = results.summarize(TASKS["rte"], [0], {"dev": GOLD}, {"dev": wrong(80)[None]})
    assert worse.splits[0].figures["accuracy"].verdict == "below"
    assert results.rows(results.Results("x", "hash", [worse], {}))[0][-1] == "WORSE"
    assert results.rows(table)[0][-1] == "better"


def test_classes_of_ones_own_have_further_figures():
    task = custom_task(("text",), "label", ("no", "yes"), "matthews")
    settings = {"metric": "matthews", "learning_rate": 1e-3}
    found = results.summarize(task, [0], {"dev": GOLD}, {"dev": np.ones((1, 100), dtype=int)}, settings)
    assert found.score == 0 and "dev, seed 0: matthews: all predictions are equal, counted as 0.0" in found.notes
    table = results.Results("x", "hash", [found], {})
    assert [(row[1], row[4]) for row in results.rows(table)] == [
        ("matthews", "0.0"), ("accuracy", "50.0"), ("macro_f1", "33.3"),
    ]  # fmt: skip
    assert "custom: 1 seed, metric matthews, learning rate 0.001" in results.console(table)


def test_errors_of_a_regression_are_in_its_unit(tmp_path):
    task, values = custom_task(("text",), "label", ()), 2e-4 + 1e-5 * np.arange(100.0)
    found = results.summarize(task, [0], {"dev": values}, {"dev": values[None] + 2e-6})
    diverged = results.summarize(task, [0], {"dev": values}, {"dev": values[None] * np.nan})
    table = results.Results("x", "hash", [found], {})
    cells = {row[1]: row[4:] for row in results.rows(table)}
    assert list(cells) == ["pearson", "spearman", "rmse", "mae", "score"] and cells["score"][0] == "100.0"
    assert cells["rmse"] == ("2e-06", "-", "2e-06 to 2e-06", "100", "0.0002887", "better")
    assert "but rmse and mae in the unit of the label, the lower the better." in results.console(table)
    assert set(diverged.splits[0].figures) == {"pearson", "spearman", "score"}
    table.tasks.append(diverged)
    table.save(tmp_path, ["custom"])
    assert results.Results.load(tmp_path) == table
    worse = results.summarize(task, [0], {"dev": values}, {"dev": -values[None]})
    assert results.rows(results.Results("x", "hash", [worse], {}))[2][-1] == "WORSE"


def test_average_is_over_tasks(table):
    rte, mnli, mrpc = 0.85, (0.5 + 0.7) / 2, (0.5 + 2 / 3) / 2
    assert table.average == pytest.approx((rte + mnli + mrpc) / 3)
    assert results.Results("x", "hash", [], {}).average is None


def test_one_task_has_no_average_of_glue(table):
    alone = results.Results("x", "hash", table.tasks[:1], {})
    assert not any("average" in line for line in results.footer(alone))


def test_table_says_what_ran_and_what_did_not(table):
    text = results.console(table)
    assert "GLUE average on dev over 3 of 9 tasks (rte, mnli, mrpc)" in text
    assert "skipped qqp: no folder QQP" in text
    assert "mnli mismatched" in text and "rte: a note" in text
    assert "not told apart: the interval contains it" in text
    assert max(len(line) for line in text.splitlines()[:6]) < 130
    assert "| rte | accuracy | - | - | 85.0 | 7.1 |" in results.markdown(table)


def test_figures_of_a_test_split_are_called_so():
    settings = {"learning_rate": 0.1 + 0.2, "epochs": 1}
    custom = results.summarize(TASKS["rte"], [0], {"test": GOLD}, {"test": wrong(80)[None]}, settings)
    alone = results.Results("x", "hash", [custom], {})
    assert "dev" not in (*results.header(alone), results.explanation(alone))
    text = results.console(alone)
    assert text.splitlines()[1].split()[4] == "test" and "learning rate 0.3, epochs 1" in text
    beside = results.Results(
        "x", "hash", [results.summarize(TASKS["rte"], [0], {"dev": GOLD}, {"dev": GOLD[None]})], {}
    )
    assert results.header(beside)[4] == "dev"
    beside.tasks.append(custom)
    assert results.header(beside)[4] == "dev or test"
    assert [row[0] for row in results.rows(beside)] == ["rte", "rte (test)"]


def test_json(table, tmp_path):
    table.save(tmp_path, ["rte", "mnli", "mrpc"])
    loaded = json.loads((tmp_path / "results.json").read_text())
    assert loaded["average"] == {"score": pytest.approx(table.average), "tasks": ["mrpc", "mnli", "rte"], "of": 9}
    figure = loaded["tasks"][2]["splits"][0]["figures"]["accuracy"]
    assert figure["values"] == [0.9, 0.8] and figure["verdict"] == "above"
    assert (tmp_path / "results.md").read_text() == results.markdown(table)
    assert results.Results.load(tmp_path) == table and results.Results.load(tmp_path / "none") is None
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UserError, match="is no results table"):
        results.Results.load(tmp_path)


def test_what_another_command_has_written_meanwhile_stays(table, tmp_path):
    rte, mnli, _ = table.tasks
    results.Results("x", "hash", [rte], {}).save(tmp_path, ["rte"])
    # Begun before: it knows of nothing that stood there.
    results.Results("x", "hash", [mnli], {}).save(tmp_path, ["mnli"])
    assert results.Results.load(tmp_path).tasks == [mnli, rte]
    assert "| rte | accuracy |" in (tmp_path / "results.md").read_text()
    with pytest.raises(UserError, match="holds the results of another checkpoint, x: choose another"):
        results.Results("y", "other", [mnli], {}).save(tmp_path, ["mnli"])


@pytest.mark.parametrize(
    ("name", "predictions", "expected"),
    [
        ("cola", [0, 1], ["0", "1"]),
        ("mnli", [0, 2], ["entailment", "contradiction"]),
        ("qnli", [0, 1], ["entailment", "not_entailment"]),
        ("rte", [1, 0], ["not_entailment", "entailment"]),
        ("wnli", [1, 0], ["1", "0"]),
        ("stsb", [-0.2, 5.31], ["0.000", "5.000"]),
        ("stsb", [3.14159, float("nan")], ["3.142", "0.000"]),
    ],
)
def test_submission_files(name, predictions, expected, tmp_path):
    write_submission(TASKS[name], ["0", "7"], np.array(predictions), tmp_path / "x.tsv")
    assert (tmp_path / "x.tsv").read_bytes() == f"index\tprediction\n0\t{expected[0]}\n7\t{expected[1]}\n".encode()


@pytest.mark.parametrize(
    ("scale", "value", "expected"),
    [
        (None, -3.4234885445e-4, "-0.0003423489"),
        (LabelScale(-2e-4, 1e-4), -3.4234885445e-4, "-0.0003423489"),
        (LabelScale(1.7e9, 150.0), 1.7e9 + 18.51851835, "1700000018.5185"),
        (None, float("nan"), "nan"),
    ],
)
def test_values_of_ones_own_task_have_the_digits_of_their_unit(scale, value, expected):
    assert format_prediction(custom_task(("text",), "label", ()), value, scale) == expected


def test_submission_names():
    names = [split.submission for task in TASKS.values() for split in task.test]
    assert names == [
        "CoLA.tsv",
        "SST-2.tsv",
        "MRPC.tsv",
        "STS-B.tsv",
        "QQP.tsv",
        "MNLI-m.tsv",
        "MNLI-mm.tsv",
        "AX.tsv",
        "QNLI.tsv",
        "RTE.tsv",
        "WNLI.tsv",
    ]


def test_submission_needs_one_prediction_for_each_row(tmp_path):
    with pytest.raises(ValueError, match="2 indices and 1 predictions"):
        write_submission(TASKS["cola"], ["0", "1"], np.array([1]), tmp_path / "x.tsv")


@pytest.mark.parametrize(
    ("report", "reason"),
    [({}, "takes a list"), ({"indices": ["0"]}, "has 1 entries for 2 samples"), ({"indices": [0, 1]}, "takes a text")],
)
def test_encoded_test_files_without_their_indices_are_told(tmp_path, report, reason):
    samples = [{"input_ids": [1]}, {"input_ids": [2]}]
    write_dataset(tmp_path / "test", samples, {"input_ids": LIST_INT32}, split="test", split_rule="all", report=report)
    with pytest.raises(
        UserError, match=rf"manifest\.json is damaged \(report\.indices: .*{reason}.*move {tmp_path} away"
    ):
        collect._indices(tmp_path, "test")
