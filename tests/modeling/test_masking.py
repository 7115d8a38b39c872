"""Compaction and masked means."""

import pytest
import torch

from longmix.modeling.context import BatchContext
from longmix.modeling.masking import Compaction, as_mask, keep_valid, masked_mean, right_padded


def test_compaction_and_back():
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]).bool()
    values = torch.arange(20).view(4, 5)
    compaction = Compaction(mask)
    assert compaction.mask.sum(1).tolist() == [3, 5, 0, 1]
    assert compaction.compact(values).tolist() == [
        [1, 2, 4, 0, 3],
        [5, 6, 7, 8, 9],
        [10, 11, 12, 13, 14],
        [19, 15, 16, 17, 18],
    ]
    wide = torch.randn(4, 5, 3)
    assert torch.equal(compaction.restore(compaction.compact(wide)), keep_valid(wide, mask))
    assert compaction.compact(None) is None


def test_masked_mean():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]]).bool()
    tensor = torch.tensor([[[1.0, 2], [3, 6], [float("nan"), float("inf")]], [[float("nan")] * 2] * 3])
    assert masked_mean(tensor, mask).tolist() == [[2, 4], [0, 0]]
    assert masked_mean(tensor[:1, :2], None).tolist() == [[2, 4]]
    ones = torch.ones(1, 3000, 1, dtype=torch.bfloat16)
    assert masked_mean(ones, torch.ones(1, 3000, dtype=torch.bool)).item() == 1


def test_masks_of_any_type():
    for dtype in (torch.bool, torch.int64, torch.float32):
        assert as_mask(torch.tensor([[1, 0, 1]], dtype=dtype)).tolist() == [[True, False, True]]
    with pytest.raises(ValueError, match=r"attention_mask has shape \(1, 1, 3\)"):
        as_mask(torch.ones(1, 1, 3))


def test_masks_that_must_be_right_padded():
    assert right_padded(None) is None
    good = [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    for dtype in (torch.bool, torch.int64, torch.float32):
        mask = right_padded(torch.tensor(good, dtype=dtype))
        assert mask.dtype == torch.bool and mask.tolist() == torch.tensor(good).bool().tolist()
    assert right_padded(torch.ones(2, 0)).shape == (2, 0)
    for bad in ([0, 1, 1], [1, 0, 1]):
        with pytest.raises(ValueError, match="valid tokens behind padding; allowed: padding on the right alone"):
            right_padded(torch.tensor([[1, 1, 0], bad]))


@pytest.mark.parametrize("model_type", ["converter", "flt", "paramixer", "transformer"])
def test_mixing_matrices_take_right_padded_masks_of_any_type(model_type, make_mixer):
    mixer = make_mixer(model_type)
    x = torch.randn(2, 6, 16)
    mask = torch.arange(6) < torch.tensor([6, 4])[:, None]
    matrix = mixer.mixing_matrix(x, BatchContext(mask))
    for dtype in (torch.int64, torch.float32):
        assert torch.equal(mixer.mixing_matrix(x, BatchContext(mask.to(dtype))), matrix)
    with pytest.raises(ValueError, match="attention_mask has valid tokens behind padding"):
        mixer.mixing_matrix(x, BatchContext(mask.flip(1)))
