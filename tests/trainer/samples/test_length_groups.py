"""Batches of samples of similar length: the samples of the ungrouped order, on any number of ranks, at any step."""

import numpy as np
import pytest

from longmix.data_prep.shards import LIST_INT32, SCALAR_INT64, write_dataset
from longmix.trainer.commands.inspect_order import samples_of_step
from longmix.trainer.samples.length_groups import LengthGroupedOrder, batches_of_a_group
from longmix.trainer.samples.order import RunOrder
from longmix.trainer.samples.run_data import open_data
from longmix.trainer.settings import reading

BATCH, SIZE = 8, 330
GROUP = batches_of_a_group(SIZE, BATCH)
LENGTHS = np.random.default_rng(0).integers(3, 60, SIZE)


def lengths_of(source, samples):
    assert source == 0
    return LENGTHS[samples]


def grouped(seed=3, batch=BATCH):
    return LengthGroupedOrder([SIZE], [1.0], 8, 8192, seed, batch, lengths_of)


def pairs(draw):
    return sorted(zip(draw.epoch.tolist(), draw.sample.tolist(), strict=True))


@pytest.mark.parametrize(
    ("samples", "batch", "expected"), [(900, 32, 7), (10**6, 32, 50), (100, 32, 1), (3, 32, 1), (SIZE, BATCH, 10)]
)
def test_an_epoch_has_at_least_four_groups_if_it_is_large_enough(samples, batch, expected):
    assert batches_of_a_group(samples, batch) == expected


def test_a_group_holds_the_samples_that_it_would_hold_without():
    plain, order, size = RunOrder([SIZE], [1.0], 8, 8192, 3), grouped(), GROUP * BATCH
    for group in range(12):
        assert pairs(order.draw(group * size, size)) == pairs(plain.draw(group * size, size))


def test_a_batch_holds_samples_of_similar_length():
    def positions_of_a_token(order):
        lengths = [LENGTHS[order.draw(step * BATCH, BATCH).sample] for step in range(10 * GROUP)]
        return sum(batch.max() * BATCH for batch in lengths) / sum(batch.sum() for batch in lengths)

    assert positions_of_a_token(RunOrder([SIZE], [1.0], 8, 8192, 3)) > 1.6
    assert positions_of_a_token(grouped()) < 1.15


def test_batches_come_in_a_random_order_and_epochs_differ():
    order = grouped()
    longest = [LENGTHS[order.draw(step * BATCH, BATCH).sample].max() for step in range(GROUP)]
    assert longest != sorted(longest) and longest != sorted(longest, reverse=True)
    first, later = (grouped().draw(start, BATCH).sample.tolist() for start in (0, SIZE * BATCH * GROUP))
    assert first != later and first != grouped(seed=4).draw(0, BATCH).sample.tolist()


def test_any_step_alone_is_that_of_the_whole_run():
    whole = grouped()
    batches = [whole.draw(step * BATCH, BATCH) for step in range(150)]
    for step in (149, 3, 77, GROUP, GROUP - 1):
        alone = grouped().draw(step * BATCH, BATCH)
        assert np.array_equal(alone.sample, batches[step].sample) and np.array_equal(alone.epoch, batches[step].epoch)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_ranks_share_the_batch_of_one(ranks):
    order = grouped()
    for step in (0, 5, 41, 77):
        shares = [order.share_of_rank(step * BATCH, BATCH, rank, ranks) for rank in range(ranks)]
        assert {len(share) for share in shares} == {BATCH // ranks}
        assert sorted(pair for share in shares for pair in pairs(share)) == pairs(order.draw(step * BATCH, BATCH))


def test_no_batch_holds_a_sample_of_two_epochs_twice():
    order = grouped()
    for step in range(100):
        samples = order.draw(step * BATCH, BATCH).sample
        assert len(set(samples.tolist())) == BATCH


def test_several_sources_keep_their_shares_and_are_asked_for_their_own_lengths():
    sizes, asked = [50, 200], []

    def lengths(source, samples):
        assert samples.max() < sizes[source]
        asked.append(source)
        return samples % 7 + source

    plain = RunOrder(sizes, [1.0, 3.0], 4, 16384, 0)
    order = LengthGroupedOrder(sizes, [1.0, 3.0], 4, 16384, 0, BATCH, lengths)
    size = batches_of_a_group(sum(sizes), BATCH) * BATCH
    drawn = [one.draw(0, 4 * size) for one in (plain, order)]
    kept = [sorted(zip(one.source.tolist(), one.epoch.tolist(), one.sample.tolist(), strict=True)) for one in drawn]
    assert kept[0] == kept[1] and set(asked) == {0, 1}


def test_the_key_of_the_run_file_groups_what_training_reads(tmp_path):
    columns = {"input_ids": LIST_INT32, "labels": SCALAR_INT64}
    samples = [{"input_ids": [7] * int(length), "labels": int(length) % 2} for length in LENGTHS]
    fields = {"vocab_size": 96, "pad_token_id": 3, "num_labels": 2, "sequence_length": 60}
    write_dataset(tmp_path / "set", samples, columns, split="train", split_rule="made", **fields)
    values = {
        "run": {"dir": str(tmp_path / "run"), "seed": 3},
        "model": {"model_type": "transformer"},
        "data": {"train": str(tmp_path / "set"), "partitions": 8},
        "objective": {"name": "classification"},
        "batch": {"samples": BATCH, "micro_batch": BATCH, "group_by_length": True},
    }
    configuration = reading.from_dict(values, "test")
    order = open_data(configuration).order
    for step in (0, 41, 130):
        assert np.array_equal(
            order.share_of_rank(step * BATCH, BATCH, 0, 1).sample, grouped().draw(step * BATCH, BATCH).sample
        )
    lines = list(samples_of_step(configuration, 42, 1))
    assert [int(line.split()[3]) for line in lines[2:]] == grouped().draw(41 * BATCH, BATCH).sample.tolist()
