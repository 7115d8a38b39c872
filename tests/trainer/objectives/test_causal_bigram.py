"""The causal bigram against counting by hand, on the tokens that the objective predicts."""

import math

import numpy as np
import pytest

from longmix.data_prep.shards import LIST_INT32, write_dataset
from longmix.trainer.objectives import causal_bigram
from longmix.trainer.samples.dataset import ShardedDataset

VOCABULARY = 12


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """200 packed rows of two documents each, a first-order chain over tokens 3 to 10; token 11 is never read."""
    generator = np.random.default_rng(0)

    def document(length):
        tokens = [int(generator.integers(8))]
        while len(tokens) < length:
            tokens.append((tokens[-1] + 2) % 8 if generator.random() < 0.8 else int(generator.integers(8)))
        return [1, *(3 + token for token in tokens)]

    rows = []
    for number in range(200):
        first = document(4 + number % 3)
        rows.append({"input_ids": first + document(5), "document_starts": [0, len(first)]})
    folder = tmp_path_factory.mktemp("chain")
    fields = {"split": "train", "split_rule": "all", "vocab_size": VOCABULARY, "pad_token_id": 0, "words": 900}
    columns = {"input_ids": LIST_INT32, "document_starts": LIST_INT32}
    write_dataset(folder, rows, columns, **fields, packing="documents")
    return ShardedDataset(folder)


def by_hand(dataset, indices):
    """(token before, token) of every predicted token: none across documents."""
    found = []
    for sample in dataset.read(indices):
        tokens, (_, second) = sample["input_ids"].tolist(), sample["document_starts"].tolist()
        found += [(tokens[place - 1], tokens[place]) for place in range(1, len(tokens)) if place != second]
    return found


def test_counted_are_the_tokens_that_the_objective_predicts(dataset):
    found = causal_bigram.pairs(dataset, np.arange(40))
    assert list(zip(found.before.tolist(), found.token.tolist(), strict=True)) == by_hand(dataset, np.arange(40))


def test_loss_and_accuracy_are_those_of_the_mixture_written_out(dataset):
    """With an evaluation that holds a token before which training knows nothing."""
    indices = np.arange(100)
    model = causal_bigram.CausalBigram(dataset, indices)
    where = causal_bigram.pairs(dataset, np.arange(100, 200))
    where.before[:3], where.token[:2] = 11, 11
    counted = by_hand(dataset, indices)
    tokens = [token for _, token in counted]
    loss, hits = 0.0, 0
    for before, token in zip(where.before, where.token, strict=True):
        behind = [after for given, after in counted if given == before]
        share = model.weight if behind else 0
        mixed = [
            share * behind.count(w) / max(len(behind), 1) + (1 - share) * (tokens.count(w) + 1) / (len(tokens) + 12)
            for w in range(VOCABULARY)
        ]
        assert sum(mixed) == pytest.approx(1)
        loss -= math.log(mixed[token])
        hits += int(np.argmax(mixed)) == token
    assert model.loss(where) == pytest.approx(loss / len(where.token))
    assert model.accuracy(where) == pytest.approx(hits / len(where.token))
    assert model.accuracy(where) > 0.6


def test_the_weight_is_the_best_for_the_samples_that_the_counts_leave_out(dataset):
    model = causal_bigram.CausalBigram(dataset, np.arange(200))
    held_out = np.arange(0, 200, causal_bigram.HELD_OUT)
    where = causal_bigram.pairs(dataset, held_out)
    model._count(causal_bigram.pairs(dataset, np.delete(np.arange(200), held_out)))
    best, weight = model.loss(where), model.weight
    for other in (weight - 0.02, weight + 0.01):
        model.weight = other
        assert 0 < other < 1 and model.loss(where) > best


def test_baselines_have_the_figures_of_a_model(dataset):
    rows = causal_bigram.baselines(dataset, np.arange(100), dataset)
    assert list(rows) == ["unigram", "interpolated bigram"]
    counts = np.bincount([token for _, token in by_hand(dataset, np.arange(100))], minlength=VOCABULARY)
    where = [token for _, token in by_hand(dataset, np.arange(200))]
    probabilities = (counts + 1) / (counts + 1).sum()
    assert rows["unigram"]["loss"] == pytest.approx(-np.log(probabilities[where]).mean())
    assert rows["unigram"]["accuracy"] == (np.asarray(where) == counts.argmax()).mean()
    for row in rows.values():
        assert row["token_perplexity"] == pytest.approx(math.exp(row["loss"]))
        tokens = dataset.manifest.tokens - dataset.manifest.samples
        assert row["word_perplexity"] == pytest.approx(math.exp(row["loss"] * tokens / 900))
    assert rows["interpolated bigram"]["loss"] < rows["unigram"]["loss"] - 0.5
