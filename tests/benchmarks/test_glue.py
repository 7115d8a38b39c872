"""The table of equal pre-training and fine-tuning: its runs, its controls, its estimators, its page, and a kill."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import transformers

import longmix.modeling  # noqa: F401  registers the model types
from longmix.data_prep.errors import UserError
from longmix.data_prep.tokenizer import train_tokenizer
from longmix.trainer.finetune.custom import load_custom
from longmix.trainer.finetune.sources import load_task
from longmix.trainer.finetune.tasks import TASKS as GLUE
from longmix.trainer.models import sizes
from longmix.trainer.settings import reading

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RECIPE = """
objective: {name: mlm, mask_probability: 0.15}
batch: {samples: 4, micro_batch: 4}
optim: {lr: 1e-3, warmup_steps: 1, max_steps: 10}
precision: fp32
"""


WORDS = ["".join(parts) for parts in itertools.product("bdfgkl", "aeiou", "mnprst", ("", "o", "an"))]


def sentences(count, seed):
    """Made reviews: the words of a kind say the label."""
    draw, kinds = random.Random(seed), (("bad", "dull", "poor"), ("good", "fine", "great"))
    made = []
    for number in range(count):
        words = draw.choices(WORDS, k=8)
        words.insert(draw.randrange(8), draw.choice(kinds[number % 2]))
        made.append((" ".join(words), number % 2))
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A corpus, GLUE's folder with SST-2 and CoLA, IMDb's, and a recipe, all made."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("glue/SST-2", "glue/CoLA", "imdb"):
        (folder / name).mkdir(parents=True)
    # Paragraphs of several sentences, for a document is more than a line.
    texts = [". ".join(text for text, _ in sentences(6, seed)) for seed in range(300)]
    (folder / "wiki.txt").write_text("\n\n".join(texts[:150]))
    rows = [f"{number}\t{text}<br /><br />end" for number, text in enumerate(texts[150:])]
    (folder / "unlabelled.tsv").write_text("id\ttext\n" + "\n".join(rows) + "\n")
    for file, count in (("train.tsv", 60), ("dev.tsv", 20)):
        pairs = sentences(count, len(file))
        (folder / "glue/SST-2" / file).write_text("sentence\tlabel\n" + "".join(f"{t}\t{y}\n" for t, y in pairs))
        (folder / "glue/CoLA" / file).write_text("".join(f"x\t{y}\t\t{t}\n" for t, y in pairs))
    for file, count in (("train.tsv", 60), ("test.tsv", 30)):
        pairs = sentences(count, count)
        lines = [f"{y}\t{n}\t7\t{t}<br /><br />so" for n, (t, y) in enumerate(pairs)]
        (folder / "imdb" / file).write_text("label\tid\trating\ttext\n" + "\n".join(lines) + "\n")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture
def budget(script, files):
    made = script("glue_table.budget").Budget.of("tiny", 4000, recipe=files / "recipe.yaml")
    return dataclasses.replace(made, labels=20, reported=10)


@pytest.fixture
def table(script, budget, tmp_path, monkeypatch):
    """A table without data: what a sample holds is said here."""
    monkeypatch.setattr(script("glue_table.cases"), "tokens_of_a_sample", lambda folder: 100.0)
    monkeypatch.setattr(script("glue_table.plan"), "validation_tokens", lambda folder: 300)
    sizes = {"examples": 20, "reported": 10, "train_tokens": 900, "reported_tokens": 300}
    return script("glue_table.cases").Table(tmp_path / "work", budget, tmp_path / "corpus", {"imdb": sizes})


# -----------------------------------------------------------------------------
# The runs.


def test_every_row_has_the_same_recipe_and_a_model_of_its_own(script, table):
    models, recipes = {}, set()
    rows = script("glue_table.rows").ROWS
    for row in rows:
        words = table.search(row)[0].words
        paths = [word for word in words[1:] if "=" not in word]
        run = reading.load(paths, [word for word in words if "=" in word])
        models[row] = run.model
        values = {**vars(run), "model": None, "run": None}
        recipes.add(repr(values))
    assert len(models) == 8 and {row: model["model_type"] for row, model in models.items()} == {
        row: row for row in rows
    }
    assert len(recipes) == 1


@pytest.mark.parametrize("size", ["tiny", pytest.param("small", marks=pytest.mark.full)])
def test_rows_are_of_equal_size(script, files, size):
    rows = script("glue_table.rows")
    counted = {}
    for row in rows.ROWS:
        words = rows.model_words(row, size)
        paths = [word for word in words if "=" not in word] + [str(files / "recipe.yaml")]
        fields = reading.load(paths, [*(w for w in words if "=" in w), "data.train=x", "run.dir=y"]).model
        config = transformers.AutoConfig.for_model(
            fields["model_type"],
            **{name: value for name, value in fields.items() if name != "model_type"},
            vocab_size=8192,
            max_position_embeddings=128,
        )
        measured = sizes.measure(config, transformers.AutoModelForMaskedLM)
        counted[row] = measured.parameters - measured.embeddings
    for row, parameters in counted.items():
        assert parameters == pytest.approx(counted["transformer"], rel=0.05), row


def test_the_rate_with_the_least_loss_is_chosen_and_a_diverged_one_never(script, table):
    first, second, third = table.search("flt")
    assert table.rate("flt") is None and table.pretraining("flt", 0) is None
    first.finish({"loss": 5.0})
    second.finish({"loss": None})
    assert table.rate("flt") is None
    third.finish({"loss": 4.5})
    assert table.rate("flt") == third.about["rate"]
    assert f"optim.lr={third.about['rate']:g}" in table.pretraining("flt", 1).words
    for case in (first, second, third):
        case.finish({"loss": None})
    assert table.rate("flt") is None and table.pretraining("flt", 0) is None


def test_a_search_is_a_share_of_the_budget_and_a_whole_schedule(table):
    steps = {word for case in table.search("flt") for word in case.words if word.startswith("optim.max_steps")}
    assert table.steps() == 10 and steps == {"optim.max_steps=2"}
    longer = dataclasses.replace(table, budget=dataclasses.replace(table.budget, tokens=400_000))
    steps = {word for case in longer.search("flt") for word in case.words if word.startswith("optim.max_steps")}
    assert longer.steps() == 1000 and steps == {"optim.max_steps=50"}


def test_a_step_has_the_samples_of_the_recipe_or_of_what_it_extends(script, files, budget, tmp_path):
    samples = script("glue_table.cases").samples_of_a_step
    (tmp_path / "own.yaml").write_text(f"extends: {files / 'recipe.yaml'}\noptim: {{lr: 1e-2}}\n")
    extended = dataclasses.replace(budget, recipe=tmp_path / "own.yaml")
    assert samples(budget) == samples(extended) == 4
    assert samples(dataclasses.replace(extended, overrides=("batch.samples=8",))) == 8


def test_fine_tuning_takes_the_rate_that_its_own_search_has_found(table):
    assert table.tuning("flt", "random", "imdb", 0) is None
    table.tuning_search("flt", "random", "imdb")[0].finish({"rate": 6e-4})
    case = table.tuning("flt", "random", "imdb", 1)
    assert case.words[case.words.index("--lr") + 1] == "0.0006" and case.words[case.words.index("--seeds") + 1] == "3"
    assert case.words[case.words.index("--model") + 1] == str(table.work / "controls" / "flt" / "random-1")
    assert table.tuning("flt", "pretrained", "imdb", 0) is None
    table.tuning_search("flt", "pretrained", "imdb")[0].finish({"rate": 2e-4})
    case = table.tuning("flt", "pretrained", "imdb", 0)
    assert case.words[case.words.index("--seeds") + 1] == "5"
    assert case.words[case.words.index("--model") + 1].endswith("runs/pretraining/flt/seed-0/model")


def test_fine_tuning_that_diverges_goes_on_with_the_next_smaller_rate(table):
    table.tuning_search("flt", "random", "imdb")[0].finish({"rate": 6e-4})
    rates = []
    while (case := table.tuning("flt", "random", "imdb", 1)) is not None and len(rates) < 3:
        rates.append(case.words[case.words.index("--lr") + 1])
        case.finish({"scores": None})
    assert rates == ["0.0006", "0.0002"] and case is None
    assert table.tuning("flt", "random", "imdb", 0).words[-3] == "0.0006"  # another draw has its own


def test_a_record_of_another_command_does_not_count(table):
    case = table.speed("flt")[0]
    case.finish({"tokens": 1})
    assert case.record()["tokens"] == 1
    assert dataclasses.replace(case, words=(*case.words, "x=1")).record() is None


def test_a_work_folder_has_one_budget(script, budget, tmp_path):
    budget.refuse_another(tmp_path)
    budget.refuse_another(tmp_path)
    with pytest.raises(UserError, match=r"begun with another budget \(tokens 4000, now 5000\): choose another folder"):
        dataclasses.replace(budget, tokens=5000).refuse_another(tmp_path)


# -----------------------------------------------------------------------------
# The data.


def test_a_short_file_leaves_its_share_to_the_others(script):
    shares = script("glue_table.data")._shares
    assert shares([100, 1000, 1000], 900) == [100, 400, 400]
    assert shares([1000, 1000], 900) == [450, 450]
    assert shares([10, 20], 900) == [10, 20] == shares([10, 20], None)


def test_tasks_have_few_labels_and_the_dev_set_as_it_is(script, files, budget, tmp_path):
    data = script("glue_table.data")
    about = data.tasks(tmp_path, budget, files / "glue", files / "imdb")
    assert {name: (one["examples"], one["reported"]) for name, one in about.items()} == {
        "sst2": (20, 20),
        "imdb": (20, 10),
        "cola": (60, 20),
    }
    for name in ("sst2", "cola"):
        made = load_task(str(data.task_folder(tmp_path, name)), GLUE[name])
        given = load_task(str(files / "glue"), GLUE[name])
        assert made.dev["dev"].first == given.dev["dev"].first and made.dev["dev"].labels == given.dev["dev"].labels
        assert set(zip(made.train.first, made.train.labels, strict=True)) <= set(
            zip(given.train.first, given.train.labels, strict=True)
        )
        assert not made.test and len(set(made.train.labels)) == 2
    reviews = load_custom(str(data.task_folder(tmp_path, "imdb")), ("text",), "label")
    assert all(text.endswith("  so") and "<br" not in text for text in reviews.train.first)
    # The same examples whenever they are drawn.
    again = tmp_path / "again"
    assert data.tasks(again, budget, files / "glue", files / "imdb") == about
    for path in (tmp_path / "data").rglob("*.tsv"):
        assert path.read_bytes() == (again / path.relative_to(tmp_path)).read_bytes()


def test_a_linear_classifier_of_the_pieces_learns_words_and_no_order(script, tmp_path):
    bag_of_words, data = script("glue_table.bag_of_words"), script("glue_table.data")
    tokenizer = tmp_path / "tokenizer"
    train_tokenizer(["the cat sees a dog", "an old bird runs again"] * 20, tokenizer, 25, model_max_length=16)
    folder = data.task_folder(tmp_path, "imdb")
    folder.mkdir(parents=True)
    words = [("the cat sees", "the bird sees"), ("a dog runs", "the old dog runs")]
    rows = [(f"{text} {'again ' * number}", label) for number in range(8) for label in (0, 1) for text in words[label]]
    for split in ("train", "dev"):
        lines = ["text\tlabel", *(f"{text.strip()}\t{label}" for text, label in rows)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    assert bag_of_words.score(tmp_path, "imdb", tokenizer) == 1.0
    place = data.task_folder(tmp_path, "cola") / "CoLA"
    place.mkdir(parents=True)
    for split in ("train", "dev"):  # the same words in another order
        lines = [f"-\t{label}\t\t{text}" for text, label in (("cat sees dog", 1), ("dog sees cat", 0)) * 8]
        (place / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    assert bag_of_words.score(tmp_path, "cola", tokenizer) == 0.0


def test_a_task_that_is_not_given_has_no_column(script, files, budget, tmp_path):
    data = script("glue_table.data")
    (tmp_path / "empty").mkdir()
    assert data.tasks(tmp_path, budget, tmp_path / "empty", None) == {}


def test_a_table_of_other_columns_is_refused_with_its_name(script, files, budget, tmp_path):
    data = script("glue_table.data")
    for file in ("train.tsv", "test.tsv"):
        (tmp_path / file).write_text("review\tlabel\nfine\t1\n")
    with pytest.raises(UserError, match=r"train\.tsv: no column 'text' in its header; it has: review, label"):
        data.tasks(tmp_path / "work", budget, None, tmp_path)


# -----------------------------------------------------------------------------
# The controls.


@pytest.fixture
def pretrained(tmp_path):
    config = transformers.AutoConfig.for_model(
        "transformer",
        vocab_size=40,
        max_position_embeddings=16,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    model = transformers.AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.normal_(0.3 * number, 1.0 + number)
    model.save_pretrained(tmp_path / "pretrained")
    (tmp_path / "pretrained" / "tokenizer.json").write_text("{}")
    return tmp_path / "pretrained"


def loaded(folder):
    return transformers.AutoModelForMaskedLM.from_pretrained(folder)


def test_a_control_at_scale_has_the_mean_and_deviation_of_every_tensor(script, pretrained, tmp_path):
    controls = script("glue_table.controls")
    controls.make(pretrained, "random at scale", 0, tmp_path / "scaled")
    before, after = loaded(pretrained), loaded(tmp_path / "scaled")
    assert after.get_output_embeddings().weight is after.get_input_embeddings().weight
    for (name, first), second in zip(before.named_parameters(), after.parameters(), strict=True):
        error = 5 * first.std().item() / math.sqrt(first.numel())
        assert second.mean().item() == pytest.approx(first.mean().item(), abs=error), name
        assert second.std().item() == pytest.approx(first.std().item(), rel=5 / math.sqrt(2 * first.numel())), name
        assert not torch.isclose(first, second).all(), name
    assert (tmp_path / "scaled" / "tokenizer.json").read_text() == "{}"


def test_a_random_control_begins_as_a_new_model_and_every_draw_is_another(script, pretrained, tmp_path):
    controls = script("glue_table.controls")
    state = torch.get_rng_state()
    for draw in (0, 1):
        controls.make(pretrained, "random", draw, tmp_path / f"random-{draw}")
    assert torch.equal(torch.get_rng_state(), state)
    first, second = loaded(tmp_path / "random-0"), loaded(tmp_path / "random-1")
    weights = [model.get_input_embeddings().weight for model in (first, second)]
    assert not torch.equal(*weights) and weights[0].std().item() == pytest.approx(0.02, rel=0.2)
    # Not made twice: fine-tuning knows a start by its contents.
    stamp = (tmp_path / "random-0" / "model.safetensors").stat().st_mtime_ns
    controls.make(pretrained, "random", 0, tmp_path / "random-0")
    assert (tmp_path / "random-0" / "model.safetensors").stat().st_mtime_ns == stamp


# -----------------------------------------------------------------------------
# What the figures say.


def test_the_spreads_are_those_of_the_analysis_of_variance(script):
    spread = script("glue_table.spread")
    found = spread.score([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]])
    assert found.mean == 4.0 and found.tuning == 1.0 and found.seeds == (2, 3)
    # The means are 2 and 6: variance 8, of which a third of 1 comes from fine-tuning.
    assert found.pretraining == pytest.approx(math.sqrt(8 - 1 / 3))
    assert found.error == pytest.approx(math.sqrt((8 - 1 / 3) / 2 + 1 / 6)) == pytest.approx(math.sqrt(8 / 2))
    alike = spread.score([[1.0, 3.0], [1.0, 3.0]])
    assert alike.pretraining == 0.0 and alike.error == pytest.approx(math.sqrt(2 / 4))
    alone = spread.score([[1.0, 3.0]])
    assert alone.pretraining is None and alone.error == 1.0
    assert spread.score([[1.0]]).error is None


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


# -----------------------------------------------------------------------------
# The plan.


def measure(table, row, seconds=10.0):
    """Records of its speed: 100 tokens a second."""
    for case, tokens in zip(table.speed(row), (1000, 2000), strict=True):
        took = {"seconds": 99.0, "cpu_seconds": seconds + tokens / 100}
        figures = {"tokens": tokens, "tokens_per_second": 50.0, "parameters": 30, "parameters_outside_embeddings": 20}
        case.finish({**figures, **took})


def test_the_plan_counts_every_run_and_learns_from_those_that_have_finished(script, table):
    plans, Part = script("glue_table.plan"), script("glue_table.stages").Part
    part = Part(("flt", "bert"), (0, 1), ("imdb",))
    assert sum(one.runs for one in plans.plan(table, part)) == 0
    for row in part.rows:
        measure(table, row)
    assert table.measured("flt")["tokens_per_second"] == 100
    stages = {one.stage: one for one in plans.plan(table, part)}
    assert {name: one.runs for name, one in stages.items()} == {
        "speed": 4,
        "search": 6,
        "pretraining": 4,
        "tuning search": 6,
        "tuning": 12,
    }
    each = plans.STARTING + (4000 + 11 * 300 * plans.PREDICTED) / 100
    assert stages["pretraining"].hours == pytest.approx(4 * each / 3600) and stages["pretraining"].done == 0
    for number, case in enumerate(table.search("flt")):
        case.finish({"loss": 3.0 + number, "cpu_seconds": 1.0})
    made = {"masked_accuracy": 0.1, "loss": 3.0, "tokens": 4000, "curve": []}
    table.pretraining("flt", 0).finish({**made, "cpu_seconds": 2 * each})
    stage = next(one for one in plans.plan(table, part) if one.stage == "pretraining")
    # The others are expected to take twice what the formula says, too.
    assert (stage.done, stage.hours_done) == (1, 2 * each / 3600)
    assert stage.hours == pytest.approx(8 * each / 3600)


def test_hours_say_how_many_tokens(script, table):
    plans, Part = script("glue_table.plan"), script("glue_table.stages").Part
    part = Part(("flt",), (0, 1), ("imdb",))
    measure(table, "flt")
    tokens = plans.tokens_for(table, part, 50.0)
    budget = dataclasses.replace(table.budget, tokens=tokens)
    planned = plans.plan(dataclasses.replace(table, budget=budget), part)
    assert sum(one.hours for one in planned) == pytest.approx(50.0, rel=0.1)
    with pytest.raises(UserError, match=r"--hours 0\.01: all but pre-training takes"):
        plans.tokens_for(table, part, 0.01)


# -----------------------------------------------------------------------------
# The page.


def results_of(script, budget, **tasks):
    run = {"seed": 0, "masked_accuracy": 0.25, "loss": 4.5, "tokens": 4000, "curve": [[0, 0.0, 9.0], [4000, 0.25, 4.5]]}
    measured = {"parameters": 1_900_000, "parameters_outside_embeddings": 800_000, "tokens_per_second": 12_345.0}
    missing = {"measured": None, "rate": None, "searched": {}, "runs": []}
    smaller = {**measured, "parameters_outside_embeddings": 760_000}
    return {
        "budget": budget.described(),
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
    return {"rate": 1e-3, "rates": [1e-3] * len(scores), "scores": [list(row) for row in scores], "baseline": 0.5}


GOOD = {
    "pretrained": start([0.8, 0.82], [0.8, 0.82]),
    "random": start([0.6, 0.62]),
    "random at scale": start([0.7, 0.72]),
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
        "| `paramixer` | **81.0 ± 0.7** | 0.0 | 1.4 | 61.0 ± 1.0 | 71.0 ± 1.0 | +20.0 ± 1.2 | +10.0 ± 1.2 |",
        "| `transformer` | 66.0 ± 5.0 | 7.0 | 1.4 | 61.0 ± 1.0 | 71.0 ± 1.0 | +5.0 ± 5.1 | -5.0 ± 5.1 |",
        "| `flt` | – | – | – | – | – | – | – |",
        "| all | 3 | 1 | 1.50 | 0.50 |",
    ):
        assert line in text.splitlines(), line
    joined = " ".join(text.split())
    assert (
        "The gate (paramixer on imdb, 2 x 2 seeds) is passed: +20.0 points (standard error 1.2) against random"
        in joined
    )
    assert "pieces (its penalty by cross-validation of the training examples) has 75.4." in joined
    assert "most frequent class gives 50.0." in joined and "`the command` makes the page" in joined


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
    assert len(scores) == 8 and {tuple(line) for line in lines} == {page.CSV_COLUMNS}
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


def test_the_page_says_where_fine_tuning_has_another_rate(script, budget):
    found = {**GOOD, "pretrained": {**GOOD["pretrained"], "rates": [1e-3, 5e-4]}}
    text = script("glue_table.page").render(results_of(script, budget, imdb={"paramixer": found}), "the command")
    said = "Of `paramixer`, pretrained, 1 of 2 have a smaller rate than the 0.001 that was chosen, with which"
    assert " ".join(text.split()).count(said) == 1


def test_what_fails_takes_no_other_row_with_it(script, table, monkeypatch):
    stages, cases = script("glue_table.stages"), script("glue_table.cases")
    said = {"flt": "ten steps in a row had a loss or gradients that are not finite", "bert": "Killed", "fnet": ""}

    def longmix(words, log, threads):
        row = log.parent.name
        log.write_text(f"begin\n{said[row]}\n")
        return (0 if row == "fnet" else 1), {"seconds": 2.0, "cpu_seconds": 1.0, "peak_bytes": 1}

    monkeypatch.setattr(script("commands"), "timed_longmix", longmix)
    readers = []
    monkeypatch.setattr(stages, "figures", lambda case: readers.append(threading.current_thread()) or {"loss": 3.0})
    runner = stages.Runner(2, 1)
    wanted = [table.search(row)[0] for row in said]
    runner.run(wanted)
    assert [case.row for case, _ in runner.failed] == ["bert"]
    found = {case.row: case.record() for case in wanted}
    assert found["flt"]["loss"] is None and found["fnet"]["loss"] == 3.0 and found["bert"] is None
    # transformers cannot load two models at the same time.
    assert readers == [threading.main_thread()]
    # Diverging is an answer in a search, and of fine-tuning, but not of pre-training.
    table.tuning_search("flt", "random", "imdb")[0].finish({"rate": 6e-4})
    case = table.tuning("flt", "random", "imdb", 0)
    runner.run([case])
    assert case.record()["scores"] is None and table.tuning("flt", "random", "imdb", 0).about["rate"] == 2e-4
    with contextlib.suppress(FileExistsError):
        (table.work / "runs").mkdir(parents=True)
    runner.run([cases.Case("pretraining", "flt", ("train",), table.work / "runs" / "flt" / "x", table.work / "x.json")])
    assert [case.stage for case, _ in runner.failed] == ["search", "pretraining"]


# -----------------------------------------------------------------------------
# All of it, small, and killed.

DRIVER = """
import dataclasses, sys
sys.path.insert(0, sys.argv.pop(1))
import glue
from glue_table import budget, cases, data, plan
small = [f"model.{name}={value}" for name, value in
         {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "link_hidden_size": 4}.items()]
budget.SIZES["tiny"] = {
    **{"rates": (1e-3,), "tuning_rates": (1e-3,), "overrides": tuple(small), "evaluations": 2, "labels": 20},
    **{"pretraining_seeds": 1, "tuning_seeds": 2, "control_seeds": 2, "reported": 10},
}
cases.SPEED_STEPS = plan.SPEED_STEPS = (1, 2)
data.TASKS.update({name: dataclasses.replace(task, epochs=1) for name, task in data.TASKS.items()})
sys.exit(glue.main())
"""


def begin(files, work):
    arguments = [
        *("--work", work, "--corpus", files / "unlabelled.tsv", files / "wiki.txt", "--imdb", files / "imdb"),
        *("--recipe", files / "recipe.yaml", "--tokens", "4000", "--rows", "paramixer"),
    ]
    command = [sys.executable, "-c", DRIVER, str(BENCHMARKS), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def what_was_measured(work):
    results = json.loads((work / "results" / "results.json").read_text())
    for row in results["rows"].values():
        row["measured"].pop("tokens_per_second")
    # Times, and the commit that ran.
    return {name: value for name, value in results.items() if name not in ("stages", "made", "written_by")}


@pytest.mark.full
def test_a_table_that_was_killed_is_the_same_in_the_end(files, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert "The gate (paramixer on imdb, 1 x 2 seeds) is" in finish(begin(files, whole))
    for count in (2, 4):
        process = begin(files, killed)
        while process.poll() is None and len(list((killed / "records").rglob("*.json"))) < count:
            time.sleep(0.05)
        time.sleep(1.5)  # in the middle of the next run
        process.send_signal(signal.SIGKILL)
        process.communicate()
    output = finish(begin(files, killed))
    assert "speed" not in output.partition("stage ")[0]  # what had finished was not run again
    assert what_was_measured(killed) == what_was_measured(whole)
    results = what_was_measured(whole)
    assert [len(results["rows"]["paramixer"]["runs"]), list(results["tasks"])] == [1, ["imdb"]]
    for task in results["tasks"].values():
        starts = task["rows"]["paramixer"]
        assert {name: [len(row) for row in one["scores"]] for name, one in starts.items()} == {
            "pretrained": [2],
            "random": [2],
            "random at scale": [2],
        }
    # Nothing that is large stays but the pre-trained model and the controls.
    assert len(list(whole.rglob("*.safetensors"))) == 3
    assert "tuning" not in finish(begin(files, whole)).partition("stage ")[0]
    assert sorted(os.listdir(whole / "results")) == sorted(os.listdir(killed / "results"))


# -----------------------------------------------------------------------------
# Stage 4 of the kit for GPUs.


@pytest.fixture
def setting(script, tmp_path):
    made = script("gpu_kit.setting").Setting
    return made(tmp_path / "kit", "cpu", "CPU", 0, (0, 0), quick=True, pack=tmp_path / "pack")


def test_the_kit_trains_every_row_before_it_fine_tunes_one(script, setting):
    setting.work.mkdir()
    learning, records = script("gpu_kit.learning"), script("gpu_kit.records").Records(setting.work / "results.jsonl")
    planned = learning.plan(setting, records, 8 * 1060.0)
    rows = script("glue_table.rows").ROWS
    keys = ["4/corpus", *(f"4/learning/{row}" for row in rows), *(f"4/tasks/{row}" for row in rows)]
    assert [one.key for one in planned] == keys and planned[1].arguments == planned[9].arguments
    # 500 tokens a second in six tenths of the time of a row: decided once.
    assert planned[1].arguments == {"model": "transformer", "tokens": 300_000}
    assert learning.plan(setting, records, 60.0) == planned
    records.close()


@pytest.mark.full
def test_the_kit_makes_its_rows_of_the_tables_runs(script, files, setting, monkeypatch):
    learning, data = script("gpu_kit.learning"), script("glue_table.data")
    setting.work.mkdir(parents=True)
    corpus = data.corpus(setting.work, [files / "wiki.txt"], None, 1)
    (setting.pack / "corpus").mkdir(parents=True)
    for name in ("train", "validation", "tokenizer"):
        (corpus / name).rename(setting.pack / "corpus" / name)
    (setting.pack / "glue").symlink_to(files / "glue")
    monkeypatch.setattr(learning, "RECIPE", files / "recipe.yaml")
    with pytest.raises(RuntimeError, match="it has not been pre-trained"):
        learning.fine_tune(setting, "fnet", 2000)
    found = learning.learn(setting, "fnet", 2000)
    assert found["corpus"] == "the pack's" and found["loss"][1] < found["loss"][0] and found["tokens"] > 1000
    scores = learning.fine_tune(setting, "fnet", 2000)["scores"]
    assert {task: list(starts) for task, starts in scores.items()} == {
        task: ["pretrained", "random", "random at scale"] for task in ("cola", "sst2")
    }
