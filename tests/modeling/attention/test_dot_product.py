"""Attention by three products on a CPU in bf16 computes what PyTorch's kernels compute."""

import contextlib

import pytest
import torch
from torch.nn import functional

from longmix.modeling.attention import dot_product
from longmix.modeling.attention.dot_product import dot_product_attention

AUTOCAST = {"cast": contextlib.nullcontext, "autocast": lambda: torch.autocast("cpu", torch.bfloat16)}


def made(dtype, length=24, keys=None):
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 2, length, 8), (3, 2, keys or length, 8), (3, 2, keys or length, 8))
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def mixed(function, tensors, **options):
    """The result of an attention and the gradients of its arguments, in fp32."""
    result = function(*tensors, **options)
    weights = torch.linspace(-1, 1, result.numel()).view_as(result)
    gradients = torch.autograd.grad((result.float() * weights).sum(), tensors)
    return [tensor.detach().float() for tensor in (result, *gradients)]


@pytest.mark.parametrize("way", AUTOCAST)
@pytest.mark.parametrize("form", ["plain", "causal", "masked"])
def test_it_agrees_with_the_exact_attention_as_well_as_pytorchs_own(way, form):
    exact = made(torch.float64, keys=None if form == "causal" else 17)
    options = {"is_causal": form == "causal"}
    if form == "masked":
        options["attn_mask"] = torch.arange(17)[None, None, None] < torch.tensor([17, 9, 1])[:, None, None, None]
    # Rounded first, so that the attention alone is compared.
    low = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    rounded = [tensor.detach().double().requires_grad_() for tensor in low]
    expected = mixed(functional.scaled_dot_product_attention, rounded, **options)
    arguments = [tensor.detach().float().requires_grad_() for tensor in low] if way == "autocast" else low
    with AUTOCAST[way]():
        found = mixed(dot_product_attention, arguments, **options)
        assert dot_product_attention(*arguments, **options).dtype == torch.bfloat16
    for value, true in zip(found, expected, strict=True):
        assert (value - true).norm() < 1e-2 * true.norm()


def test_nothing_is_kept_in_fp32():
    """Scores in fp32 would be the largest tensors by far."""
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.dtype) or tensor, lambda x: x)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        dot_product_attention(*made(torch.bfloat16))
    assert set(kept) == {torch.bfloat16}


def test_rows_that_see_nothing_stay_finite():
    options = {"attn_mask": torch.zeros(3, 1, 1, 24, dtype=torch.bool)}
    assert all(tensor.isfinite().all() for tensor in mixed(dot_product_attention, made(torch.bfloat16), **options))


def test_weights_are_dropped():
    query, key, _ = made(torch.bfloat16)
    value = torch.eye(24, dtype=torch.bfloat16).expand(3, 2, 24, 24)
    weights = dot_product_attention(query, key, value, dropout_p=0.25)
    assert 0.2 < (weights == 0).float().mean() < 0.3
    kept = dot_product_attention(query, key, value) / 0.75
    torch.testing.assert_close(weights[weights != 0], kept[weights != 0], rtol=1e-2, atol=1e-4)


def test_elsewhere_it_is_pytorchs_own(monkeypatch):
    for dtype, length in ((torch.float32, 24), (torch.bfloat16, dot_product.MOST_KEYS + 1)):
        tensors = made(dtype, length)
        found, own = dot_product_attention(*tensors), functional.scaled_dot_product_attention(*tensors)
        assert torch.equal(found, own)
    tensors = made(torch.bfloat16)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", None)
    dot_product_attention(*tensors)
