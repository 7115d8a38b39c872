"""Softmax attention: its documents, its causal form and its mixing matrix against explicit matrices."""

import pytest
import torch

from longmix.modeling.context import BatchContext

LENGTHS = [11, 4, 0, 1]
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3]]).expand(4, 11)


@pytest.fixture
def samples():
    """(x (4, 11, 16), mask): samples of LENGTHS tokens with NaN in the padding."""
    mask = torch.arange(11) < torch.tensor(LENGTHS)[:, None]
    x = torch.randn(4, 11, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.where(mask[:, :, None], x, float("nan")), mask


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["rows", "documents"])
def test_equals_the_equation(is_causal, documents, samples, make_mixer, load_oracle):
    oracle = load_oracle("transformer")
    mixer = make_mixer("transformer", is_causal=is_causal).double()
    x, mask = samples
    result = mixer(x, BatchContext(mask, documents))
    assert (result[~mask] == 0).all()
    for row, n in enumerate(LENGTHS):
        if n:
            expected = oracle(mixer, x[row, :n], None if documents is None else documents[row, :n])
            torch.testing.assert_close(result[row, :n], expected, rtol=0, atol=1e-10)
    unmasked = mixer(x[:1], BatchContext(None, None if documents is None else documents[:1]))
    torch.testing.assert_close(unmasked[0], result[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["rows", "documents"])
def test_the_mixing_matrix_is_what_is_applied_to_the_values(is_causal, documents, samples, make_mixer):
    mixer = make_mixer("transformer", is_causal=is_causal).double()
    x, mask = samples
    matrix = mixer.mixing_matrix(x, BatchContext(mask, documents))
    assert matrix.shape == (4, 2, 11, 11)
    # Only valid tokens give or take, and what a token takes adds up to one.
    pairs = (mask[:, :, None] & mask[:, None, :])[:, None].expand_as(matrix)
    assert (matrix[~pairs] == 0).all()
    torch.testing.assert_close(matrix.sum(-1), mask[:, None].expand(-1, 2, -1).double())
    if is_causal:
        assert (matrix.triu(1) == 0).all()
    value = mixer.attention.project(x, mask)[2]
    result = mixer.attention.join(matrix @ value, mask)
    torch.testing.assert_close(result, mixer(x, BatchContext(mask, documents)), rtol=0, atol=1e-10)
    unmasked = mixer.mixing_matrix(x[:1], BatchContext(None, None if documents is None else documents[:1]))
    torch.testing.assert_close(unmasked, matrix[:1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_with_documents(is_causal, make_mixer):
    mixer = make_mixer("transformer", hidden_size=8, is_causal=is_causal).double()
    mask = torch.arange(6) < torch.tensor([6, 4, 0])[:, None]
    documents = torch.tensor([[0, 0, 1, 1, 1, 2], [5, 5, 5, 5, 9, 9], [0, 1, 2, 3, 4, 5]])
    x = torch.randn(3, 6, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mixer(x, BatchContext(mask, documents)), x)


def test_documents_see_only_themselves(make_model, batch):
    model = make_model("transformer", position_embedding_type="none")
    assert model.mixer_class.isolates_documents
    input_ids, _ = batch([12], 12)
    documents = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3])
    packed = model(input_ids=input_ids, document_ids=documents).last_hidden_state
    for start, end in ((0, 5), (5, 9), (9, 12)):
        alone = model(input_ids=input_ids[:, start:end]).last_hidden_state
        torch.testing.assert_close(packed[:, start:end], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_compiles_without_breaks(make_model, batch):
    model = make_model("transformer")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    input_ids, mask = batch([9, 4], 9)
    arguments = {"input_ids": input_ids, "attention_mask": mask}
    torch.testing.assert_close(compiled(**arguments).last_hidden_state, model(**arguments).last_hidden_state)
