"""The benchmark of the papers' experiments: runs that are valid, share their recipe, and get equal time."""

import json

import pytest
import yaml

from longmix.trainer.settings import reading


@pytest.mark.parametrize("experiment", ["synthetic", "long-range", "forecasting", "language"])
def test_every_case_is_a_run_of_its_own(script, tmp_path, experiment):
    cases = script("learned.papers_cases").EXPERIMENTS[experiment].cases(tmp_path)
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


def test_rows_that_share_the_time_make_steps_by_their_speed(script, tmp_path, monkeypatch):
    papers, cases = script("papers"), script("learned.papers_cases")
    made = [cases.Case("task/fast", {"optim": {"lr": 1}}), cases.Case("task/slow", {"optim": {"lr": 1}})]
    swept = []

    def sweep(short, files, runs, seeds, jobs):
        swept.append(short)
        for case, seconds in zip(short, (0.1, 0.5), strict=True):
            folder = runs / case.name / "seed-0"
            folder.mkdir(parents=True)
            # The first record, ten times as slow, has the start in it.
            speeds = [1.0 / seconds / 10] + 3 * [1.0 / seconds]
            records = [
                {"kind": "train", "step": 10 * number, "tokens_seen": 10 * number, "tokens_per_second": speed}
                for number, speed in enumerate(speeds, 1)
            ]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return 0

    monkeypatch.setattr(papers, "_sweep", sweep)
    (tmp_path / "files").mkdir()
    monkeypatch.setattr("sys.argv", ["papers.py", "long-range", "--work", str(tmp_path), "--minutes", "2"])
    arguments = papers._parse()
    timed = papers._with_equal_time(made, tmp_path, arguments)
    assert [case.values["optim"]["max_steps"] for case in timed] == [1200, 240]
    assert [case.values["optim"]["warmup_steps"] for case in timed] == [120, 24]
    # Measured once: a run that goes on is the run that was begun.
    assert papers._with_equal_time(made, tmp_path, arguments) == timed
    with pytest.raises(SystemExit, match=r"begun with --minutes 2\.0 --jobs 2"):
        arguments.minutes = 3.0
        papers._with_equal_time(made, tmp_path, arguments)
    assert len(swept) == 1 and all(case.values["data"]["test"] is None for case in swept[0])


def test_data_that_cannot_be_made_are_named_with_their_command(script, tmp_path):
    papers, cases = script("papers"), script("learned.papers_cases")
    with pytest.raises(SystemExit, match=r"longmix prepare forecasting --source ETTh1\.csv --split ett --output"):
        papers._prepare(cases.FORECASTING_DATA, tmp_path)
