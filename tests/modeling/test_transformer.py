"""Softmax attention against explicit matrices, its documents and its causal form."""

import pytest
import torch
from transformers import AutoModel


def oracle(mixer, x, allowed):
    """One sample (n, D), allowed (n, n) bool, head by head."""
    width = x.shape[1]
    size = width // mixer.heads
    query, key, value = (x @ mixer.projection.weight.T + mixer.projection.bias).split(width, dim=1)
    mixed = []
    for head in range(mixer.heads):
        q, k, v = (part[:, head * size : (head + 1) * size] for part in (query, key, value))
        scores = (q @ k.T / size**0.5).masked_fill(~allowed, float("-inf"))
        mixed.append(torch.softmax(scores, dim=1) @ v)
    return torch.cat(mixed, 1) @ mixer.output.weight.T + mixer.output.bias


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("with_documents", [False, True])
def test_equals_the_equation(is_causal, with_documents, make_mixer):
    mixer = make_mixer("transformer", is_causal=is_causal).double()
    lengths = [11, 4, 0, 1]
    x = torch.randn(4, 11, 16, dtype=torch.float64)
    mask = torch.arange(11) < torch.tensor(lengths)[:, None]
    documents = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3]).expand(4, 11) if with_documents else None
    result = mixer(x, mask, documents)
    assert (result[~mask] == 0).all()
    for row, n in enumerate(lengths):
        allowed = torch.ones(n, n, dtype=torch.bool)
        if is_causal:
            allowed = allowed.tril()
        if with_documents:
            allowed &= documents[0, :n, None] == documents[0, None, :n]
        if n:
            torch.testing.assert_close(result[row, :n], oracle(mixer, x[row, :n], allowed), rtol=0, atol=1e-10)
    unmasked = mixer(x[:1], None, None if documents is None else documents[:1])
    torch.testing.assert_close(unmasked[0], result[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_with_documents(is_causal, make_mixer):
    mixer = make_mixer("transformer", hidden_size=8, is_causal=is_causal).double()
    mask = torch.arange(6) < torch.tensor([6, 4, 0])[:, None]
    documents = torch.tensor([[0, 0, 1, 1, 1, 2], [5, 5, 5, 5, 9, 9], [0, 1, 2, 3, 4, 5]])
    x = torch.randn(3, 6, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mixer(x, mask, documents), x)


def test_documents_see_only_themselves(make_model, batch):
    model = make_model("transformer", position_embedding_type="none")
    assert model.mixer_class.isolates_documents
    input_ids, _ = batch([12], 12)
    documents = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3])
    packed = model(input_ids=input_ids, document_ids=documents).last_hidden_state
    for start, end in ((0, 5), (5, 9), (9, 12)):
        alone = model(input_ids=input_ids[:, start:end]).last_hidden_state
        torch.testing.assert_close(packed[:, start:end], alone, rtol=1e-5, atol=1e-5)


def test_the_future_does_not_change_the_past(make_model, batch):
    model = make_model("transformer", is_causal=True)
    input_ids, _ = batch([12], 12)
    changed = input_ids.clone()
    changed[:, 7:] = 3
    first, second = (model(input_ids=ids).last_hidden_state for ids in (input_ids, changed))
    torch.testing.assert_close(first[:, :7], second[:, :7])
    assert not torch.allclose(first[:, 7:], second[:, 7:])


def test_compiles_without_breaks(make_model, batch):
    model = make_model("transformer")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    input_ids, mask = batch([9, 4], 9)
    arguments = {"input_ids": input_ids, "attention_mask": mask}
    torch.testing.assert_close(compiled(**arguments).last_hidden_state, model(**arguments).last_hidden_state)


def test_s3attention_compiles_with_breaks(make_config, batch):
    model = AutoModel.from_config(make_config("s3attention"))
    compiled = torch.compile(model, backend="aot_eager")
    input_ids, mask = batch([9, 4], 9)
    arguments = {"input_ids": input_ids, "attention_mask": mask}
    torch.testing.assert_close(compiled(**arguments).last_hidden_state, model(**arguments).last_hidden_state)
