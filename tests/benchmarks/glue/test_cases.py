"""The runs of the GLUE table (benchmarks/glue.py): their commands, searches and plan."""

import dataclasses
import json

import pytest
import transformers

import longmix.modeling  # noqa: F401  registers the model types
from longmix.data_prep.errors import UserError
from longmix.trainer.models import sizes
from longmix.trainer.settings import reading


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
    assert longer.steps() == 1000 and steps == {"optim.max_steps=100"}


def test_a_step_has_the_samples_of_the_recipe_or_of_what_it_extends(script, files, budget, tmp_path):
    samples = script("glue_table.cases").samples_of_a_step
    (tmp_path / "own.yaml").write_text(f"extends: {files / 'recipe.yaml'}\noptim: {{lr: 1e-2}}\n")
    extended = dataclasses.replace(budget, recipe=tmp_path / "own.yaml")
    assert samples(budget) == samples(extended) == 4
    assert samples(dataclasses.replace(extended, overrides=("batch.samples=8",))) == 8
    share = script("glue_table.cases").decay_share
    assert share(budget) is None
    assert share(dataclasses.replace(budget, overrides=("optim.schedule=wsd", "optim.decay_share=0.3"))) == 0.3


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


def test_fine_tuning_that_does_not_begin_to_learn_goes_on_with_the_next_smaller_rate(table):
    table.tuning_search("flt", "random", "imdb")[0].finish({"rate": 2e-3})
    rates = []
    while (case := table.tuning("flt", "random", "imdb", 1)).record() is None:
        rates.append(case.words[case.words.index("--lr") + 1])
        case.finish({"scores": [0.5, 0.7], "at_chance": 1} if rates[-1] != "0.0006" else {"scores": None})
    # No rate helps: the largest that has scores stands.
    assert rates == ["0.002", "0.0006", "0.0002"] and "0.002" in case.words
    table.tuning_search("bert", "random", "imdb")[0].finish({"rate": 2e-3})
    for at_chance in (1, 0):
        table.tuning("bert", "random", "imdb", 0).finish({"scores": [0.5, 0.7], "at_chance": at_chance})
    assert "0.0006" in table.tuning("bert", "random", "imdb", 0).words


def test_a_run_says_how_many_of_its_seeds_are_at_chance(script, table):
    table.tuning_search("flt", "random", "imdb")[0].finish({"rate": 6e-4})
    case = table.tuning("flt", "random", "imdb", 1)
    for seed, ends in enumerate(([0.3, 0.0], [0.0, 0.2], [0.0, 0.0])):
        run = case.folder / "custom" / f"seed-{seed}"
        run.mkdir(parents=True)
        records = [{"kind": "eval", "step": step, "matthews": value} for step, value in enumerate(ends)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    score = {"values": [0.5, 0.7, 0.5], "baseline": 0.5}
    task = {"task": "custom", "seeds": [0, 1, 2], "settings": {"learning_rate": 6e-4}}
    task["splits"] = [{"samples": 10, "figures": {"score": score}}]
    (case.folder / "results.json").write_text(json.dumps({"tasks": [task]}))
    assert script("glue_table.stages").figures(case)["at_chance"] == 2


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


def test_a_recipe_is_another_where_what_it_extends_is(script, files, budget, tmp_path):
    (tmp_path / "own.yaml").write_text(f"extends: {tmp_path / 'parent.yaml'}\n")
    (tmp_path / "parent.yaml").write_text((files / "recipe.yaml").read_text())
    extended = dataclasses.replace(budget, recipe=tmp_path / "own.yaml")
    extended.refuse_another(tmp_path)
    (tmp_path / "parent.yaml").write_text("# said otherwise\n" + (files / "recipe.yaml").read_text())
    extended.refuse_another(tmp_path)
    (tmp_path / "parent.yaml").write_text((files / "recipe.yaml").read_text().replace("0.15", "0.3"))
    with pytest.raises(UserError, match=r"another budget \(recipe own\.yaml [0-9a-f]{12}, now own\.yaml"):
        extended.refuse_another(tmp_path)


def test_a_work_folder_has_the_same_models_text_and_tasks(script, files, tmp_path, monkeypatch):
    inputs, begun = script("glue_table.inputs"), script("begun")
    texts = [files / "unlabelled.tsv", files / "wiki.txt"]
    (tmp_path / "work").mkdir()

    data = tmp_path / "work" / "data"

    def go_on(corpus=texts, glue=files / "glue", imdb=files / "imdb", rows=("flt", "bert"), ending=None, made="text-0"):
        found = inputs.described(rows, "tiny", corpus, glue, imdb)
        begun.refuse_others(tmp_path / "work", found)
        with begun.making(tmp_path / "work", found, data):
            (data / made).mkdir(parents=True, exist_ok=True)
            if ending is not None:
                raise ending

    for ending in (UserError("of no use"), SystemExit("prepare ended with 2")):
        with pytest.raises(type(ending), match=str(ending)):
            go_on([files / "wiki.txt"], ending=ending)
        assert not data.exists()
    with pytest.raises(KeyboardInterrupt):
        go_on(glue=None, ending=KeyboardInterrupt())
    with pytest.raises(UserError, match=r"work was begun with another corpus: choose another folder"):
        go_on([files / "wiki.txt"])  # what has been made may be of the other text
    with pytest.raises(UserError, match="of no use"):
        go_on(ending=UserError("of no use"), made="sst2")
    assert [path.name for path in data.iterdir()] == ["text-0"]
    go_on(glue=None)
    go_on()
    go_on(imdb=None, rows=["flt"])
    copies = []
    for path in texts:
        copies.append(tmp_path / f"copy-{path.name}")
        copies[-1].write_text(path.read_text())
    go_on(copies)  # wherever it lies
    copies[1].write_text(copies[1].read_text().replace("a", "e"))
    for other in (copies, texts[:1], texts[::-1]):
        with pytest.raises(UserError, match=r"work was begun with another corpus: choose another folder"):
            go_on(other)
    (tmp_path / "imdb").mkdir()
    for file, text in (("train.tsv", "less"), ("test.tsv", (files / "imdb" / "test.tsv").read_text())):
        (tmp_path / "imdb" / file).write_text(text)
    with pytest.raises(UserError, match="with another imdb: choose"):
        go_on(imdb=tmp_path / "imdb")
    (tmp_path / "flt.yaml").write_text("model: {model_type: flt, hidden_size: 64}\n")
    real = inputs.model_words
    _, *changes = real("flt", "tiny")
    words = {"flt": (str(tmp_path / "flt.yaml"), *changes), "bert": ("model.model_type=bert",)}
    monkeypatch.setattr(inputs, "model_words", lambda row, size: words.get(row) or real(row, size))
    with pytest.raises(UserError, match="with another model of flt and another model of bert: choose"):
        go_on()
    go_on(rows=["fnet"])
    with pytest.raises(UserError, match="imdb is a folder, but no prepared one"):
        go_on([files / "imdb"])


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


def test_the_plan_counts_runs_that_others_replaced(script, table):
    plans, Part = script("glue_table.plan"), script("glue_table.stages").Part
    part = Part(("flt",), (0,), ("imdb",))
    measure(table, "flt")
    for start in script("glue_table.cases").STARTS:
        table.tuning_search("flt", start, "imdb")[0].finish({"rate": 2e-3, "cpu_seconds": 1.0})
    record = {"scores": [0.5], "at_chance": 1, "cpu_seconds": 3600.0}
    for _ in range(2):
        table.tuning("flt", "random", "imdb", 0).finish(record)
    stage = next(one for one in plans.plan(table, part) if one.stage == "tuning")
    assert (stage.done, stage.hours_done) == (0, 2.0) and stage.hours > 2.0
    table.tuning("flt", "random", "imdb", 0).finish({**record, "at_chance": 0, "cpu_seconds": 1800.0})
    stage = next(one for one in plans.plan(table, part) if one.stage == "tuning")
    assert (stage.done, stage.hours_done) == (1, 2.5)


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


def test_a_table_of_another_budget_is_not_recorded_beside_the_one_that_stands(script, budget, tmp_path, monkeypatch):
    glue = script("glue")
    monkeypatch.setattr(glue, "RECORDED", tmp_path)
    glue._refuse_another_record(budget)
    (tmp_path / "results.json").write_text(json.dumps({"budget": budget.described()}))
    glue._refuse_another_record(budget)
    with pytest.raises(
        UserError, match=r"another budget \(tokens 4000, now 5000\): leave out --record, or begin a new"
    ):
        glue._refuse_another_record(dataclasses.replace(budget, tokens=5000))
