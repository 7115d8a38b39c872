"""The figures of a report: which runs count, mean, interval and chance."""

import functools
import json
import math
import os
import stat

import pytest
import yaml
from scipy import stats

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import fingerprint
from longmix.trainer import cli
from longmix.trainer.many_runs.read import read_run
from longmix.trainer.many_runs.run_values import checked_values
from longmix.trainer.report import plots, tables
from longmix.trainer.report.metrics import error_of, interval_of
from longmix.trainer.report.page import page

STEPS = 40


def test_mean_and_interval_over_seeds(tmp_path, write_run, report_of):
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
    assert row.figures["accuracy"].interval is None and row.figures["accuracy"].spread is None


@pytest.mark.parametrize(("values", "interval"), [([0.99, 0.95], (0.7159, 1)), ([0.04, 0.02], (0, 0.1571))])
def test_the_interval_of_a_share_stays_within_it(tmp_path, values, interval, write_run, report_of):
    for seed, value in enumerate(values):
        write_run(tmp_path / f"seed-{seed}", seed, value)
    (row,) = report_of(tmp_path).rows
    assert row.figures["accuracy"].interval == pytest.approx(interval, abs=1e-4)
    # A figure that may be any number, and errors, which are never negative.
    low, high = interval_of("score", values)
    assert low + high == pytest.approx(sum(values)) and (low < 0 or high > 1)
    assert [interval_of(name, values) for name in ("loss", "last_value_mse_of_OT")] == [(max(low, 0), high)] * 2
    assert interval_of("pearson", [0.5, 0.9]) == (-1, 1)
    assert interval_of("matthews", [-0.9, -0.5]) == (-1, 1)


def test_the_interval_of_a_perplexity_is_of_the_losses():
    low, high = interval_of("loss", [3.0, 3.4])
    assert interval_of("word_perplexity", [math.exp(3.0), math.exp(3.4)]) == pytest.approx(
        (math.exp(low), math.exp(high))
    )
    assert interval_of("perplexity", [1.01, 1.5])[0] == 1
    assert interval_of("perplexity", [20.0, 1e300])[1] == math.inf and interval_of("perplexity", [0.0, 2.0]) is None


def test_figures_are_those_of_the_test_record_alone(tmp_path, write_run):
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
def test_without_a_test_split_the_chosen_checkpoints_validation_figures(tmp_path, best, expected, write_run, report_of):
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


def test_figures_stay_those_of_the_model_where_checkpoints_come_at_other_steps_now(train, tmp_path):
    """`checkpoint.every_steps` may change between the starts of a run, and a finished one is not made again."""
    changes = {"eval.every_steps": 1, "checkpoint.every_steps": 3, "optim.max_steps": 7}
    best = {"checkpoint.best": {"metric": "loss", "mode": "max"}}
    train(tmp_path / "run", **changes, **best)
    before = read_run(tmp_path / "run")
    step = before.models[-1]["of_step"]
    (record,) = (record for record in before.evaluations if record["step"] == step)
    assert step in (3, 6, 7) and before.figures["loss"] == record["loss"] and before.models[-1]["step"] == 7
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("every_steps: 3", "every_steps: 1"), encoding="utf-8")
    after = read_run(tmp_path / "run")
    assert after.value("checkpoint.every_steps") == 1 and after.figures == before.figures
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    # Earlier versions noted no model: their steps are those of config.yaml, where the first is the worst here.
    assert not read_run(tmp_path / "run").models and read_run(tmp_path / "run").figures != before.figures


def test_a_run_that_goes_further_is_not_finished_before_it_has_made_its_model_anew(train, tmp_path, monkeypatch):
    run = tmp_path / "run"
    train(run, **{"optim.max_steps": 2, "data.test": None})
    assert read_run(run).problem is None
    model = (run / "model" / "model.safetensors").read_bytes()

    further = {"optim.max_steps": 4, "data.test": None, "run.allow_changes": ["optim.max_steps"]}

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("longmix.trainer.export.publish.publish", killed)
        train(run, **further)
    assert (run / "model" / "model.safetensors").read_bytes() == model
    assert read_run(run).problem == "not finished: has not written its model yet"
    train(run, **further)
    assert read_run(run).problem is None and [record["step"] for record in read_run(run).models] == [2, 4]
    assert (run / "model" / "model.safetensors").read_bytes() != model


def test_what_is_not_finished_or_has_failed_is_named_and_never_averaged(tmp_path, write_run, report_of):
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


def test_a_run_that_has_diverged_is_told_from_one_that_was_stopped(tmp_path, write_run, report_of):
    write_run(tmp_path / "whole")
    run = write_run(tmp_path / "run", 1, evaluations=(0.1, 0.9), is_whole=False)
    with open(run / "metrics.jsonl", "a") as file:
        for step in (21, 22):
            file.write(json.dumps({"kind": "train", "step": step, "loss": None}) + "\n")
    ((_, reason),) = report_of(tmp_path).left_out
    assert reason == "not finished: stands at step 22 of 40, and the losses of its last steps were not finite"


def test_a_seed_without_figures_is_one_of_its_rows_seeds(tmp_path, write_run, report_of):
    for seed in range(3):
        evaluations = (0.1, None, None) if seed == 1 else (0.1, 0.4, 0.3)
        write_run(tmp_path / f"seed-{seed}", seed, evaluations=evaluations, data__test=None)
    report = report_of(tmp_path)
    (row,) = report.rows
    assert row.seeds == [0, 2] and row.left_out == 1 and "| 2 of 3 |" in tables.markdown(report, {}, None)
    assert report.left_out == [(tmp_path / "seed-1", "has no figures: its evaluations were not finite")]


def test_a_failure_that_the_run_has_outlived_counts_no_more(tmp_path, write_run):
    folder = write_run(tmp_path / "run")
    (folder / "failure.json").write_text('{"exit_code": 1, "reason": "x"}')
    assert read_run(folder).problem is None


def test_only_seeds_of_one_configuration_and_one_data_set_are_averaged(tmp_path, write_run, report_of):
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


def test_chance_is_the_share_of_the_most_frequent_class(tmp_path, write_run, write_classes, report_of):
    write_classes(tmp_path / "test", [0, 1, 1, 2, 1, 1, 0, 1])
    for seed, value in enumerate((0.7, 0.71, 0.72)):
        write_run(tmp_path / f"seed-{seed}", seed, value, data__test=str(tmp_path / "test"))
    (row,) = report_of(tmp_path / "seed-0", tmp_path / "seed-1", tmp_path / "seed-2").rows
    assert row.chance == 5 / 8 and row.against_chance == "above"
    write_run(tmp_path / "seed-3", 3, 0.5, data__test=str(tmp_path / "test"))
    (row,) = report_of(*(tmp_path / f"seed-{seed}" for seed in range(4))).rows
    assert row.against_chance == "contains it"


def test_chance_is_of_the_samples_that_evaluations_read(tmp_path, monkeypatch, write_run, write_classes, report_of):
    """Of six samples, in two shards, evaluations of three read every second one: 2/3 of these are of one class."""
    from matplotlib.axes import Axes

    from longmix.data_prep import shard_writer

    small = functools.partial(shard_writer.ShardWriter, samples_per_shard=4)
    monkeypatch.setattr(shard_writer, "ShardWriter", small)
    manifest = write_classes(tmp_path / "data", [1, 0, 1, 0, 2, 0])
    assert len(manifest.shards) == 2
    common = {"data__eval": str(tmp_path / "data"), "data__test": None}
    for name, samples in (("few", 3), ("all", 6)):
        for seed, value in enumerate((0.55, 0.56)):
            evaluations = (0.1, value, value)
            changes = {"optim__lr": samples, "eval": {"samples": samples}, **common}
            write_run(tmp_path / "runs" / name / f"seed-{seed}", seed, evaluations=evaluations, **changes)
    report = report_of(tmp_path / "runs")
    chances = {row.letter: (row.chance, row.against_chance) for row in report.rows}
    assert chances == {"B": (2 / 3, "below"), "A": (0.5, "contains it")}
    said = "Always answering the most frequent class: 50.00 % (A), 66.67 % (B) accuracy."
    assert said in tables.markdown(report, {}, None)
    flat, letters, axhline, annotate = [], [], Axes.axhline, Axes.annotate
    monkeypatch.setattr(Axes, "annotate", lambda self, *a, **k: (letters.append(a[:2]), annotate(self, *a, **k))[1])
    monkeypatch.setattr(Axes, "axhline", lambda self, y, **k: (flat.append((y, k["label"])), axhline(self, y, **k))[1])
    plots.draw(report)
    assert flat == [(50, "most frequent class"), (pytest.approx(200 / 3), None)]
    assert letters == [("A", (1, 50)), ("B", (1, pytest.approx(200 / 3)))]
    # The curves of a run with a test split are of the validation split still.
    write_classes(tmp_path / "test", [1, 1, 1, 0])
    changes = {**common, "eval": {"samples": 3}, "data__test": str(tmp_path / "test")}
    write_run(tmp_path / "tested", **changes)
    report = report_of(tmp_path / "tested")
    assert report.rows[0].chance == 0.75
    flat.clear()
    plots.draw(report)
    assert flat == [(pytest.approx(200 / 3), "most frequent class")]


def test_data_of_a_relative_path_are_where_the_run_was_begun(
    tmp_path, monkeypatch, write_run, write_classes, report_of
):
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


def test_an_evaluation_whose_loss_is_not_finite_is_not_chosen(tmp_path, write_run):
    folder = write_run(tmp_path / "run", data__test=None)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    best = next(record for record in records if record["kind"] == "eval" and record["accuracy"] == 0.4)
    best["loss"] = None
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert read_run(folder).figures["accuracy"] == 0.3


def test_errors_of_figures():
    assert error_of("accuracy", 0.9) == pytest.approx(10)
    assert error_of("mse", 0.2) == 0.2 and error_of("matthews", 0.25) == 0.75


def test_a_run_whose_figures_are_no_numbers_is_left_out_with_the_reason(tmp_path, write_run, report_of):
    write_run(tmp_path / "whole")
    write_run(tmp_path / "odd")
    for figures, expected in (
        ('"items": 9', "has no figures: metrics.jsonl holds none that is a number"),
        ('"accuracy": "much"', "metrics.jsonl, line 2: accuracy is 'much', expected a number or null: the file is"),
        ('"accuracy": true', "metrics.jsonl, line 2: accuracy is True, expected"),
        ('"accuracy": {"a": [1]}', "metrics.jsonl, line 2: accuracy is {'a': [1]}, expected"),
        ('"accuracy": 1' + "0" * 400, "metrics.jsonl, line 2: accuracy is a huge number, expected"),
    ):
        (tmp_path / "odd" / "metrics.jsonl").write_text(
            f'{{"kind": "train", "step": {STEPS}}}\n{{"kind": "test", "step": {STEPS}, {figures}}}\n'
        )
        ((folder, reason),) = report_of(tmp_path).left_out
        assert folder.name == "odd" and reason.startswith(expected)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("run__seed", "one", "run.seed is 'one', expected a whole number"),
        ("run__seed", True, "run.seed is True"),
        ("data__train", 0.5, "data.train is 0.5, expected a folder, or a list of maps with a path"),
        ("data__test", [{"path": 1}], "data.test is"),
        ("optim__max_steps", [40], "optim.max_steps is"),
        ("optim__max_steps", 10**400, "optim.max_steps is a huge number"),
        ("checkpoint__best", {"metric": "accuracy", "mode": "up"}, "checkpoint.best is"),
        ("checkpoint__every_steps", 0, "checkpoint.every_steps is 0, expected a whole number above 0"),
        ("objective__horizon", {"a": 1}, "objective.horizon is"),
        ("provenance__parameters", "<b>", "provenance.parameters is '<b>'"),
        ("provenance__git_commit", 7, "provenance.git_commit is 7, expected a text"),
        ("provenance__data__sequence_length", -1, "provenance.data.sequence_length is -1"),
    ],
)
def test_an_edited_configuration_is_told_by_its_key(tmp_path, write_run, key, value, expected):
    folder = write_run(tmp_path / "run", evaluations=(0.1,))
    values = yaml.safe_load((folder / "config.yaml").read_text())
    section = values
    *parents, last = key.split("__")
    for parent in parents:
        section = section[parent]
    section[last] = value
    with pytest.raises(UserError) as caught:
        checked_values(values, folder / "config.yaml")
    assert str(caught.value).startswith(f"{folder / 'config.yaml'}: {expected}") and len(str(caught.value)) < 400


def test_figures_of_data_that_are_not_named_have_no_chance(tmp_path, write_run, report_of):
    for number, named in enumerate((None, [{"path": "data/listops/validation"}])):
        write_run(tmp_path / str(number) / "run", data__eval=named, data__test=None)
        (row,) = report_of(tmp_path / str(number)).rows
        assert row.chance is None and row.no_chance_because == "data.eval names no folder"


def test_keys_that_are_no_texts_do_not_end_a_report(tmp_path, write_run, report_of):
    write_run(tmp_path / "run", provenance__data__task={1: "a", "name": "listops", None: 2})
    assert [row.setting.task for row in report_of(tmp_path).rows] == ["listops"]


@pytest.mark.parametrize("seeds", [10**12, -1, 1.5, True, "3", [1]])
def test_a_plan_of_no_number_of_seeds_is_told(tmp_path, write_run, report_of, seeds):
    write_run(tmp_path / "sweep" / "seed-0")
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps({"seeds": seeds}))
    with pytest.raises(UserError, match=r"sweep\.json: seeds must be 1 to 10,000"):
        report_of(tmp_path)


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


def test_damaged_records_are_passed_over(tmp_path, write_run):
    folder = write_run(tmp_path / "run")
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "test", "step"\n3\n[]\n\xff\n{"kind": "test", "step": "x", "accuracy": 1.0}\n')
    assert read_run(folder).figures["accuracy"] == 0.5


def test_a_runs_files_that_are_none_or_endless_are_told(tmp_path):
    os.mknod(tmp_path / "config.yaml", stat.S_IFSOCK | 0o600)  # opening a named pipe would never end without the check
    with pytest.raises(UserError, match=r"config\.yaml cannot be read: it is a socket, not a file"):
        read_run(tmp_path)
    (tmp_path / "config.yaml").unlink()
    with open(tmp_path / "config.yaml", "wb") as file:
        file.truncate(2**36)
    with pytest.raises(UserError, match=r"config\.yaml cannot be read: it has more than"):
        read_run(tmp_path)
    (tmp_path / "config.yaml").write_text("{run: {dir: x}, model: {model_type: transformer}, data: {train: y}}")
    with open(tmp_path / "metrics.jsonl", "wb") as file:
        file.truncate(2**36)
    assert "metrics.jsonl cannot be read: it has more than" in read_run(tmp_path).problem


def test_a_run_that_did_not_note_its_order_has_the_earlier_one(tmp_path, write_run, report_of):
    noted = {"data__partitions": 64, "data__window": 1024, "data__order": 1}  # what it chose
    write_run(tmp_path / "a" / "seed-0")
    write_run(tmp_path / "a" / "seed-1", seed=1, **noted)
    write_run(tmp_path / "b", seed=2, **{**noted, "data__order": 2})
    assert [(row.label, len(row.runs)) for row in report_of(tmp_path).rows] == [
        ("wavspa (data.order 1)", 2),
        ("wavspa (data.order 2)", 1),
    ]
