"""Causal language modelling: what is predicted from what, its perplexities, and models that see too much."""

import itertools
import json
import math
import random
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers

from longmix.data_prep.errors import UserError
from longmix.data_prep.shards import LIST_INT32, write_dataset
from longmix.data_prep.text.prepare import prepare_text
from longmix.data_prep.text.state import TextSettings
from longmix.modeling import model_class
from longmix.trainer.cli import main
from longmix.trainer.models.build import _refuse_looking_ahead
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.run.setup import prepare
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.settings import reading
from longmix.trainer.settings.sections import ObjectiveSection

CAUSAL = ("flt", "paramixer", "transformer")
WORDS = ["amber", "stone", "tide", "river", "moss", "field", "salt"]


@pytest.fixture(scope="module")
def objective(data):
    return make_objective(ObjectiveSection("clm"), 0, ShardedDataset(str(data / "train")).manifest, None)


@pytest.fixture
def prepared(run_values, tmp_path):
    """prepared(model type, **changes) -> Prepared of a tiny causal run on one CPU."""

    def make(model_type, **changes):
        values = run_values(tmp_path / "run", model_type, **{"objective.name": "clm", **changes})
        return prepare(reading.from_dict(values, "test"), 1, torch.device("cpu"))

    return make


def log_likelihoods(model, sample, is_of_prefixes):
    """By hand: (log p, hit) of each token given those before it in its document. With `is_of_prefixes` each has a
    forward pass of its own, over the tokens before it alone."""
    tokens, starts = sample["input_ids"].tolist(), set(sample["document_starts"].tolist())
    found = []
    for position in range(1, len(tokens)):
        if position in starts:
            continue
        seen = position if is_of_prefixes else len(tokens)
        ids = [sum(0 < start <= place for start in starts) for place in range(seen)]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens[:seen]]), document_ids=torch.tensor([ids])).logits
        logits = logits[0, position - 1]
        found.append((logits.log_softmax(-1)[tokens[position]].item(), logits.argmax().item() == tokens[position]))
    return found


# In Paramixer the length of a sequence decides how far its factors reach.
@pytest.mark.parametrize(("model_type", "is_of_prefixes"), [("flt", True), ("transformer", True), ("paramixer", False)])
def test_each_token_is_predicted_from_those_before_it_in_its_document(prepared, data, model_type, is_of_prefixes):
    run = prepared(model_type)
    model = run.build().double().eval()
    samples = ShardedDataset(str(data / "train")).read(np.arange(6))
    assert any(len(sample["document_starts"]) > 1 for sample in samples)
    expected = [pair for sample in samples for pair in log_likelihoods(model, sample, is_of_prefixes)]
    batch = run.objective.evaluation_batch(samples, np.arange(6))
    sums, _ = run.objective.evaluation(model, batch)
    assert run.objective.items(batch) == len(expected) == sums[2].item()
    assert sums[0].item() == pytest.approx(-sum(likelihood for likelihood, _ in expected), rel=1e-6)
    assert sums[1].item() == sum(hit for _, hit in expected)


@pytest.mark.parametrize("model_type", CAUSAL)
def test_packed_documents_do_not_help_each_other(prepared, data, model_type):
    run = prepared(model_type)
    model = run.build().eval()
    samples = ShardedDataset(str(data / "train")).read(np.arange(150))
    sample = next(one for one in samples if len(one["document_starts"]) > 1)
    start = sample["document_starts"][1]
    other = {**sample, "input_ids": sample["input_ids"].copy()}
    other["input_ids"][1:start] = 5 + (other["input_ids"][1:start] + 7) % 90
    with torch.no_grad():
        one, two = (
            model(input_ids=batch["input_ids"], document_ids=batch["document_ids"]).logits[0]
            for batch in (run.objective.evaluation_batch([each], np.zeros(1)) for each in (sample, other))
        )
    assert torch.equal(one[start:], two[start:]) and not torch.equal(one[1:start], two[1:start])


def test_what_has_nothing_before_it_is_not_predicted(objective):
    sample = {"input_ids": np.asarray([0, 7, 8, 1, 9, 1], np.int32), "document_starts": np.asarray([0, 4])}
    short = {"input_ids": np.asarray([0, 7], np.int32), "document_starts": np.asarray([0])}
    batch = objective.evaluation_batch([sample, short], np.arange(2))
    ignored = -100
    assert batch["labels"].tolist() == [[ignored, 7, 8, 1, ignored, 1], [ignored, 7, *[ignored] * 4]]
    assert batch["input_ids"][0].tolist() == [0, 7, 8, 1, 9, 1] and objective.items(batch) == 5


@pytest.mark.parametrize("model_type", ["transformer", "bert"])
def test_nothing_is_learnt_from_noise(train, read_metrics, tmp_path, model_type):
    """A model that saw what it predicts would be right every time."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 200), ("validation", 60)):
        write_dataset(
            tmp_path / split,
            [{"input_ids": generator.integers(2, 10, 16).tolist()} for _ in range(count)],
            {"input_ids": LIST_INT32},
            split=split,
            split_rule="test",
            vocab_size=10,
            pad_token_id=0,
            sequence_length=16,
        )
    changes = {"data.train": str(tmp_path / "train"), "data.eval": str(tmp_path / "validation"), "eval.samples": None}
    steps = {"optim.max_steps": 40, "eval.every_steps": 40, "checkpoint.every_steps": 40, "optim.lr": 1e-2}
    train(tmp_path / "run", model_type, **{"objective.name": "clm"}, **changes, **steps)
    last = read_metrics(tmp_path / "run", "eval")[-1]
    assert last["items"] == 60 * 15 and last["accuracy"] < 0.25 and last["loss"] > 0.95 * math.log(8)


def test_perplexities_of_tokens_and_words(train, read_metrics, write_data, data, tmp_path, capsys):
    write_data(tmp_path / "worded", 40, 2, split="validation", words=123)
    manifest = ShardedDataset(str(tmp_path / "worded")).manifest
    changes = {"objective.name": "clm", "data.eval": str(tmp_path / "worded"), "eval.samples": None}
    train(tmp_path / "run", "flt", **changes, **{"optim.max_steps": 2})
    figures = read_metrics(tmp_path / "run", "eval")[-1]
    assert figures["token_perplexity"] == pytest.approx(math.exp(figures["loss"]))
    # Every token is part of the text but the first of each of the 40 rows.
    log_likelihood = figures["loss"] * (manifest.tokens - 40)
    assert figures["word_perplexity"] == pytest.approx(math.exp(log_likelihood / 123))
    saved = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert saved["is_causal"] is True and saved["architectures"] == ["FLTForCausalLM"]
    for folder, has_words in ((tmp_path / "worded", True), (data / "validation", False)):
        capsys.readouterr()
        assert main(["evaluate", str(tmp_path / "run" / "model"), "--data", str(folder)]) == 0
        found = dict(map(str.split, capsys.readouterr().out.splitlines()))
        assert float(found["token_perplexity"]) == pytest.approx(figures["token_perplexity"], rel=1e-4)
        assert ("word_perplexity" in found) == has_words


def test_a_held_out_text_has_its_perplexities_at_the_end(train, read_metrics, tmp_path, capsys):
    draw = random.Random(0)
    for name, articles, words in (("train", 20, 30), ("validation", 3, 30), ("test", 1, 60)):
        text = "".join(
            f" \n = {name} {number} = \n \n {' '.join(draw.choices(WORDS, k=words))} 0 @.@ 5 . \n"
            for number in range(articles)
        )
        (tmp_path / f"{name}.txt").write_text(text)
    held_out = {name: (str(tmp_path / f"{name}.txt"),) for name in ("validation", "test")}
    settings = TextSettings(source=(str(tmp_path / "train.txt"),), vocab_size=38, sequence_length=32, **held_out)
    prepare_text(settings, tmp_path / "data", workers=1)
    splits = {"train": "train", "eval": "validation", "test": "test"}
    changes = {f"data.{key}": str(tmp_path / "data" / split) for key, split in splits.items()}
    changes |= {"objective.name": "clm", "optim.max_steps": 2, "checkpoint.best": {"metric": "loss", "mode": "min"}}
    train(tmp_path / "run", "transformer", **changes)
    (figures,) = read_metrics(tmp_path / "run", "test")
    # One article: no row begins a second document, so every token but [CLS] is predicted.
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").double().eval()
    rows = pq.read_table(tmp_path / "data" / "test" / "shard-00000.parquet").to_pylist()
    samples = [{name: np.asarray(value) for name, value in row.items()} for row in rows]
    found = [likelihood for sample in samples for likelihood, _ in log_likelihoods(model, sample, True)]
    words = len((tmp_path / "test.txt").read_text().split())
    assert len(rows) > 3 and figures["items"] == len(found) and words == 4 + 60 + 4
    assert figures["token_perplexity"] == pytest.approx(math.exp(-sum(found) / len(found)), rel=1e-5)
    assert figures["word_perplexity"] == pytest.approx(math.exp(-sum(found) / words), rel=1e-5)
    shown = re.search(r"test 2/2 .*perplexity per token (\S+) .*perplexity per word (\S+)", capsys.readouterr().err)
    assert [float(value) for value in shown.groups()] == [
        pytest.approx(figures[name], abs=0.06) for name in ("token_perplexity", "word_perplexity")
    ]


def test_a_loss_does_not_depend_on_how_the_batch_is_cut(train, read_metrics, tmp_path):
    for model_type in ("paramixer", "bert"):
        losses = []
        for micro_batch in (16, 2):
            folder = tmp_path / f"{model_type}-{micro_batch}"
            changes = {"objective.name": "clm", "batch.micro_batch": micro_batch, "data.eval": None}
            train(folder, model_type, **changes)
            losses.append([record["loss"] for record in read_metrics(folder, "train")])
        assert losses[0] == pytest.approx(losses[1], abs=1e-4) and losses[0][-1] < losses[0][0]


def test_a_type_of_transformers_is_made_causal(prepared):
    run = prepared("bert")
    assert run.model_configuration.is_decoder is True
    run.build()
    with pytest.raises(UserError, match=r"model\.is_decoder is False, but objective clm needs true: leave it out"):
        prepared("bert", **{"model.is_decoder": False})


def test_a_head_that_looks_ahead_is_refused():
    fields = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    for is_decoder, seed in itertools.product((True, False), range(5)):
        torch.manual_seed(seed)
        config = transformers.BertConfig(intermediate_size=8, is_decoder=is_decoder, **fields)
        model = transformers.AutoModelForCausalLM.from_config(config).train()
        if is_decoder:
            _refuse_looking_ahead(model)
        else:
            with pytest.raises(UserError, match="bert: with these fields its causal head sees the tokens"):
                _refuse_looking_ahead(model)
        assert model.training


@pytest.mark.parametrize("model_type", ["converter", "s3attention", "wavspa"])
def test_a_mixer_that_cannot_be_causal_says_why(prepared, model_type):
    because = model_class(model_type, "Config").not_causal_because
    with pytest.raises(UserError) as caught:
        prepared(model_type)
    text = str(caught.value)
    assert f"which {model_type} cannot be, because {because}; of ours these can: flt, paramixer, transformer" in text
    assert "\n" not in text


def test_a_checkpoint_that_cannot_be_causal_says_why(prepared, tmp_path):
    fields = {"space": "none", "attention": "linformer", "num_attention_heads": 2, "num_hidden_layers": 1}
    config = model_class("wavspa", "Config")(vocab_size=96, hidden_size=16, **fields)
    model_class("wavspa", "Model")(config).save_pretrained(tmp_path / "model")
    values = {"from": str(tmp_path / "model")}
    with pytest.raises(UserError, match="which wavspa cannot be, because its projections mix the keys and values"):
        prepared("transformer", model=values)


def test_causal_is_not_asked_for_and_refused_in_one_run(prepared):
    assert prepared("transformer", **{"model.is_causal": True}).model_configuration.is_causal
    with pytest.raises(UserError, match=r"model\.is_causal is False, but objective clm needs true"):
        prepared("transformer", **{"model.is_causal": False})
