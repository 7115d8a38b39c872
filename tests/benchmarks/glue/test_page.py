"""What the GLUE table says of its scores, and its page."""

import dataclasses
import json
import math

import numpy as np
import pytest

from longmix.data_prep.errors import UserError


def test_the_spreads_are_those_of_the_analysis_of_variance(script):
    spread = script("glue_table.spread")
    # No rest: the seeds of fine-tuning add the same to both means.
    found = spread.score([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]])
    assert found.mean == 4.0 and found.tuning == 1.0 and found.seeds == (2, 3)
    assert found.pretraining == pytest.approx(math.sqrt(8))
    assert found.error == pytest.approx(math.sqrt(8 / 2 + 1 / 3))
    # All of it is rest: what one seed of fine-tuning adds here it takes away there.
    found = spread.score([[1.0, 3.0], [3.0, 1.0]])
    assert (found.pretraining, found.tuning) == (0.0, 2.0) and found.error == 1.0
    # The means are 1.5 and 3.5: variance 2, of which half of a rest of 1 comes from fine-tuning.
    found = spread.score([[1.0, 2.0], [4.0, 3.0]])
    assert found.pretraining == pytest.approx(math.sqrt(1.5)) and (found.tuning, found.error) == (1.0, 1.0)
    alike = spread.score([[1.0, 3.0], [1.0, 3.0]])
    assert alike.pretraining == 0.0 and alike.error == 1.0  # not of four seeds: they are two
    alone = spread.score([[1.0, 3.0]])
    assert alone.pretraining is None and alone.error == 1.0
    assert spread.score([[1.0]]).error is None
    assert spread.score([[1.0], [3.0]]).error == 1.0


def test_the_error_is_that_of_means_that_are_drawn_again(script):
    """Of all parts, whichever of them is there."""
    spread, generator = script("glue_table.spread"), np.random.default_rng(0)
    for parts in ((1.0, 0.0, 0.5), (0.0, 1.0, 0.5), (0.5, 0.5, 1.0)):
        means, squares = [], []
        for _ in range(4000):
            first, second, rest = (
                part * generator.standard_normal(shape) for part, shape in zip(parts, ((4, 1), 5, (4, 5)), strict=True)
            )
            found = spread.score((first + second + rest).tolist())
            means.append(found.mean)
            squares.append(found.error**2)
        # What is below 0 counts as 0, which makes errors a little too large.
        assert 0.97 < np.mean(squares) / np.var(means) < 1.2


def test_a_difference_counts_beyond_two_standard_errors(script):
    spread = script("glue_table.spread")
    first, second = spread.score([[4.0, 6.0]]), spread.score([[1.0, 3.0]])
    found = spread.difference(first, second)
    assert found.value == 3.0 and found.error == pytest.approx(math.sqrt(2)) and found.is_above
    assert not spread.difference(first, spread.score([[1.5, 3.5]])).is_above
    assert not spread.difference(first, spread.score([[1.0]])).is_above


def test_the_bigram_is_passed_where_the_line_between_two_evaluations_crosses_it(script):
    crossing = script("glue_table.spread").crossing
    curve = [[0, 0.0, 9.0], [100, 0.1, 6.0], [200, 0.3, 4.0], [300, 0.2, 5.0]]
    assert crossing(curve, 1, 0.2) == 150 and crossing(curve, 2, 5.5) == 125
    assert crossing(curve, 1, 0.3) is None and crossing(curve, 1, -1.0) == 0


def results_of(script, budget, **tasks):
    run = {
        "seed": 0,
        "precision": "bf16",
        "masked_accuracy": 0.25,
        "loss": 4.5,
        "tokens": 4000,
        "curve": [[0, 0.0, 9.0], [4000, 0.25, 4.5]],
    }
    measured = {"parameters": 1_900_000, "parameters_outside_embeddings": 800_000, "tokens_per_second": 12_345.0}
    missing = {"measured": None, "rate": None, "searched": {}, "runs": []}
    smaller = {**measured, "parameters_outside_embeddings": 760_000}
    return {
        "budget": budget.described(),
        "decay_share": None,
        "shown": "validation",
        "corpus": {"files": ["a/b.txt"], "tokens": 5000, "vocabulary": 300},
        "counted": {
            "most frequent token": {"masked_accuracy": 0.05},
            "interpolated bigram": {"masked_accuracy": 0.2, "loss": 4.0},
        },
        "rows": {
            "transformer": {"measured": measured, "rate": 2e-3, "searched": {}, "runs": [run, {**run, "seed": 1}]},
            "paramixer": {"measured": smaller, "rate": None, "searched": {}, "runs": []},
            "flt": missing,
        },
        "tasks": {
            name: {"examples": 20, "reported": 10, "bag_of_words": 0.754, "rows": rows} for name, rows in tasks.items()
        },
        "stages": {
            row: [{"stage": "tuning", "runs": 1, "hours": 0.5, "done": done, "hours_done": done / 2}]
            for row, done in (("transformer", 1), ("paramixer", 0), ("flt", 0))
        },
        "made": [{"commit": "abc", "machine": "one core", "threads": 1}],
        "written_by": "abc",
    }


def start(*scores):
    several = {
        "rates": [1e-3] * len(scores),
        "seeds": list(range(len(scores))),
        "scores": [list(row) for row in scores],
    }
    return {"rate": 1e-3, **several, "baseline": 0.5}


GOOD = {
    "pretrained": start([0.8, 0.82], [0.8, 0.82]),
    "random": start([0.6, 0.62], [0.6, 0.62]),
    "random at scale": start([0.7, 0.72], [0.7, 0.72]),
}
NULL = {
    "pretrained": start([0.7, 0.72], [0.6, 0.62]),
    "random": start([0.6, 0.62]),
    "random at scale": start([0.7, 0.72]),
}


def test_the_page_shows_every_figure(script, budget):
    page = script("glue_table.page")
    results = results_of(script, budget, imdb={"paramixer": GOOD, "transformer": NULL}, cola={"flt": {}})
    text = page.render(results, "the command")
    for line in (
        "| most frequent token |  |  |  | 5.0 |  |  |  |  |",
        "| interpolated bigram |  |  |  | 20.0 | 4.00 |  |  |  |",
        "| `transformer` | 1.90 M | 0.80 M (+0.0 %) | 0.002 | 25.0, 25.0 | 4.50, 4.50 | 12,345 | 0.0, 0.0 | not, not |",
        "| `paramixer` | 1.90 M | 0.76 M (-5.0 %) | – | – | – | 12,345 | – | – |",
        "| `flt` | – | – | – | – | – | – | – | – |",
        # Equal means of the seeds: all of the spread is fine-tuning's.
        "| `paramixer` | **81.0 ± 1.0** | 0.0 | 1.4 | 61.0 ± 1.0 | 71.0 ± 1.0 | +20.0 ± 1.4 | +10.0 ± 1.4 |",
        "| `transformer` | 66.0 ± 5.1 | 7.1 | 1.4 | 61.0 ± 1.0 | 71.0 ± 1.0 | +5.0 ± 5.2 | -5.0 ± 5.2 |",
        "| `flt` | – | – | – | – | – | – | – |",
        "| all | 3 | 1 | 1.50 | 0.50 |",
    ):
        assert line in text.splitlines(), line
    joined = " ".join(text.split())
    assert (
        "With all seeds: The gate (paramixer on imdb, 2 x 2 seeds) is passed: +20.0 points (standard error 1.4) against"
        in joined
    )
    assert "The gate (paramixer on imdb, 1 x 2 seeds) is passed: " in joined and "--past-gate" not in joined
    assert "All 5,000 tokens of the training documents are counted." in joined
    assert "pieces (its penalty by cross-validation of the training examples) has 75.4." in joined
    assert "most frequent class gives 50.0." in joined and "`the command` makes the page" in joined


def test_the_page_says_which_reviews_are_reported_and_where_the_rate_falls(script, budget):
    page = script("glue_table.page")
    results = {**results_of(script, budget, imdb={"paramixer": GOOD}), "decay_share": 0.25}
    text = " ".join(page.render(results, "COMMAND").split())
    assert "a fixed part of its test reviews, without the 5 by which the way of fine-tuning was found), by" in text
    assert "where they are in the last 25 % of the budget, the falling rate has helped." in text
    assert "falling rate" not in page.render({**results, "decay_share": None}, "COMMAND")
    assert "reviews" not in page.render(results_of(script, budget, cola={"paramixer": GOOD}), "COMMAND")


def test_a_curve_is_shown_where_a_run_was_evaluated_and_nowhere_else(script, budget):
    results = results_of(script, dataclasses.replace(budget, tokens=4000, evaluations=4))
    # Evaluations come after whole steps.
    curve = [[0, 0.0, 9.0], [1004, 0.11, 6.0], [2008, 0.12, 5.5], [3012, 0.13, 5.0], [4000, 0.25, 4.5]]
    results["rows"]["transformer"]["runs"] = [{**results["rows"]["transformer"]["runs"][0], "curve": curve}]
    lines = script("glue_table.page").render(results, "the command").splitlines()
    place = next(number for number, line in enumerate(lines) if "after M tokens" in line)
    assert lines[place] == "| masked accuracy, %, after M tokens | 0.001 | 0.002 | 0.003 | 0.004 |"
    assert lines[place + 2] == "| `transformer` | 11.0 | 12.0 | 13.0 | 25.0 |"


def test_a_null_result_is_told_as_such(script, budget):
    page = script("glue_table.page")
    text = " ".join(page.render(results_of(script, budget, imdb={"paramixer": NULL}), "x").split())
    assert "is not passed: pre-training does not beat both controls by two standard errors: +5.0 points" in text
    assert "**66.0" not in text
    text = " ".join(page.render(results_of(script, budget), "x").split())
    assert "The gate (paramixer on imdb) has not been measured with several seeds." in text
    alone = {name: start([0.7]) for name in GOOD}
    text = page.render(results_of(script, budget, imdb={"paramixer": alone}), "x")
    assert "has not been measured with several seeds" in " ".join(text.split())
    assert "| `paramixer` | 70.0 | – | – | 70.0 | 70.0 | +0.0 | +0.0 |" in text.splitlines()


def part_of(results, *rows):
    """The results of a table that was made of some rows."""

    def only(values):
        return {row: value for row, value in values.items() if row in rows}

    tasks = {name: {**task, "rows": only(task["rows"])} for name, task in results["tasks"].items()}
    return {**results, "rows": only(results["rows"]), "stages": only(results["stages"]), "tasks": tasks}


def test_a_recorded_table_keeps_the_rows_that_are_not_made_again(script, budget):
    joined = script("glue_table.results").joined
    whole = results_of(script, budget, imdb={"transformer": NULL, "paramixer": GOOD})
    first = {**part_of(whole, "flt", "paramixer"), "made": [{"commit": "0ld", "machine": "b", "threads": 1}]}
    first = json.loads(json.dumps(first))
    found = joined(part_of(whole, "transformer", "paramixer"), first)
    assert {**found, "made": whole["made"]} == whole and list(found["rows"]) == ["transformer", "flt", "paramixer"]
    assert found["made"] == [*first["made"], *whole["made"]]
    # What is made again takes the older one's place.
    again = part_of(whole, "paramixer")
    again["rows"]["paramixer"] = {**whole["rows"]["paramixer"], "rate": 5.0}
    assert joined(again, whole)["rows"]["paramixer"]["rate"] == 5.0
    # Machines differ in last digits, tables in more.
    counted = {**whole["counted"], "interpolated bigram": {"masked_accuracy": 0.2 + 1e-9, "loss": 4.0}}
    assert joined({**again, "counted": counted}, whole)["rows"].keys() == whole["rows"].keys()
    corpus = {**whole["corpus"], "tokens": 5001}
    for other in ({"corpus": corpus}, {"tasks": {}}, {"budget": {**whole["budget"], "tokens": 1}}):
        with pytest.raises(UserError, match=rf"the recorded table has another {next(iter(other))}: give the same"):
            joined({**again, **other}, whole)


def test_a_row_of_which_nothing_has_finished_takes_no_recorded_ones_place(script, budget):
    joined = script("glue_table.results").joined
    whole = results_of(script, budget, imdb={"transformer": NULL, "paramixer": GOOD})
    whole["rows"]["paramixer"]["runs"] = whole["rows"]["transformer"]["runs"]
    # As after a gate that was not passed: all rows were asked for, and one was begun.
    now = json.loads(json.dumps(whole))
    now["rows"]["transformer"] = {**now["rows"]["transformer"], "runs": []}
    now["tasks"]["imdb"]["rows"]["transformer"] = {}
    now["stages"]["transformer"] = []
    now["rows"]["paramixer"]["rate"] = 5.0
    found = joined(now, whole)
    assert found["rows"]["paramixer"]["rate"] == 5.0
    found["rows"]["paramixer"]["rate"] = None
    assert found == whole


def test_every_score_has_a_line_in_the_csv(script, budget):
    page = script("glue_table.page")
    lines = page.csv_records(results_of(script, budget, imdb={"paramixer": GOOD}))
    scores = [line for line in lines if line["table"] == "fine-tuning"]
    assert len(scores) == 12 and {tuple(line) for line in lines} == {page.CSV_COLUMNS}
    assert scores[1] == {
        "table": "fine-tuning",
        "row": "paramixer",
        "start": "pretrained",
        "task": "imdb",
        "pretraining_seed": 0,
        "tuning_seed": 1,
        "figure": "accuracy",
        "value": 0.82,
    }


def test_a_seed_alone_keeps_its_number_in_the_csv(script, budget):
    second = {**GOOD, "pretrained": {**start([0.8, 0.82]), "seeds": [1]}}
    lines = script("glue_table.page").csv_records(results_of(script, budget, imdb={"paramixer": second}))
    assert {line["pretraining_seed"] for line in lines if line["start"] == "pretrained"} == {1}


def test_one_seed_of_pre_training_passes_the_gate_but_is_not_bold(script, budget):
    alone = {name: start(found["scores"][0]) for name, found in GOOD.items()}
    text = script("glue_table.page").render(results_of(script, budget, imdb={"paramixer": alone}), "x")
    assert "| `paramixer` | 81.0 ± 1.0 |" in text and "**81.0" not in text
    told = "(paramixer on imdb, 1 x 2 seeds) is passed: +20.0 points (standard error 1.4) against random weights"
    joined = " ".join(text.split())
    assert (
        told in joined and "against random at scale weights; how seeds of pre-training differ is not in it." in joined
    )
    assert "how seeds of pre-training differ" not in script("glue_table.results").gate(GOOD)[1]
    assert "With all seeds" not in joined


def test_a_gate_that_the_first_seed_does_not_pass_is_told(script, budget):
    second = {**GOOD, "pretrained": start([0.6, 0.62], [0.8, 0.82], [0.8, 0.82], [0.8, 0.82])}
    joined = " ".join(
        script("glue_table.page").render(results_of(script, budget, imdb={"paramixer": second}), "x").split()
    )
    assert "1 x 2 seeds) is not passed: " in joined and "Other rows run nevertheless with `--past-gate`." in joined


def test_the_page_says_where_fine_tuning_has_another_rate(script, budget):
    found = {**GOOD, "pretrained": {**GOOD["pretrained"], "rates": [1e-3, 5e-4]}}
    text = script("glue_table.page").render(results_of(script, budget, imdb={"paramixer": found}), "the command")
    said = "Of `paramixer`, pretrained, 1 of 2 have a smaller rate than the 0.001 that was chosen, with which"
    assert " ".join(text.split()).count(said) == 1


def test_the_page_says_where_a_better_rate_may_lie_beyond_those_searched(script, budget):
    page = script("glue_table.page")
    searched = dataclasses.replace(budget, rates=(1e-3, 2e-3), tuning_rates=(1e-4, 1e-3, 1e-2))
    results = results_of(
        script, searched, imdb={"paramixer": GOOD, "flt": {"random": {**GOOD["random"], "rate": 1e-4}}}
    )
    text = " ".join(page.render(results, "the command").split())
    assert "Of `transformer` the best rate is the largest of those searched." in text
    assert (
        "Of `flt` (random) the best rate is the smallest of those searched." in text and text.count("best rate is") == 2
    )
    alone = results_of(
        script, dataclasses.replace(budget, rates=(2e-3,), tuning_rates=(1e-3,)), imdb={"paramixer": GOOD}
    )
    assert "of those searched" not in page.render(alone, "the command")


def test_rows_that_read_other_samples_are_named(script, budget):
    page, results = script("glue_table.page"), results_of(script, budget)
    runs = results["rows"]["transformer"]["runs"]
    assert "same samples" not in page.render(results, "x")
    results["rows"]["flt"]["runs"] = runs
    assert "All read the same samples in the same order." in page.render(results, "x")
    results["rows"]["paramixer"]["runs"] = [{**run, "tokens": run["tokens"] + 9} for run in runs][:1]
    assert "same samples" not in page.render(results, "x")
    results["rows"]["paramixer"]["runs"] = [{**run, "tokens": run["tokens"] + 9} for run in runs]
    text = " ".join(page.render(results, "x").split())
    assert "in another order: `paramixer` 4,009 and 4,009, the other rows 4,000 and 4,000 tokens." in text


def test_the_precision_of_pre_training_is_told(script, budget):
    page, results = script("glue_table.page"), results_of(script, budget)
    assert "Pre-training ran in bf16, fine-tuning, on CPUs, in fp32." in " ".join(page.render(results, "x").split())
    results["rows"]["flt"]["runs"] = [{**run, "precision": "fp32"} for run in results["rows"]["transformer"]["runs"]]
    assert "ran in bf16 for `transformer`, in fp32 for `flt`, fine-tuning" in " ".join(
        page.render(results, "x").split()
    )


def test_the_page_says_on_which_documents_rates_are_chosen(script, budget):
    page, results = script("glue_table.page"), results_of(script, budget)
    assert "10 % of the tokens, on the documents that are shown here, too." in " ".join(
        page.render(results, "x").split()
    )
    results["shown"] = "test"
    assert "10 % of the tokens, on other held-out documents." in " ".join(page.render(results, "x").split())


def test_the_recorded_page_says_what_the_page_says_now(script):
    glue, page = script("glue"), script("glue_table.page")
    results = json.loads((glue.RECORDED / "results.json").read_text(encoding="utf-8"))
    assert (glue.RECORDED / "report.md").read_text(encoding="utf-8") == page.render(results, glue.COMMAND)
