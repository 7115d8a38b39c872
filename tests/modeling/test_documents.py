"""All mixers that isolate documents mean the same by document ids."""

import pytest
import torch

from longmix.modeling.context import BatchContext

VARIANTS = {
    "converter": {"permutations": True},
    "flt": {},
    "flt-causal": {"is_causal": True},
    "paramixer": {},
    "paramixer-causal": {"is_causal": True},
    "transformer": {},
    "transformer-causal": {"is_causal": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_an_id_that_returns_is_another_document(name, make_mixer):
    mixer = make_mixer(name.partition("-")[0], **VARIANTS[name]).double()
    assert mixer.isolates_documents
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([9, 7])[:, None]
    returning = torch.tensor([[3, 3, 3, 0, 0, 3, 3, 3, 3], [0, 1, 1, 0, 1, 1, 1, 1, 1]])
    distinct = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2], [0, 1, 1, 2, 3, 3, 3, 3, 3]])
    result = mixer(x, BatchContext(mask, returning))
    assert torch.equal(result, mixer(x, BatchContext(mask, distinct)))
    torch.testing.assert_close(result[:1, 5:], mixer(x[:1, 5:], BatchContext()), rtol=0, atol=1e-10)
    if hasattr(mixer, "mixing_matrix"):
        assert (mixer.mixing_matrix(x, BatchContext(mask, returning))[0, :, :3, 5:] == 0).all()
