"""FNet of transformers in half precision, of which torch has no Fourier transform."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from longmix.trainer.models.fourier import transform_in_fp32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fnet_computes_in_half_precision(dtype):
    config = AutoConfig.for_model("fnet", vocab_size=30, hidden_size=16, num_hidden_layers=2, intermediate_size=16)
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config).eval()
    ids = torch.randint(30, (2, 12))
    expected = model(ids).logits
    transform_in_fp32(model)
    if dtype == torch.float32:
        assert torch.equal(model(ids).logits, expected)
    if dtype == torch.bfloat16:
        plain = AutoModelForMaskedLM.from_config(config).eval()
        plain.load_state_dict(model.state_dict())
        with torch.autocast("cpu", dtype):  # where autocast has it in fp32
            assert torch.equal(model(ids).logits, plain(ids).logits)
    found = model.to(dtype)(ids).logits
    assert found.dtype == dtype
    found.sum().backward()
    assert (found.float() - expected).square().mean().sqrt() < 0.02 * expected.std()
