"""The ablation of FLT: its rows are what their labels say, and it measures what it trains."""

import math

import numpy as np
import pytest
import torch

from longmix.data_prep.shards import LIST_INT32, write_dataset
from longmix.modeling import BatchContext
from longmix.trainer.samples.dataset import ShardedDataset

VOCABULARY = 12


@pytest.fixture(scope="module")
def ablation(script):
    return script("learned.flt_ablation")


def matrix_of(ablation, name, x, mask=None):
    """(mixing matrix (1, H, N, N) of the first layer of a row, its mixer)."""
    torch.manual_seed(0)
    mixer = ablation.make_model(ablation.ROWS[name], VOCABULARY).encoder.layers[0].mixer
    with torch.no_grad():
        return mixer.mixing_matrix(x, BatchContext(mask)), mixer


def test_the_exact_rows_are_the_softmax_under_the_mask(ablation):
    x, mask = torch.randn(1, 20, ablation.WIDTH), (torch.arange(20) < 15)[None]
    found, mixer = matrix_of(ablation, "exact", x, mask)
    query, key, _ = mixer.attention.project(x, mask)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + mixer.attention.mask.matrix(None, 20)
    expected = scores[:, :, :15, :15].softmax(-1)
    torch.testing.assert_close(found[:, :, :15, :15], expected.float(), rtol=1e-4, atol=1e-6)
    assert (found[..., 15:] == 0).all()


def test_masks_start_at_the_neighbours(ablation):
    found, _ = matrix_of(ablation, "exact-neighbours", torch.randn(1, 20, ablation.WIDTH))
    for head, step in ((0, -1), (1, 1)):
        row = found[0, head, 9]
        assert row.argmax() == 9 + step and row.amax() > 0.3


@pytest.mark.full
@pytest.mark.parametrize("name", ["estimate", "exact-reach"])
def test_a_row_learns_and_is_measured(ablation, tmp_path, name):
    generator = np.random.default_rng(0)
    rows = [{"input_ids": (3 + (start + 2 * np.arange(16)) % 9)} for start in generator.integers(9, size=128)]
    fields = {"split": "train", "split_rule": "all", "vocab_size": VOCABULARY, "mask_token_id": 2}
    write_dataset(tmp_path, rows, {"input_ids": LIST_INT32}, **fields)
    data = ShardedDataset(tmp_path)
    torch.manual_seed(0)
    model = ablation.make_model(ablation.ROWS[name], VOCABULARY)
    before = ablation.evaluate(model, data)
    assert ablation.learn(model, data, tokens=16 * ablation.BATCH * ablation.LENGTH, seed=0) > 0
    after = ablation.evaluate(model, data)
    assert 0 <= before[ablation.ACCURACY] <= 1 and after[ablation.LOSS] < before[ablation.LOSS] - 0.2


def test_the_table_has_the_newest_figures_of_each_row(ablation):
    def recorded(case, *values, commit="new"):
        made = {"date": "2026-01-02", "commit": commit, "machine": "one core"}
        figures = zip(ablation.FIGURES, values, strict=False)
        return [{"case": case, "figure": figure, "value": str(value), **made} for figure, value in figures]

    rows = [
        *recorded("estimate; 500,000 tokens", 0.1, 7, 9000, commit="old"),
        *recorded("exact-reach; 1,000,000 tokens", 0.25, 4.6, 10000),
        *recorded("estimate; 500,000 tokens", 0.2, 6.5, 12345),
        *recorded(ablation.SHOWN, 0.15),
    ]
    lines = ablation.table(rows).splitlines()
    assert lines[2:6] == [
        "| token shown there, or the most frequent | 15.0 |  |  |",
        "| the paper's: 64 features | 20.0 | 6.50 | 12,345 |",
        "| 64 features, and `exact_reach: 4`, 1 million tokens | 25.0 | 4.60 | 10,000 |",
        "",
    ]
    assert lines[-1].endswith("Measured 2026-01-02 on one core, commits new.")


def test_counting_is_at_the_positions_of_the_models(ablation, tmp_path):
    generator = np.random.default_rng(0)
    fields = {"split": "train", "split_rule": "all", "vocab_size": VOCABULARY, "mask_token_id": 2}
    for name, rows in (("train", 64), ("validation", 32)):
        samples = [{"input_ids": (3 + (start + np.arange(16)) % 9)} for start in generator.integers(9, size=rows)]
        write_dataset(tmp_path / name, samples, {"input_ids": LIST_INT32}, **fields)
    train, validation = (ShardedDataset(tmp_path / name) for name in ("train", "validation"))
    found = ablation.count(train, validation)
    # A neighbour says which token is next to it.
    assert list(found) == [ablation.SHOWN, ablation.BIGRAM] and ablation.LOSS in found[ablation.BIGRAM]
    assert found[ablation.SHOWN][ablation.ACCURACY] < 0.4 and found[ablation.BIGRAM][ablation.ACCURACY] > 0.9
