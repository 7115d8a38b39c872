"""The benchmark of the papers' experiments: runs that are valid, share their recipe, and are searched alike."""

import json

import numpy as np
import pytest
import yaml

from longmix.data_prep.errors import UserError
from longmix.data_prep.made_files import write_files
from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64, write_dataset
from longmix.trainer.settings import reading


@pytest.mark.parametrize("experiment", ["synthetic", "long-range", "forecasting", "language"])
def test_every_case_is_a_run_of_its_own(script, tmp_path, experiment):
    cases = script("learned.papers_cases").EXPERIMENTS[experiment].cases(tmp_path)
    # Not what the machine is faster in: the table would be another one elsewhere.
    assert {case.values["precision"] for case in cases} <= {"fp32", "bf16"}
    assert len({case.name for case in cases}) == len(cases) > 2
    recipes = {}
    for case in cases:
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump({**case.values, "run": {"dir": str(tmp_path / case.name)}}))
        run = reading.load([str(path)], [])
        assert run.data.test is not None and run.data.test != run.data.eval
        assert run.checkpoint.best is not None
        task = case.name.split("/")[0]
        recipe = (run.batch, run.optim, run.data, run.eval)
        assert recipes.setdefault(task, recipe) == recipe, f"{case.name} has another recipe than the rows beside it"


@pytest.fixture
def long_range(script, tmp_path, monkeypatch):
    """(papers, two cases of one task, search(): what it finds of the two trials).

    Runs write figures in place of training: at the higher rate the first row is better, and training of the second
    fails; the test split would choose otherwise.
    """
    papers, cases = script("papers"), script("learned.papers_cases")
    made = [
        cases.Case(f"task/{name}", {"optim": {"lr": 1.0}, "data": {"train": "a", "test": "t"}})
        for name in ("one", "two")
    ]
    experiment = cases.Experiment({}, lambda work: made, 3, trials=(cases.Trial(1e-3, 0.02), cases.Trial(3e-3, 0.125)))
    swept = []

    def sweep(given, files, runs, seeds, jobs):
        swept.append((given, runs.name, seeds))
        for case in given:
            run = runs / case.name / "seed-0"
            (run / "model").mkdir(parents=True)
            rate = case.values["optim"]["lr"]
            if case.name.startswith("task/two") and rate > 2e-3:
                (run / "failure.json").write_text("{}")
                continue
            records = [{"kind": "eval", "accuracy": value} for value in (0.1, 100 * rate, 0.05)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return 1

    monkeypatch.setattr(papers, "_sweep", sweep)
    monkeypatch.setattr("sys.argv", ["papers.py", "long-range", "--work", str(tmp_path)])
    return papers, made, swept, lambda: papers.search(experiment, made, tmp_path, papers._parse())


def test_every_row_is_searched_at_the_same_points_without_the_test_split(script, long_range):
    _, made, swept, search = long_range
    found, code = search()
    first, second = script("learned.papers_cases").Trial(1e-3, 0.02), script("learned.papers_cases").Trial(3e-3, 0.125)
    assert code == 0
    # The best of a run's evaluations.
    assert found == {"task/one": {first: 0.1, second: pytest.approx(0.3)}, "task/two": {first: 0.1, second: None}}
    ((tried, folder, seeds),) = swept
    assert folder == "long-range-search" and seeds == 1 and len({case.name for case in tried}) == 4
    assert all(case.values["data"] == {"train": "a", "test": None} for case in tried)
    points = [(case.values["optim"]["lr"], case.values["model"]["initializer_range"]) for case in tried]
    assert points == 2 * [(1e-3, 0.02), (3e-3, 0.125)]
    best = script("learned.papers_tables").best
    assert best(found["task/one"]) == second and best(found["task/two"]) == first
    assert made[0].values["optim"]["lr"] == 1.0


def test_a_search_that_is_interrupted_chooses_nothing(long_range, monkeypatch):
    papers, _, _, search = long_range
    monkeypatch.setattr(papers, "_sweep", lambda *given: papers.INTERRUPTED)
    assert search()[1] == papers.INTERRUPTED
    # A sweep that could not begin leaves neither models nor failures.
    monkeypatch.setattr(papers, "_sweep", lambda *given: 2)
    assert search()[1] == 2


def test_a_row_of_which_every_trial_fails_ends_the_command(long_range, monkeypatch, tmp_path):
    papers, _, _, search = long_range

    def fail(given, files, runs, seeds, jobs):
        for case in given:
            (runs / case.name / "seed-0").mkdir(parents=True)
            (runs / case.name / "seed-0" / "failure.json").write_text("{}")
        return 1

    monkeypatch.setattr(papers, "_sweep", fail)
    assert search()[1] == 1


def test_the_page_shows_the_search_and_what_training_came_to(script, tmp_path):
    tables, cases = script("learned.papers_tables"), script("learned.papers_cases")
    trials = cases.Trial(5e-4, 0.02), cases.Trial(1.5e-3, 0.125)
    found = {
        "a/one": dict(zip(trials, (0.25, 0.5), strict=True)),
        "b/one": dict(zip(trials, (0.25, None), strict=True)),
    }
    for seed in (0, 1):
        run = tmp_path / "a" / "one" / f"seed-{seed}"
        run.mkdir(parents=True)
        (run.with_name(f"seed-{seed}.log")).write_text("")
        records = [{"kind": "train", "loss": loss} for loss in (2.0 + seed, 9.0, 1.0)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    text = tables.search_section(found, tmp_path)
    assert "|  | 0.0005, 0.02 | 0.0015, 0.125 | training loss |" in text
    assert "### a\n" in text and "| `one` | 25.0 | **50.0** | 2.50 to 1.00 |" in text
    assert "### b\n" in text and "| `one` | **25.0** | failed | – |" in text


def test_counting_stands_below_the_table_of_language_models(script, tmp_path, monkeypatch):
    """With the rows that the first seed reads, all of them if it reads the data more than once."""
    papers, cases = script("papers"), script("learned.papers_cases")
    rows = [{"input_ids": [1, *(3 + (number + place) % 5 for place in range(6))]} for number in range(20)]
    for split in ("train", "test"):
        fields = {"split": split, "split_rule": "all", "vocab_size": 9, "pad_token_id": 0, "words": 70}
        write_dataset(tmp_path / split, rows, {"input_ids": LIST_INT32}, **fields)
    data = {"train": str(tmp_path / "train"), "test": str(tmp_path / "test")}
    read, pairs = [], papers.causal_bigram.pairs

    def noted(dataset, indices):
        read.append(indices)
        return pairs(dataset, indices)

    monkeypatch.setattr(papers.causal_bigram, "pairs", noted)
    for steps in (3, 100):
        case = cases.Case(
            "wikipedia/transformer", {"data": data, "batch": {"samples": 4}, "optim": {"max_steps": steps}}
        )
        found = papers.counted(case)
    order = papers.RunOrder([20], [1.0], 16, 4096, 0).draw(0, 12).sample
    assert sorted(np.concatenate(read[1:3]).tolist()) == sorted(order.tolist())
    assert sorted(np.concatenate(read[4:6]).tolist()) == list(range(20))
    text = script("learned.papers_tables").bigram_section(found)
    row = found["interpolated bigram"]
    line = (
        f"| interpolated bigram | {row['word_perplexity']:.4g} | {row['token_perplexity']:.4g} | {row['loss']:.3f} | "
    )
    assert text.count(line) == 1 and "| unigram | " in text


@pytest.mark.parametrize("lengths, reads", [((6, 6), "the value at each position"), ((4, 9), "runs of up to 2 tokens")])
def test_a_logistic_regression_stands_below_the_table(script, tmp_path, lengths, reads):
    """It finds a class that one position decides, or a pair of tokens; the test split decides nothing."""
    random = np.random.default_rng(0)
    data = {}
    for split, size in (("train", 300), ("eval", 60), ("test", 60)):
        rows, inverted = [], []
        for label in random.integers(0, 2, size).tolist():
            tokens = random.integers(10, 90, random.integers(lengths[0], lengths[1] + 1))
            # 1, 2 and 2, 1 differ in their order alone.
            tokens[2:4] = (1, 2) if label else (2, 1)
            rows.append({"input_ids": tokens.tolist(), "labels": label})
            inverted.append({**rows[-1], "labels": 1 - label})
        fields = {"split": split, "split_rule": "all", "vocab_size": 100}
        data[split] = str(tmp_path / split)
        for folder, samples in ((split, rows), (f"inverted {split}", inverted)):
            write_dataset(tmp_path / folder, samples, {"input_ids": LIST_INT32, "labels": SCALAR_INT64}, **fields)
    score = script("learned.linear_baseline").score
    found = score(data)
    assert found["reads"] == reads and found["accuracy"] > 0.95
    wrong = score({**data, "test": str(tmp_path / "inverted test")})
    assert wrong == {**found, "accuracy": pytest.approx(1 - found["accuracy"])}
    text = script("learned.papers_tables").linear_section({"task-6": found})
    assert f"| task-6 | {100 * found['accuracy']:.1f} | {100 * found['validation']:.1f} | {reads} | " in text


def test_a_page_with_added_sections_is_written_anew_by_the_next_call(script, tmp_path):
    papers, page = script("papers"), tmp_path / "report.md"
    for _ in range(2):
        write_files(tmp_path, {page.name: "table\n"}, earlier=lambda path: False)
        papers.append(page, "section\n")
        assert page.read_text() == "table\nsection\n"
    page.write_text("table\nmine\n")
    with pytest.raises(UserError, match="has changed since longmix wrote it"):
        papers.append(page, "section\n")


def test_the_plan_counts_runs_and_hours(script, tmp_path, monkeypatch, capsys):
    papers, cases = script("papers"), script("learned.papers_cases")
    experiment = cases.EXPERIMENTS["long-range"]
    made = [case for case in experiment.cases(tmp_path) if case.name.endswith(("listops-200/flt", "image-16/fnet"))]
    monkeypatch.setattr(papers, "_tokens", lambda case: 3.6e6)
    assert papers.plan("long-range", experiment, made) == 0
    lines = capsys.readouterr().out.splitlines()
    # Six trials and three seeds, at 24,677 and 74,406 tokens a second in the table that is committed, or another.
    assert [line.split()[:3] for line in lines[:2]] == [
        ["listops-200/flt", "9", "runs"],
        ["image-16/fnet", "9", "runs"],
    ]
    assert float(lines[0].split()[3]) > float(lines[1].split()[3]) > 0 and lines[2].endswith("are not repeated")


def test_data_that_cannot_be_made_are_named_with_their_command(script, tmp_path):
    papers, cases = script("papers"), script("learned.papers_cases")
    with pytest.raises(SystemExit, match=r"longmix prepare forecasting --source ETTh1\.csv --split ett --output"):
        papers._prepare(cases.FORECASTING_DATA, tmp_path)
