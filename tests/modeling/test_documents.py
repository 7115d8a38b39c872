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


@pytest.mark.parametrize(
    ("name", "positions"),
    [*((name, 300) for name in VARIANTS), pytest.param("converter", 4096, marks=pytest.mark.full)],
)
def test_neighbours_have_no_influence_through_rounding_either(name, positions, make_mixer):
    """But for Converter's phases, which are added up along the row."""
    torch.manual_seed(0)
    kind = name.partition("-")[0]
    mixer = make_mixer(kind, max_position_embeddings=positions, **VARIANTS[name])
    documents = (torch.arange(positions) * 5 // positions)[None]
    own = (documents[0] > 0) & (documents[0] < 4)
    found = []
    kept, kept_gradient = torch.randn(1, positions, 16), torch.randn(1, positions, 16)
    for _ in range(2):
        x, gradient = (torch.where(own[:, None], mine, torch.randn(1, positions, 16)) for mine in (kept, kept_gradient))
        x.requires_grad_()
        result = mixer(x, BatchContext(None, documents))
        result.backward(gradient)
        found.append((result[:, own].detach(), x.grad[:, own]))
    (result, gradient), (with_others, gradient_with_others) = found
    result_bound, gradient_bound = (2e-6, 2e-5) if kind == "converter" else (0, 0)
    assert (result - with_others).abs().max() <= result_bound * result.abs().max()
    assert (gradient - gradient_with_others).abs().max() <= gradient_bound * gradient.abs().max()


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
