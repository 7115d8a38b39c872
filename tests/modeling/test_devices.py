"""Every variant on a GPU, of which tests/card.py is a stand-in: devices, dtypes and waits, forward and backward.

What the objectives add is in tests/trainer/objectives/test_devices.py.
"""

import pytest
import torch

LENGTHS, POSITIONS = [12, 7], 12
# Dtypes of the weights and of autocast. Buffers are fp32 in any case, as under DeepSpeed.
PRECISIONS = {
    "bf16-autocast": (torch.float32, torch.bfloat16),
    "fp16-autocast": (torch.float32, torch.float16),
    "bf16-weights": (torch.bfloat16, None),
    "fp16-weights": (torch.float16, None),
}
# By default every model type is seen with 16-bit weights and under autocast; the others are left to the full grid.
DEFAULT = ("bf16-autocast", "bf16-weights")
# Activations of a hidden layer, whose arguments have 16 bits already.
ACTIVATIONS = " in modeling/converter/parameter_heads.py, forward"
grid = pytest.mark.parametrize(
    "precision", [pytest.param(n, marks=[pytest.mark.full] * (n not in DEFAULT)) for n in PRECISIONS]
)


def arguments_of(config, isolates_documents):
    """Ragged rows of tokens, packed where the mixer keeps documents apart, with coordinates where it reads them."""
    generator = torch.Generator().manual_seed(0)
    arguments = {
        "input_ids": torch.randint(config.vocab_size, (2, POSITIONS), generator=generator),
        "attention_mask": (torch.arange(POSITIONS) < torch.tensor(LENGTHS)[:, None]).long(),
    }
    if isolates_documents:
        arguments["document_ids"] = (torch.arange(POSITIONS) >= 5).long().expand(2, -1).contiguous()
        arguments["segment_offsets"] = torch.tensor([0, 5, 12, 17, 19, 24], dtype=torch.int32)
        arguments["longest_segment"] = 7
    dimensions = getattr(config, "coordinate_dimensions", 0)
    if dimensions:
        arguments["coordinates"] = torch.randn(2, POSITIONS, dimensions, generator=generator)
    return arguments


def on_card(stand_in, model, arguments, precision):
    """The card after a forward and a backward pass in training, and the output; gradients have their weights' dtype."""
    weights, narrow = PRECISIONS[precision]
    for parameter in model.parameters():
        parameter.data = parameter.data.to(weights)
    with stand_in.card() as card:
        card.holds(model.train())
        moved = {name: card.holds(value) for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        with stand_in.autocast(narrow):
            output = model(**{**arguments, **moved})
        loss = output.last_hidden_state.float().square().mean()
        if output.auxiliary_loss is not None:
            assert output.auxiliary_loss.dtype == torch.float32
            loss = loss + output.auxiliary_loss
        loss.backward()
    assert output.last_hidden_state.device.type == "cuda"
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert isinstance(parameter.grad, stand_in.CardTensor), name
        assert parameter.grad.dtype == weights, name
    return card, output


def check(stand_in, model, isolates_documents, precision):
    card, output = on_card(stand_in, model, arguments_of(model.config, isolates_documents), precision)
    narrow = [call for call in card.narrow if not (call.startswith("sin ") and call.endswith(ACTIVATIONS))]
    assert (card.waits, narrow, card.made_on_host) == ([], [], [])
    assert torch.isfinite(output.last_hidden_state.inner).all()


@grid
def test_model_types(stand_in, make_model, model_type, precision):
    model = make_model(model_type, num_hidden_layers=1)
    check(stand_in, model, model.isolates_documents, precision)


@pytest.mark.full
@pytest.mark.parametrize("precision", PRECISIONS)
def test_variants(stand_in, make_model, variant, precision):
    model = make_model(variant[0], num_hidden_layers=1, **variant[1])
    check(stand_in, model, model.isolates_documents, precision)


def test_computed_positions(stand_in, make_model):
    """They have the dtype of the tokens' embeddings."""
    model = make_model("transformer", num_hidden_layers=1, position_embedding_type="sinusoidal")
    check(stand_in, model, model.isolates_documents, "bf16-weights")
