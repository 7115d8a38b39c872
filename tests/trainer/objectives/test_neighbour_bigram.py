"""The interpolated bigram against counting by hand, on the trainer's own masks."""

import itertools

import numpy as np
import pytest
import torch

from longmix.data_prep.manifest_fields import IGNORED
from longmix.data_prep.shards import LIST_INT32, write_dataset
from longmix.trainer.objectives import neighbour_bigram
from longmix.trainer.objectives.masking import TokenMasker
from longmix.trainer.samples.dataset import ShardedDataset

VOCABULARY, MASK, SPECIAL = 12, 2, [0, 1, 2]


@pytest.fixture(scope="module")
def masker():
    return TokenMasker(0, 0.3, MASK, VOCABULARY, SPECIAL)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """400 rows of a first-order chain over tokens 3 to 11: the next one is two further on, four times of five."""
    generator = np.random.default_rng(0)
    rows = []
    for _ in range(400):
        tokens = [int(generator.integers(9))]
        while len(tokens) < 12 + len(rows) % 5:
            tokens.append((tokens[-1] + 2) % 9 if generator.random() < 0.8 else int(generator.integers(9)))
        rows.append({"input_ids": [1, *(3 + token for token in tokens)]})
    folder = tmp_path_factory.mktemp("chain")
    fields = {"split": "train", "split_rule": "all", "vocab_size": VOCABULARY, "mask_token_id": MASK}
    write_dataset(folder, rows, {"input_ids": LIST_INT32}, **fields)
    return ShardedDataset(folder)


@pytest.fixture(scope="module")
def where(dataset, masker):
    return neighbour_bigram.positions(dataset, np.arange(50), masker, is_training=False)


def test_positions_are_those_that_the_trainer_evaluates(where, dataset, masker):
    number = 0
    for index, sample in enumerate(dataset.read(np.arange(50))):
        masked = masker.mask(sample, masker.evaluation_key(index))
        seen = [-1 if token == MASK else token for token in masked["input_ids"].tolist()]
        for place in np.flatnonzero(masked["labels"] != IGNORED):
            assert where.targets[number] == sample["input_ids"][place]
            assert where.shown[number] == seen[place]
            assert where.left[number] == seen[place - 1]  # the first token is special, so one is always there
            assert where.right[number] == (seen[place + 1] if place + 1 < len(seen) else -1)
            number += 1
    assert number == len(where) > 100


def test_loss_and_accuracy_are_those_of_the_mixture_written_out(dataset, masker, where):
    model = neighbour_bigram.NeighbourBigram(dataset, np.arange(400), masker)
    rows = [sample["input_ids"].tolist() for sample in dataset.read(np.arange(400))]
    pairs = [pair for row in rows for pair in itertools.pairwise(row)]
    ordinary = [token for row in rows for token in row if token not in SPECIAL]
    hits, loss = 0, 0.0
    for target, left, right, shown in zip(where.targets, where.left, where.right, where.shown, strict=True):
        known = (True, bool(left >= 0), bool(right >= 0), bool(shown >= 0))
        weights = model.weights[known]
        assert weights.sum() == pytest.approx(1) and (weights[~np.array(known)] == 0).all()
        behind = [b for a, b in pairs if a == left and b not in SPECIAL]
        ahead = [a for a, b in pairs if b == right and a not in SPECIAL]
        probabilities = np.zeros(VOCABULARY)
        for token in range(VOCABULARY):
            parts = [
                (ordinary.count(token) + 1) / (len(ordinary) + 9) if token not in SPECIAL else 0,
                behind.count(token) / max(len(behind), 1),
                ahead.count(token) / max(len(ahead), 1),
                float(shown == token),
            ]
            probabilities[token] = np.dot(weights, parts)
        hits += int(probabilities.argmax() == target)
        loss -= np.log(probabilities[target])
    found = model.evaluate(where)
    assert found["masked_accuracy"] == pytest.approx(hits / len(where))
    assert found["loss"] == pytest.approx(loss / len(where), rel=1e-5)
    assert model.loss(where) == pytest.approx(loss / len(where))
    unigram = [np.log((ordinary.count(target) + 1) / (len(ordinary) + 9)) for target in where.targets]
    assert model.unigram_loss(where) == pytest.approx(-np.mean(unigram))
    # Four of five are predictable from a neighbour.
    assert found["masked_accuracy"] > 0.6


def test_weights_are_better_than_others_on_the_samples_that_fit_them(dataset, masker):
    """Expectation maximisation has come close to a maximum of the likelihood."""
    model = neighbour_bigram.NeighbourBigram(dataset, np.arange(400), masker)
    fitted_on = np.arange(0, 400, neighbour_bigram.HELD_OUT)
    held_out = neighbour_bigram.positions(dataset, fitted_on, masker, is_training=True)
    model._count(dataset, np.delete(np.arange(400), fitted_on))
    best, weights = model.evaluate(held_out)["loss"], dict(model.weights)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        model.weights = {}
        for case, fitted in weights.items():
            moved = fitted * (0.2 * torch.randn(4, generator=generator)).exp().numpy()
            model.weights[case] = moved / moved.sum()
        assert model.evaluate(held_out)["loss"] > best - 1e-3


def test_the_two_simplest_guesses(dataset, masker, where):
    model = neighbour_bigram.NeighbourBigram(dataset, np.arange(400), masker)
    favourite = int(np.bincount(np.concatenate([s["input_ids"][1:] for s in dataset.read(np.arange(400))])).argmax())
    guesses = neighbour_bigram.most_frequent(model, where)
    assert guesses["most frequent token"]["masked_accuracy"] == (where.targets == favourite).mean()
    hits = sum(
        target == (favourite if shown == -1 else shown)
        for target, shown in zip(where.targets, where.shown, strict=True)
    )
    assert guesses["token shown there, or the most frequent"]["masked_accuracy"] == hits / len(where)
