"""A mixer, and a model, is a function of the valid tokens only."""

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from longmix.modeling.context import BatchContext

VARIANTS = [
    ("transformer", {}),
    ("transformer", {"is_causal": True}),
    ("s3attention", {}),
    ("s3attention", {"normalization": "batch", "stem_activation": "elu"}),
    ("s3attention", {"n_fft": 101, "row_landmarks": 1, "column_landmarks": 8, "segments": 16}),
]
LENGTHS = [
    ([1], 1),
    ([2, 1], 2),
    ([3, 0, 1], 3),
    ([7, 4, 0, 5], 9),
    ([40, 33, 17, 2], 40),
    ([5, 12], 31),
]
GARBAGE = {"noise": lambda shape: 1e3 * torch.randn(shape), "nan": lambda shape: torch.full(shape, float("nan"))}


@pytest.mark.parametrize(("model_type", "fields"), VARIANTS)
@pytest.mark.parametrize(("lengths", "positions"), LENGTHS)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_mixer_ignores_padding(model_type, fields, lengths, positions, garbage, make_mixer):
    mixer = make_mixer(model_type, **fields)
    mask = torch.arange(positions) < torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), positions, 16)
    padded = torch.where(mask[:, :, None], x, GARBAGE[garbage](x.shape)).requires_grad_()
    result = mixer(padded, BatchContext(mask))
    assert (result[~mask] == 0).all()
    for row, length in enumerate(lengths):
        if length:
            alone = mixer(x[row : row + 1, :length], BatchContext())
            torch.testing.assert_close(result[row, :length], alone[0], rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(result.square().sum(), [padded, *mixer.parameters()])
    assert (gradients[0][~mask] == 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("style", ["prenorm", "paper"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "gru", "none"])
def test_model_ignores_padding(model_type, style, positions, make_model, batch):
    model = make_model(model_type, block_style=style, position_embedding_type=positions)
    lengths = [19, 1, 0, 8]
    input_ids, mask = batch(lengths, 19)
    types = (torch.arange(19) > 4).long().expand(4, 19)
    result = model(
        input_ids=torch.where(mask, input_ids, 10**6),
        attention_mask=mask.long(),
        token_type_ids=torch.where(mask, types, -7),
    ).last_hidden_state
    assert (result[~mask] == 0).all()
    for row, length in enumerate(lengths):
        if length:
            one = slice(row, row + 1)
            alone = model(input_ids=input_ids[one, :length], token_type_ids=types[one, :length]).last_hidden_state
            torch.testing.assert_close(result[row, :length], alone[0], rtol=1e-5, atol=2e-5)


def test_padding_may_lie_anywhere(model_type, make_model, batch):
    model = make_model(model_type, hidden_size=32)
    input_ids, right = batch([6, 6, 6, 0], 11)
    masks = torch.zeros(4, 11, dtype=torch.long)
    masks[0, 5:] = 1
    masks[1, [0, 3, 4, 7, 9, 10]] = 1
    masks[2, :6] = 1
    scattered = torch.full((4, 11), 59)
    for row in range(3):
        scattered[row, masks[row].bool()] = input_ids[row, :6]
    outputs = model(input_ids=scattered, attention_mask=masks, output_hidden_states=True)
    expected = model(input_ids=input_ids, attention_mask=right, output_hidden_states=True)
    for state, truth in zip(outputs.hidden_states, expected.hidden_states, strict=True):
        assert (state[masks == 0] == 0).all()
        torch.testing.assert_close(state[masks == 1], truth[right], rtol=1e-5, atol=1e-5)


def test_embeddings_in_the_padding_may_be_nan(model_type, make_model, batch):
    model = make_model(model_type, AutoModelForMaskedLM)
    input_ids, mask = batch([5, 9], 9)
    labels = torch.where(mask, input_ids, -100)
    embeds = model.get_input_embeddings()(input_ids)
    expected = model(inputs_embeds=embeds, attention_mask=mask, labels=labels).loss
    embeds = torch.where(mask[:, :, None], embeds, float("nan")).detach().requires_grad_()
    loss = model(inputs_embeds=embeds, attention_mask=mask, labels=labels).loss
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert embeds.grad.isfinite().all()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_real_values(model_type, make_model):
    model = make_model(model_type, AutoModelForSequenceClassification, input_channels=3, num_labels=4)
    values = torch.randn(2, 13, 3)
    mask = torch.arange(13) < torch.tensor([13, 6])[:, None]
    poisoned = torch.where(mask[:, :, None], values, float("inf"))
    logits = model(values=poisoned, attention_mask=mask).logits
    torch.testing.assert_close(logits[1:], model(values=values[1:, :6]).logits, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="exactly one of values and inputs_embeds"):
        model(input_ids=torch.zeros(2, 13, dtype=torch.long))
    with pytest.raises(ValueError, match="input_channels is 3"):
        make_model(model_type, AutoModelForMaskedLM, input_channels=3)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_classification_ignores_padding(model_type, pooling, make_model, batch):
    model = make_model(model_type, AutoModelForSequenceClassification, classifier_pooling=pooling, num_labels=3)
    input_ids, mask = batch([4, 9, 0], 9)
    logits = model(input_ids=input_ids, attention_mask=mask).logits
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[:1], model(input_ids=input_ids[:1, :4]).logits, rtol=1e-5, atol=1e-5)
    left = model(input_ids=input_ids[:1].roll(5, 1), attention_mask=mask[:1].roll(5, 1)).logits
    torch.testing.assert_close(logits[:1], left, rtol=1e-5, atol=1e-5)


def test_lengths_other_than_the_longest(model_type, make_model, batch):
    model = make_model(model_type, max_position_embeddings=512)
    for positions in (1, 2, 127, 128, 512):
        input_ids, _ = batch([positions], positions)
        assert model(input_ids=input_ids).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match=r"513 positions.*max_position_embeddings = 512"):
        model(input_ids=torch.zeros(1, 513, dtype=torch.long))
