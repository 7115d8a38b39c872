"""Model cards of runs, data and folders with hostile names: YAML, Markdown and Python that mean what they show."""

import ast
import dataclasses
from types import SimpleNamespace

import pytest
import yaml

from longmix.data_prep.manifest import Manifest
from longmix.trainer.checkpoints.state import RunState
from longmix.trainer.export import self_contained
from longmix.trainer.export.card import CARD, ModelCard
from longmix.trainer.samples.label_scale import LabelScale
from longmix.trainer.settings import reading

NAME = '<script>alert(1)</script>`|\x1b[31m\u202e"]\n---\n# [x](http://y)'


@pytest.fixture
def card():
    """The card of a run whose folder, data and model type have such names, whatever a run file may say."""
    values = {"run": {"dir": "r"}, "model": {"model_type": "transformer"}, "data": {"train": "d"}}
    configuration = reading.from_dict(values, "test")
    configuration.run.dir = configuration.data.train = NAME.replace("/", "")
    manifest = Manifest(split="train", split_rule="none", columns={}, samples=3, sequence_length=4)
    return ModelCard(configuration, "a]\ntags: [b", [manifest], 7, ["note: <b>"])


def test_a_card_of_hostile_names_is_yaml_and_markdown(tmp_path, card):
    card.write(tmp_path, RunState(), {"loss": 0.5, "<i>|": 1})
    text = (tmp_path / CARD).read_text()
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == {"library_name": "transformers", "tags": ["longmix", "a]\ntags: [b"]}
    assert not any(tag in body for tag in ("<script", "<b>", "<i>")) and "\n---\n" not in body
    assert all(line.isprintable() for line in text.split("\n"))
    assert body.count("\n# ") == 1 and "[x](" not in body


@pytest.fixture
def finetuned(card):
    """The card of a run of `longmix finetune`, as far as a card tells of it."""
    card.configuration.objective.name = "classification"
    card.configuration.checkpoint.best = object()
    rule = "1 of 4 training examples, drawn with seed 0, stratified by class"
    evaluation = Manifest(split="selection", split_rule=rule, columns={}, samples=1)
    trained = dataclasses.replace(card.manifests[0], report={"task": "mnli"}, label_names=["yes", "<b>no"])
    return dataclasses.replace(card, manifests=[trained], evaluation=evaluation)


@pytest.mark.parametrize(
    ("start", "front", "shown"),
    [
        ("bert-base-uncased", "bert-base-uncased", "`bert-base-uncased`"),
        ("me/encoder", "me/encoder", "`me/encoder`"),
        ("/elsewhere/runs/small/checkpoints/step-00000010/model", None, "`runs/small`"),
        ("here/model", None, "`here`"),
    ],
)
def test_a_card_says_what_a_model_was_and_what_chose_it(tmp_path, finetuned, monkeypatch, start, front, shown):
    (tmp_path / "here" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    finetuned.configuration.model["from"] = start
    del finetuned.configuration.model["model_type"]
    finetuned.write(tmp_path, RunState(), {"accuracy": 0.5, "f1": 0.5})
    _, matter, body = (tmp_path / CARD).read_text().split("---\n", 2)
    assert yaml.safe_load(matter).get("base_model") == front
    assert yaml.safe_load(matter)["tags"] == ["longmix", "a]\ntags: [b"]
    assert f"Fine-tuned from {shown} on the task mnli." in body
    assert "Classes, in the order of its outputs: yes, &lt;b&gt;no." in body
    assert "\n\nHow the selection split was made: 1 of 4 training examples, drawn with seed 0, stratified" in body
    told = "On the selection split, a part of the training data, which chose this checkpoint; the reported figures"
    f1 = "F1 is of the class &lt;b&gt;no."
    assert f"## Scores\n\n{told} stand in `results.md` of the fine-tuning.\n\n{f1}\n\n| figure | value |" in body


@pytest.mark.parametrize(
    ("run", "task", "name"),
    [
        ("runs/articles", None, "articles"),
        ("runs/articles/seed-1", None, "articles/seed-1"),
        ("runs/articles/seed-1/", None, "articles/seed-1"),
        ("runs/glue/sst2/seed-0", "sst2", "glue/sst2/seed-0"),
        ("runs/glue/sst2/lr-3e-05/seed-0", "sst2", "glue/sst2/lr-3e-05/seed-0"),
        ("/seed-1", None, "seed-1"),
    ],
)
def test_a_card_names_the_model(tmp_path, card, run, task, name):
    card.configuration.run.dir = run
    card = dataclasses.replace(card, manifests=[dataclasses.replace(card.manifests[0], report={"task": task})])
    card.write(tmp_path, RunState(), {})
    assert f"\n# {name}\n" in (tmp_path / CARD).read_text()


@pytest.mark.parametrize(
    ("data", "task", "name"),
    [
        ("data/articles/train", None, "articles"),
        ("data/articles/train/", None, "articles"),
        ("data/mine", None, "mine"),
        ("train", None, "train"),
        ("runs/glue/sst2/data/train", "sst2", "sst2"),
    ],
)
def test_a_card_names_the_data(tmp_path, card, data, task, name):
    card.configuration.data.train = data
    card = dataclasses.replace(card, manifests=[dataclasses.replace(card.manifests[0], report={"task": task})])
    card.write(tmp_path, RunState(), {})
    assert f"\n| {name} | 1 | 3 |" in (tmp_path / CARD).read_text()


def test_a_card_has_all_digits_of_the_way_back_to_labels(tmp_path, card):
    scale = LabelScale(mean=1234567.8, deviation=0.1234567891)
    report = {"text_columns": ["text"], "label_column": "price", **scale.report()}
    card = dataclasses.replace(card, manifests=[dataclasses.replace(card.manifests[0], report=report)])
    card.write(tmp_path, RunState(), {})
    assert "model times 0.1234567891, plus 1234567.8, is a label." in (tmp_path / CARD).read_text()


def test_a_card_says_which_split_its_scores_are_of(tmp_path, card):
    card = dataclasses.replace(card, evaluation=Manifest(split="validation", split_rule="a tenth", columns={}))
    card.write(tmp_path, RunState(), {"loss": 0.5})
    assert "On the validation split.\n\nEvaluations hide" in (tmp_path / CARD).read_text()
    assert "\n\nHow the validation split was made: a tenth.\n\n" in (tmp_path / CARD).read_text()
    card.configuration.checkpoint.best = object()
    card.write(tmp_path, RunState(), {"loss": 0.5, "test_loss": 0.6})
    told = "which chose this checkpoint; figures that begin with `test_` on the test set, once."
    assert f"On the validation split, {told}" in (tmp_path / CARD).read_text()
    card.write(tmp_path, RunState(), {})
    assert "On the" not in (tmp_path / CARD).read_text()


def test_a_card_names_the_optimizer_with_what_it_took(tmp_path, card):
    card.write(tmp_path, RunState(), {})
    assert "AdamW, lr 0.001 (linear, 100 warm-up steps), betas" in (tmp_path / CARD).read_text()
    card.configuration.optim.name = "muon"
    card.write(tmp_path, RunState(), {})
    text = (tmp_path / CARD).read_text()
    assert (
        "Muon, lr 0.001 (linear, 100 warm-up steps), momentum 0.95, update_rms 0.2, betas [0.9, 0.98],\nweight" in text
    )


def test_the_example_of_a_card_loads_the_folder_of_that_name(tmp_path):
    class AutoThing:
        __module__ = "longmix.modeling.converter.model"

    for head in ("AutoThing", 'Odd")#'):
        config = SimpleNamespace(architectures=[head])
        code = self_contained._example(tmp_path, NAME, config, {"AutoModel": AutoThing})
        constants = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
        assert NAME in constants and code.count("\n") <= 5


def test_a_card_says_what_evaluations_hide(tmp_path, card):
    card.configuration.objective.mask_probability = 0.3
    for share, told in ((0.15, "hide 15 %"), (None, "hide 30 %")):
        card.configuration.eval.mask_probability = share
        card.write(tmp_path, RunState(step=1), {"loss": 1.0})
        assert f"Evaluations {told} of the tokens." in (tmp_path / "README.md").read_text()
    card.configuration.objective.name = "clm"
    card.write(tmp_path, RunState(step=1), {"loss": 1.0})
    assert "Evaluations hide" not in (tmp_path / "README.md").read_text()
