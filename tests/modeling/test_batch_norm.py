"""Batch normalisation per position over valid tokens."""

import pytest
import torch
from torch.nn import BatchNorm1d
from transformers import AutoModel

from longmix.modeling.s3attention.batch_norm import MaskedBatchNorm


def test_full_batches_equal_batch_norm_1d():
    ours, theirs = MaskedBatchNorm(9, 1e-5), BatchNorm1d(9, eps=1e-5)
    for _ in range(3):
        x = torch.randn(4, 9, 6) * 3 + 5
        torch.testing.assert_close(ours(x, None), theirs(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours(x, torch.ones(4, 9, dtype=torch.bool)), theirs(x), rtol=1e-5, atol=1e-5)
    # The running variance of PyTorch is the unbiased one: 24 / 23 larger, as far as it comes from batches.
    torch.testing.assert_close(ours.running_variance, theirs.running_var, rtol=0.05, atol=0)


def test_masked_statistics_position_by_position():
    norm = MaskedBatchNorm(8, 1e-5).double()
    x = torch.randn(5, 7, 6, dtype=torch.float64) + 2
    lengths = torch.tensor([7, 3, 5, 0, 3])
    mask = torch.arange(7) < lengths[:, None]
    mask[:, 6] = False
    result = norm(torch.where(mask[:, :, None], x, float("nan")), mask)
    for position in range(7):
        valid = x[mask[:, position], position]
        if len(valid) == 0:
            assert norm.running_mean[position] == 0 and norm.running_variance[position] == 1
            continue
        mean, variance = valid.mean(), valid.var(unbiased=False)
        expected = (valid - mean) / (variance + 1e-5).sqrt()
        torch.testing.assert_close(result[mask[:, position], position], expected)
        torch.testing.assert_close(norm.running_mean[position], 0.1 * mean)
        torch.testing.assert_close(norm.running_variance[position], 0.9 + 0.1 * variance)
    assert norm.running_mean[7] == 0 and norm.running_variance[7] == 1


def test_running_statistics_stay_fp32():
    norm = MaskedBatchNorm(4, 1e-5)
    norm.running_mean.fill_(1.00001)
    norm.bfloat16()
    assert norm.weight.dtype == torch.bfloat16
    assert norm.running_mean.dtype == norm.running_variance.dtype == torch.float32
    assert (norm.running_mean == torch.tensor(1.00001)).all()
    assert norm(torch.randn(3, 4, 5, dtype=torch.bfloat16), None).dtype == torch.bfloat16


def test_running_statistics_are_loaded_in_fp32(make_config, tmp_path):
    model = AutoModel.from_config(make_config("s3attention", normalization="batch"))
    running = model.layers[1].mixer.smoother.norm.running_mean
    running.fill_(1.00001)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    norm = loaded.layers[1].mixer.smoother.norm
    assert norm.weight.dtype == torch.bfloat16
    assert norm.running_mean.dtype == torch.float32
    assert torch.equal(norm.running_mean, running)


def test_checkpointing_counts_a_batch_once(make_model, batch):
    input_ids, mask = batch([9, 4], 9)
    running = []
    for checkpointing in (False, True):
        model = make_model("s3attention", normalization="batch").train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(input_ids=input_ids, attention_mask=mask).last_hidden_state.square().sum().backward()
        running.append(model.layers[0].mixer.smoother.norm.running_mean)
    assert running[0].abs().max() > 0
    assert torch.equal(*running)


BEFORE = """
import torch
from longmix.modeling.s3attention.batch_norm import MaskedBatchNorm

torch.manual_seed(0)
x = torch.randn(5, 6, 3, dtype=torch.float64)
mask = torch.arange(6) < torch.tensor([6, 2, 4, 1, 5])[:, None]
weight = torch.randn(5, 6, 3, dtype=torch.float64)


def run(rows):
    norm = MaskedBatchNorm(6, 1e-5).double()
    part = x[rows].clone().requires_grad_()
    result = norm(part, mask[rows])
    total = (torch.where(mask[rows][:, :, None], result, 0) * weight[rows]).sum()
    (first,) = torch.autograd.grad(total, part, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), part)
    return result.detach(), first.detach(), second, norm.running_mean, norm.running_variance


whole = run(slice(0, 5))
"""
ON_EACH = """
rows = slice(0, 2) if rank == 0 else slice(2, 5)
result, first, second, mean, variance = run(rows)
valid = mask[rows]
torch.testing.assert_close(result[valid], whole[0][rows][valid])
torch.testing.assert_close(first, whole[1][rows])
torch.testing.assert_close(second, whole[2][rows])
torch.testing.assert_close(mean, whole[3])
torch.testing.assert_close(variance, whole[4])
"""


@pytest.mark.slow
@pytest.mark.full
def test_two_ranks_share_their_statistics(two_ranks):
    two_ranks(BEFORE, ON_EACH)


OF_OTHER_LENGTHS = """
rows, positions = (slice(0, 2), 6) if rank == 0 else (slice(2, 5), 5)
norm = MaskedBatchNorm(8, 1e-5).double()
valid = mask[rows, :positions].clone()
if rank == 1:
    valid[2] = False  # its last row has six
part = x[rows, :positions].clone().requires_grad_()
result = norm(part, valid)
result[valid].square().sum().backward()
seen = torch.cat([mask[:4], torch.zeros(1, 6, dtype=torch.bool)])
for position in range(6):
    of_position = x[seen[:, position], position]
    torch.testing.assert_close(norm.running_mean[position], 0.1 * of_position.mean())
    torch.testing.assert_close(norm.running_variance[position], 0.9 + 0.1 * of_position.var(unbiased=False))
assert not norm.running_mean[6:].any() and part.grad.isfinite().all()
"""


@pytest.mark.slow
@pytest.mark.full
def test_two_ranks_whose_batches_differ_in_length_share_their_statistics(two_ranks):
    two_ranks(BEFORE, OF_OTHER_LENGTHS)
