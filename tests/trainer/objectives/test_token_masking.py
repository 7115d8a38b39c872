"""Masks: 80/10/10, never a special token, pure functions of seed, epoch and sample."""

import numpy as np
import pytest

from longmix.data_prep.manifest_fields import IGNORED
from longmix.trainer.objectives.masking import TokenMasker, word_starts
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.order import RunOrder
from longmix.trainer.settings.configuration import ObjectiveSection

SPECIAL = [0, 1, 2, 3, 4]


def make_masker(seed=0, probability=0.15, **arguments):
    return TokenMasker(seed, probability, 2, 1000, SPECIAL, **arguments)


def make_sample(length, seed=0):
    return {"input_ids": np.random.default_rng(seed).integers(0, 1000, length)}


def test_shares_are_fifteen_percent_of_which_eighty_ten_ten():
    masker = make_masker()
    sample = make_sample(400_000)
    masked = masker.mask(sample, masker.training_key(0, 0, 17))
    before, after, labels = sample["input_ids"], masked["input_ids"], masked["labels"]
    chosen = labels != IGNORED
    ordinary = ~np.isin(before, SPECIAL)
    count, share = ordinary.sum(), chosen.sum() / ordinary.sum()
    assert abs(share - 0.15) < 5 * np.sqrt(0.15 * 0.85 / count)
    assert np.array_equal(labels[chosen], before[chosen]) and np.array_equal(after[~chosen], before[~chosen])

    def close(hits, probability):
        return abs(hits - probability) < 5 * np.sqrt(probability * (1 - probability) / chosen.sum())

    became_mask = (after == 2) & chosen
    kept = (after == before) & chosen
    replaced = chosen & ~became_mask & ~kept
    assert close(became_mask.sum() / chosen.sum(), 0.8)
    # A random token is the true one once in 995.
    assert close(kept.sum() / chosen.sum(), 0.1 + 0.1 / 995)
    drawn = after[replaced]
    assert not np.isin(drawn, SPECIAL).any()
    counts = np.bincount(drawn, minlength=1000)[5:]
    assert abs(((counts - counts.mean()) ** 2 / counts.mean()).sum() - 995) < 5 * np.sqrt(2 * 995)


def test_special_tokens_are_never_chosen_even_at_high_rates():
    masker = make_masker(probability=0.99)
    for number in range(50):
        sample = make_sample(200, seed=number)
        labels = masker.mask(sample, masker.training_key(0, 0, number))["labels"]
        assert (labels[np.isin(sample["input_ids"], SPECIAL)] == IGNORED).all()


def test_masks_differ_between_samples_epochs_sources_and_seeds_but_not_between_calls():
    sample = make_sample(300)

    def chosen(seed, source, epoch, number):
        masker = make_masker(seed)
        return masker.mask(sample, masker.training_key(source, epoch, number))

    reference = chosen(3, 0, 1, 5)
    again = chosen(3, 0, 1, 5)
    assert all(np.array_equal(reference[name], again[name]) for name in reference)
    for other in (chosen(4, 0, 1, 5), chosen(3, 1, 1, 5), chosen(3, 0, 2, 5), chosen(3, 0, 1, 6)):
        both = ((reference["labels"] != IGNORED) & (other["labels"] != IGNORED)).sum()
        assert both < 20  # 45 chosen each, 7 in common by chance


def test_a_mask_depends_on_nothing_but_the_sample_so_not_on_batches_or_ranks(data):
    dataset = ShardedDataset(str(data / "train"))
    objective = make_objective(ObjectiveSection(), 9, dataset.manifest, None)
    order = RunOrder([len(dataset)], [1.0], 8, 8192, 9)

    def masks(ranks, micro_batch):
        found = {}
        for rank in range(ranks):
            draw = order.share_of_rank(144, 24, rank, ranks)
            for first in range(0, len(draw), micro_batch):
                part = draw[slice(first, first + micro_batch)]
                samples = dataset.read(part.sample)
                batch = objective.training_batch(samples, part)
                for row, (epoch, number) in enumerate(zip(part.epoch.tolist(), part.sample.tolist(), strict=True)):
                    length = len(samples[row]["input_ids"])
                    key = (epoch, number)
                    found[key] = [batch[name][row, :length].tolist() for name in ("input_ids", "labels")]
        return found

    reference = masks(1, 24)
    assert len(reference) == 24 and len({epoch for epoch, _ in reference}) == 2
    assert masks(1, 3) == reference and masks(2, 4) == reference and masks(3, 8) == reference


def test_the_mask_of_an_evaluation_is_the_same_in_every_run(data):
    dataset = ShardedDataset(str(data / "validation"))
    indices = np.arange(10)
    batches = [
        make_objective(ObjectiveSection(), seed, dataset.manifest, None).evaluation_batch(
            dataset.read(indices), indices
        )
        for seed in (0, 1)
    ]
    assert all(np.array_equal(batches[0][name], batches[1][name]) for name in batches[0])
    assert (batches[0]["labels"] != IGNORED).any()
    shifted = make_objective(ObjectiveSection(), 0, dataset.manifest, None).evaluation_batch(
        dataset.read(indices), indices + 1
    )
    assert (shifted["labels"] != batches[0]["labels"]).any()


def test_an_evaluation_hides_its_own_share_whatever_training_hides(data):
    dataset = ShardedDataset(str(data / "validation"))
    indices = np.arange(len(dataset))

    def evaluated(training, *evaluation):
        made = make_objective(ObjectiveSection(mask_probability=training), 0, dataset.manifest, None, *evaluation)
        return made.evaluation_batch(dataset.read(indices), indices), made

    (expected, _), (other, made) = evaluated(0.15), evaluated(0.6)
    assert all(np.array_equal(expected[name], other[name]) for name in expected)
    share = (expected["labels"] != IGNORED).float().mean()
    assert (evaluated(0.15, 0.6)[0]["labels"] != IGNORED).float().mean() > 2 * share
    drawn = made.rehearsal_batch(dataset.read(indices))["labels"] != IGNORED
    assert drawn.float().mean() > 2 * share, "the dry run must meet as many labels as training does"


@pytest.mark.parametrize("whole_word", [False, True])
def test_samples_are_masked_together_as_they_are_alone(whole_word):
    starts = np.arange(1000) % 3 == 0
    masker = make_masker(probability=0.3, starts_word=starts if whole_word else None)
    samples = [make_sample(length, seed=length) for length in (40, 1, 7, 0, 128, 40)]
    for sample in samples:  # a special token before the middle of a word, which the next sample begins with
        sample["input_ids"][:1], sample["input_ids"][1:][-1:] = 7, SPECIAL[0]
    keys = masker.training_key(np.array([0, 1, 0, 0, 2, 0]), np.array([0, 0, 3, 0, 0, 1]), np.arange(6))
    together = masker.mask_all(samples, keys)
    for sample, key, masked in zip(samples, keys, together, strict=True):
        alone = masker.mask(sample, int(key))
        assert masked.keys() == alone.keys() == {*sample, "labels"}
        assert all(np.array_equal(masked[name], alone[name]) for name in alone)
    assert sum((masked["labels"] != IGNORED).sum() for masked in together) > 20


def test_whole_words_are_hidden_together():
    starts = np.arange(1000) % 3 == 0
    masker = make_masker(probability=0.3, starts_word=starts)
    generator = np.random.default_rng(1)
    units = hidden = 0
    for number in range(40):
        tokens = generator.integers(5, 1000, 200)
        tokens[::50] = 0
        labels = masker.mask({"input_ids": tokens}, masker.training_key(0, 0, number))["labels"]
        chosen = labels != IGNORED
        word = None
        for position, token in enumerate(tokens):
            special = token in SPECIAL
            if special:
                assert not chosen[position]
            if special or word is None or starts[token]:
                word = None if special else chosen[position]
                units += not special
                hidden += bool(word)
            else:
                assert chosen[position] == word
    assert abs(hidden / units - 0.3) < 5 * np.sqrt(0.3 * 0.7 / units)


class Vocabulary:
    def __init__(self, pieces):
        self.pieces = pieces

    def __len__(self):
        return len(self.pieces)

    def convert_ids_to_tokens(self, ids):
        return [self.pieces[index] for index in ids]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["[CLS]", "▁the", "s", "▁"], [False, True, False, True]),
        (["[CLS]", "the", "##s"], [True, True, False]),
        (["<s>", "Ġthe", "s"], [False, True, False]),
    ],
)
def test_word_starts_of_common_vocabularies(pieces, expected):
    assert word_starts(Vocabulary(pieces)).tolist() == expected
