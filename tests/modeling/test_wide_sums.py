"""Gradients that are sums over all rows, in half precision on a CPU."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from longmix.kernels.selection import as_on_gpus
from longmix.modeling.wide_sums import Embedding, LayerNorm

ROWS, WIDTH = 8192, 16
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def relative_error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


@HALVES
@pytest.mark.parametrize("parameters", ["half", "fp32"])
def test_gradients_of_gain_and_bias_do_not_stop_growing(dtype, parameters):
    """Of gradients with a mean, which torch's own gets wrong by half and more."""
    x, gradient = torch.randn(ROWS, WIDTH).to(dtype), (1 + torch.randn(ROWS, WIDTH)).to(dtype)
    exact, norm = torch.nn.LayerNorm(WIDTH).double(), LayerNorm(WIDTH)
    norm = norm.to(dtype) if parameters == "half" else norm
    exact(x.double()).backward(gradient.double())
    result = norm(x)
    assert result.dtype == dtype
    result.backward(gradient)
    for one, other in zip(norm.parameters(), exact.parameters(), strict=True):
        assert relative_error(one.grad, other.grad) < 5e-3


@HALVES
def test_a_frequent_token_gets_all_of_its_gradient(dtype):
    ids = torch.randint(1, 20, (ROWS,)).where(torch.rand(ROWS) < 0.5, 0)
    gradient = (1 + torch.randn(ROWS, WIDTH)).to(dtype)
    embedding, exact = Embedding(20, WIDTH).to(dtype), torch.nn.Embedding(20, WIDTH).double()
    exact.weight.data.copy_(embedding.weight.data)
    result = embedding(ids)
    assert result.dtype == dtype and torch.equal(result.double(), exact(ids))
    result.backward(gradient)
    exact(ids).backward(gradient.double())
    assert relative_error(embedding.weight.grad, exact.weight.grad) < 5e-3
    with torch.no_grad():
        assert torch.equal(embedding(ids), result)


def test_costs_that_are_counted_for_gpus_have_none_of_it():
    """`longmix plan` counts them on a CPU."""
    x = torch.zeros(4, WIDTH, dtype=torch.bfloat16)
    with as_on_gpus():
        assert "NativeLayerNorm" in LayerNorm(WIDTH).bfloat16()(x).grad_fn.name()
    assert "ToCopy" in LayerNorm(WIDTH).bfloat16()(x).grad_fn.name()


def test_no_parameter_of_a_model_loses_its_gradient():
    config = AutoConfig.for_model(
        "transformer", vocab_size=12, hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16
    )
    model = AutoModelForMaskedLM.from_config(config).bfloat16()
    exact = AutoModelForMaskedLM.from_config(config).double()
    exact.load_state_dict(model.state_dict())
    ids = torch.randint(5, 12, (64, 128))
    for one in (model, exact):
        one.eval()(input_ids=ids, labels=ids).loss.backward()
    pairs = zip(model.named_parameters(), exact.parameters(), strict=True)
    errors = {name: relative_error(one.grad, other.grad) for (name, one), other in pairs if other.grad.norm() > 1e-4}
    assert len(errors) > 10 and max(errors.values()) < 0.1, errors
