"""The sample order: a bijection in every epoch, shuffled, and the same run on any number of ranks."""

import hashlib
import tracemalloc

import numpy as np
import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.samples.order import EpochOrder, RunOrder
from longmix.trainer.settings.sections import EARLIER_ORDER, ORDER, BatchSection, DataSection
from longmix.trainer.settings.shuffling import default_partitions, earlier, settled

SIZES = [
    (1, 1),
    (2, 1),
    (2, 2),
    (7, 1),
    (7, 4),
    (64, 64),
    (65, 64),
    (127, 64),
    (1000, 7),
    (1023, 1),
    (1024, 1),
    (1025, 1),
    (2049, 2),
    (4099, 3),
    (9000, 4),
    (70001, 64),
    (140000, 2),
]


@pytest.mark.parametrize(("staggered", "window"), [(False, None), (True, 24)])
@pytest.mark.parametrize(("samples", "partitions"), SIZES)
def test_an_epoch_is_a_bijection_with_its_inverse(samples, partitions, staggered, window):
    for epoch in (0, 3):
        order = EpochOrder(samples, partitions, window or 65536 // partitions, 5, epoch, staggered)
        positions = np.arange(samples)
        ids = order.sample_at(positions)
        assert np.array_equal(np.sort(ids), positions)
        assert np.array_equal(order.position_of(ids), positions)


@pytest.mark.parametrize(("samples", "partitions"), SIZES)
def test_partitions_are_contiguous_ranges_of_nearly_equal_size(samples, partitions):
    order = EpochOrder(samples, partitions, 65536 // partitions, seed=5, epoch=1)
    ids = order.sample_at(np.arange(samples))
    expected_start, sizes = 0, []
    for partition in range(partitions):
        members = ids[partition::partitions]
        assert members.min() == expected_start and members.max() == expected_start + len(members) - 1
        expected_start += len(members)
        sizes.append(len(members))
    assert max(sizes) - min(sizes) <= 1


def test_one_position_is_found_without_its_neighbours():
    order = EpochOrder(140000, 2, 32768, seed=1, epoch=2)
    whole = order.sample_at(np.arange(140000))
    chosen = np.random.default_rng(0).permutation(140000)[:500]
    assert np.array_equal(order.sample_at(chosen), whole[chosen])
    assert order.sample_at(np.asarray([77]))[0] == whole[77]


def test_epochs_and_seeds_differ_and_shuffle_well():
    samples = 20000
    orders = {
        (seed, epoch): EpochOrder(samples, 4, 16384, seed, epoch).sample_at(np.arange(samples))
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    keys = list(orders)
    for index, first in enumerate(keys):
        for second in keys[index + 1 :]:
            # Two random orders agree in about one place per partition, not in many.
            assert (orders[first] == orders[second]).sum() < 30
    for order in orders.values():
        for partition in range(4):
            members = order[partition::4]
            correlation = np.corrcoef(np.arange(len(members)), members)[0, 1]
            assert abs(correlation) < 5 / np.sqrt(len(members))
            # Neighbours in the order are no neighbours in the file: a shuffled list has 2 such pairs on average.
            assert (np.abs(np.diff(members)) == 1).sum() < 15
            # Every tenth of the order holds about a tenth of each half of the partition.
            halves = members >= np.median(members)
            for part in np.array_split(halves, 10):
                assert abs(part.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(part))


def test_shuffling_reaches_across_windows():
    # One partition of more than one window: the windows themselves come in another order every epoch.
    samples = 65536 * 4
    firsts = {
        tuple(EpochOrder(samples, 1, 65536, 0, epoch).sample_at(np.arange(0, samples, 65536)) // 65536)
        for epoch in range(8)
    }
    assert len(firsts) > 3 and all(sorted(first) == [0, 1, 2, 3] for first in firsts)


def test_a_reader_needs_one_window_of_a_partition_at_a_time():
    order = EpochOrder(65536 * 4, 4, 16384, seed=0, epoch=0)
    ids = order.sample_at(np.arange(order.samples))[1::4]
    for start in range(0, len(ids), order.window):
        part = ids[start : start + order.window]
        assert part.max() - part.min() < order.window


def test_ranges_change_their_windows_at_different_steps():
    order = RunOrder([16 * 4096], [1.0], 16, 64, seed=0)
    window = order.draw(0, 16 * 400).sample.reshape(400, 16) // 64
    changes = (window[1:] != window[:-1]).sum(axis=1)
    assert changes.sum() == 16 * 399 // 64 and changes.max() == 1
    # In earlier versions no step reads anew but every 64th, and that for all ranges.
    window = RunOrder([16 * 4096], [1.0], 16, 64, 0, EARLIER_ORDER).draw(0, 16 * 400).sample.reshape(400, 16) // 64
    assert np.flatnonzero((window[1:] != window[:-1]).sum(axis=1)).tolist() == [63, 127, 191, 255, 319, 383]


@pytest.mark.parametrize(
    ("sizes", "weights", "partitions", "window", "order", "share", "samples"),
    [
        ([1000], [1.0], 8, 64, "a362227a1b5c1a8e", "0f6f49b893b15864", [543, 711, 855, 898, 32, 206]),
        ([50, 2000, 7], [3.0, 4.0, 1.0], 4, 64, "cc6859376bbf1369", "23ad55db96ad51c9", [1640, 37, 428, 1551, 19, 492]),
        ([9000, 700], [7.0, 3.0], 64, 32, "135eac4f6880a4d2", "8e873a566503bc4e", [5042, 3900, 2958, 3886, 6784, 151]),
    ],
)
def test_runs_of_earlier_versions_keep_their_order(sizes, weights, partitions, window, order, share, samples):
    """Made by commit e25cd12, before there was another."""

    def digest(draw):
        return hashlib.sha256(np.stack([draw.source, draw.epoch, draw.sample]).astype("<i8").tobytes()).hexdigest()[:16]

    earlier_order = RunOrder(sizes, weights, partitions, window, 5, EARLIER_ORDER)
    assert earlier_order.draw(1020, 6).sample.tolist() == samples
    assert digest(earlier_order.draw(0, 6144)) == order
    assert digest(earlier_order.share_of_rank(960, 192, 2, 4)) == share
    assert digest(RunOrder(sizes, weights, partitions, window, 5).draw(0, 6144)) != order


def test_seeking_in_a_hundred_million_samples_needs_no_memory():
    order = RunOrder([10**8], [1.0], 64, 1024, seed=3)
    order.draw(0, 64)
    tracemalloc.start()
    for first in (3 * 10**9 + 17, 99_999_968, 10**8 - 1):
        order.draw(first, 64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    drawn = order.draw(99_999_968, 64)
    assert drawn.epoch.tolist() == [0] * 32 + [1] * 32
    first_epoch = EpochOrder(10**8, 64, 1024, 3, 0, staggered=True)
    assert np.array_equal(first_epoch.position_of(drawn.sample[:32]), np.arange(99_999_968, 10**8))


def test_batches_straddle_epochs_drop_nothing_and_repeat_nothing():
    order = RunOrder([103], [1.0], 8, 8192, seed=0)
    batches = [order.draw(step * 16, 16) for step in range(103)]
    epochs = np.concatenate([batch.epoch for batch in batches])
    ids = np.concatenate([batch.sample for batch in batches])
    assert np.array_equal(epochs, np.repeat(np.arange(16), 103))
    for epoch in range(16):
        assert np.array_equal(np.sort(ids[epochs == epoch]), np.arange(103))
    assert any(len(set(batch.epoch)) == 2 for batch in batches)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 12, 24])
@pytest.mark.parametrize("partitions", [1, 4, 8])
def test_ranks_share_the_same_batch_without_overlap(ranks, partitions):
    order = RunOrder([101], [1.0], partitions, 65536 // partitions, seed=7)
    for step in (0, 3, 4, 5, 40):
        whole = order.draw(step * 24, 24)
        shares = [order.share_of_rank(step * 24, 24, rank, ranks) for rank in range(ranks)]
        assert {len(share) for share in shares} == {24 // ranks}
        together = sorted(
            (epoch, sample)
            for share in shares
            for epoch, sample in zip(share.epoch.tolist(), share.sample.tolist(), strict=True)
        )
        assert together == sorted(zip(whole.epoch.tolist(), whole.sample.tolist(), strict=True))


def test_batches_are_looked_up_together_as_they_are_alone():
    order = RunOrder([101, 40], [2.0, 1.0], 8, 8192, seed=7)
    together = order.shares_of_rank(48, 24, 9, rank=1, world_size=3)
    assert len(together) == 9  # more than an epoch
    for number, share in enumerate(together):
        alone = order.share_of_rank(48 + number * 24, 24, 1, 3)
        for one, other in zip(vars(share).values(), vars(alone).values(), strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_reads_whole_partitions(ranks):
    # 1024 samples in 8 partitions of 128: rank r keeps to its own part of the file.
    order = RunOrder([1024], [1.0], 8, 8192, seed=2)
    for rank in range(ranks):
        ids = np.concatenate([order.share_of_rank(step * 32, 32, rank, ranks).sample for step in range(64)])
        assert set(ids // 128) == set(range(rank * 8 // ranks, (rank + 1) * 8 // ranks))


def test_ranks_that_do_not_divide_the_partitions_share_neighbouring_ones():
    order = RunOrder([1024], [1.0], 8, 8192, seed=2)
    for rank in range(3):
        ids = np.concatenate([order.share_of_rank(step * 24, 24, rank, 3).sample for step in range(20)])
        touched = sorted(set(ids // 128))
        assert touched == list(range(touched[0], touched[-1] + 1)) and len(touched) == (3 if rank != 1 else 4)


def test_weighted_sources_get_their_exact_shares():
    order = RunOrder([50, 2000, 7], [3.0, 4.0, 1.0], 4, 16384, seed=1)
    drawn = order.draw(1024 * 5, 1024 * 2)
    assert np.bincount(drawn.source).tolist() == [768, 1024, 256]
    # Mixed throughout, not one source after the other.
    for part in np.array_split(drawn.source, 8):
        assert abs((part == 1).mean() - 0.5) < 0.17
    # Each source goes through its own epochs, each sample once in each.
    whole = order.draw(0, 1024 * 4)
    for source, size in enumerate([50, 2000, 7]):
        mine = whole.source == source
        counts = np.bincount(whole.epoch[mine])
        assert all(counts[:-1] == size)
        for epoch in range(len(counts) - 1):
            assert np.array_equal(np.sort(whole.sample[mine & (whole.epoch == epoch)]), np.arange(size))


def test_weighted_sources_are_shared_by_ranks_like_one():
    order = RunOrder([50, 200], [1.0, 2.0], 4, 16384, seed=1)
    for step in range(0, 90, 30):
        whole = order.draw(step * 12, 12)
        shares = [order.share_of_rank(step * 12, 12, rank, 3) for rank in range(3)]
        keys = [
            (int(share.source[i]), int(share.epoch[i]), int(share.sample[i]))
            for share in shares
            for i in range(len(share))
        ]
        assert sorted(keys) == sorted(
            zip(whole.source.tolist(), whole.epoch.tolist(), whole.sample.tolist(), strict=True)
        )


@pytest.mark.parametrize("rank", [0, 31, 44, 45, 63])
def test_a_rank_reads_few_ranges_of_weighted_sources(rank):
    sizes = [100 * 65536, 60 * 65536]

    def met(version):
        order = RunOrder(sizes, [0.7, 0.3], 1024, 256, 0, version)
        return len(met_ranges(order, order.shares_of_rank(0, 1024, 300, rank, 64)))

    assert met(ORDER) == 16
    # One at the edge meets 46 of them.
    assert met(EARLIER_ORDER) > (600 if rank not in (0, 63) else 40)


@pytest.mark.parametrize(
    ("weights", "batch", "ranks"),
    [
        ([0.7, 0.3], 4096, 512),
        ([0.7, 0.3], 256, 16),
        ([0.7, 0.3], 1000, 20),
        ([0.5, 0.2, 0.2, 0.09, 0.01], 1024, 64),
        ([0.5, 0.2, 0.2, 0.1], 1536, 96),
    ],
)
def test_ranks_read_few_ranges_of_weighted_sources_in_batches_of_any_size(weights, batch, ranks):
    sizes = [10**6 + 7777 * source for source in range(len(weights))]
    section = settled(DataSection("d"), BatchSection(batch, 1))
    order = RunOrder(sizes, weights, section.partitions, section.window, 3)
    for rank in (ranks // 2, ranks * 2 // 3):
        met = met_ranges(order, order.shares_of_rank(0, batch, 20, rank, ranks))
        # A source with few samples of a batch has 16 ranges all the same.
        assert len(met) <= section.partitions / ranks + 1 + 2 * (len(weights) - 1) + 16 * (min(weights) < 0.05)


def test_sources_whose_shares_of_a_batch_come_out_uneven_move_a_rank_by_a_range():
    order = RunOrder([10**6, 2 * 10**6, 3 * 10**6], [0.4, 0.3, 0.3], 225, 291, 3)
    met = [len(met_ranges(order, order.shares_of_rank(0, 225, 60, rank, 45))) for rank in range(0, 45, 2)]
    # Of its own it has five. Sorted by the range alone, whatever the source, it meets up to nine.
    assert min(met) >= 5 and max(met) <= 6


def met_ranges(order, draws):
    """The ranges that samples are from, each with its source."""
    source, sample = (np.concatenate([getattr(draw, name) for draw in draws]) for name in ("source", "sample"))
    small, longer = np.divmod(np.asarray(order.sizes), order._ranges)
    small, boundary = small[source], (longer * (small + 1))[source]
    within = np.where(sample < boundary, sample // (small + 1), longer[source] + (sample - boundary) // small)
    return set(zip(source.tolist(), within.tolist(), strict=True))


@pytest.mark.parametrize(
    ("batch", "cycle"), [(32, 1024), (256, 1024), (1024, 1024), (225, 1125), (1000, 2000), (7, 1029)]
)
def test_batches_have_the_shares_of_their_sources_but_for_what_is_rounded(batch, cycle):
    weights = [0.55, 0.3, 0.149, 0.001]
    partitions = default_partitions(batch)
    order = RunOrder([900, 70000, 20, 40], weights, partitions, 64, 11)
    exact = np.asarray(weights) * cycle
    first = np.bincount(order.draw(0, cycle).source, minlength=4)
    assert np.abs(first - exact).max() < 1
    for number in (1, 5):
        assert np.array_equal(np.bincount(order.draw(number * cycle, cycle).source, minlength=4), first)
    for step in range(cycle // partitions):
        drawn = np.bincount(order.draw(step * partitions, partitions).source, minlength=4)
        # Of the first sources together, too.
        assert np.abs(np.cumsum(drawn) - np.cumsum(first) * partitions / cycle).max() < 1
    # Sources lie mixed within a batch, and each goes through its own epochs, every sample once in each.
    whole = order.draw(0, 4 * cycle)
    for source, size in enumerate(order.sizes):
        mine = whole.source == source
        for epoch in range(np.max(whole.epoch[mine], initial=0)):
            assert np.array_equal(np.sort(whole.sample[mine & (whole.epoch == epoch)]), np.arange(size))


def test_ten_domains_one_behind_the_other_are_in_every_batch():
    size = 40_000_000
    for batch in (225, 250, 300, 1000, 1031):
        section = settled(DataSection("d"), BatchSection(batch, 1))
        order = RunOrder([size], [1.0], section.partitions, section.window, 0)
        shares = [np.bincount(order.draw(step * batch, batch).sample * 10 // size, minlength=10) for step in range(5)]
        assert np.std(np.asarray(shares) / batch) < 0.005


def test_a_source_that_would_never_be_read_is_refused():
    with pytest.raises(UserError, match=r"data\.train\[1\]\.weight is below 1/1024"):
        RunOrder([10, 10], [10000.0, 1.0], 4, 16384, seed=0)


@pytest.mark.parametrize(
    ("batch", "partitions", "window"),
    [
        (1, 16, 4096),
        (6, 18, 3640),
        (7, 21, 3120),
        (16, 16, 4096),
        (32, 32, 2048),
        (96, 96, 682),
        (128, 128, 512),
        (225, 225, 291),
        (1000, 1000, 256),
        (4096, 1024, 256),
        (1500, 750, 256),
        (1031, 1030 // 2, 256),
        (2 * 1031, 687, 256),
        (17 * 1031, 17, 3855),
    ],
)
def test_what_is_left_open_follows_from_the_batch(batch, partitions, window):
    section = settled(DataSection("d"), BatchSection(batch, 1))
    assert (section.partitions, section.window) == (partitions, window)
    assert section.order == ORDER and settled(section, BatchSection(3, 1)) == section
    own = settled(DataSection("d", partitions=5, window=7), BatchSection(batch, 1))
    assert (own.partitions, own.window) == (5, 7)
    assert settled(DataSection("d", partitions=5), BatchSection(batch, 1)).window == 13107
    # The largest power of two that divides the batch.
    earlier_section = settled(DataSection("d", order=EARLIER_ORDER), BatchSection(batch, 1))
    assert earlier_section.partitions == min(1024, batch & -batch)


@pytest.mark.parametrize(
    ("data", "batch", "partitions", "window"),
    [
        ({"partitions": "auto"}, {"samples": 4096}, 64, 1024),
        ({}, {"samples": 24}, 8, 8192),
        ({}, None, 64, 1024),
        ({"partitions": 500}, {"samples": 4096}, 500, 1024),
    ],
)
def test_earlier_versions_chose_otherwise(data, batch, partitions, window):
    noted = {"train": "d", "partitions": partitions, "window": window, "order": EARLIER_ORDER}
    assert earlier({"train": "d", **data}, batch) == noted


def test_versions_that_noted_ranges_and_windows_had_the_earlier_order():
    noted = {"partitions": 128, "window": 512}
    assert earlier(noted, {"samples": 128}) == {**noted, "order": EARLIER_ORDER}


@pytest.mark.parametrize(
    "data", [{"window": None, "order": None}, {"order": 2}, {"partitions": "many"}, {"partitions": 0}, None, [1], "d"]
)
def test_what_is_no_section_of_an_earlier_version_stays_as_it_is(data):
    assert earlier(data, {"samples": 64}) == data
    assert earlier({"partitions": "auto"}, {"samples": "many"}) == {"partitions": "auto"}
