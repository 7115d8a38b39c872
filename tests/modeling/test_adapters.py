"""What stands in the place of a linear layer is called: LoRA and its like change what a model computes."""

import accelerate
import pytest
import torch
import transformers
from torch import nn

from longmix.modeling import MODEL_TYPES


class Adapter(nn.Module):
    """A layer and a small one beside it, with the weights of the layer as its own, as adapters of peft have them."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.beside = nn.Parameter(0.3 * torch.randn(base.weight.shape))

    @property
    def weight(self):
        return self.base.weight

    @property
    def bias(self):
        return self.base.bias

    def forward(self, rows):
        return self.base(rows) + rows @ self.beside.T


def linear_layers(model):
    for parent in list(model.layers.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                yield parent, name, child


@pytest.mark.parametrize("lengths", [None, [7, 3]])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_an_adapter_is_heard_in_every_linear_layer(model_type, lengths, make_model):
    model = make_model(model_type).eval()
    torch.manual_seed(0)
    ids = torch.randint(5, 20, (2, 7))
    mask = torch.arange(7) < torch.tensor(lengths or [7, 7])[:, None]
    before = model(input_ids=ids, attention_mask=mask).last_hidden_state
    adapters = []
    for parent, name, layer in linear_layers(model):
        adapters.append(Adapter(layer))
        setattr(parent, name, adapters[-1])
    found = model(input_ids=ids, attention_mask=mask).last_hidden_state
    gradients = torch.autograd.grad(found[mask].square().sum(), [one.beside for one in adapters], allow_unused=True)
    assert all(gradient is not None and gradient.any() for gradient in gradients)
    for (parent, name, _), adapter in zip(adapted(model), adapters, strict=True):
        with torch.no_grad():
            adapter.base.weight += adapter.beside
        setattr(parent, name, adapter.base)
    merged = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found[mask], merged[mask], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found[mask], before[mask], atol=1e-2)


def adapted(model):
    for parent in list(model.layers.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Adapter):
                yield parent, name, child


@pytest.mark.parametrize(
    "auto_class", [transformers.AutoModelForMaskedLM, transformers.AutoModelForSequenceClassification]
)
def test_what_libraries_around_models_pass_is_taken(auto_class, make_model):
    model = make_model("transformer", auto_class)
    ids = torch.tensor([[5, 6, 7]])
    plain = model(input_ids=ids).logits
    assert torch.equal(model(input_ids=ids, output_attentions=None, output_hidden_states=False).logits, plain)
    with pytest.raises(ValueError, match="output_attentions is true, but the mixers have no matrices"):
        model(input_ids=ids, output_attentions=True)


def test_answers_hold_nothing_but_themselves(make_model):
    """Pipelines take them apart sample by sample; the auxiliary loss is one number for all."""
    model = make_model("converter", transformers.AutoModelForSequenceClassification)
    ids = torch.tensor([[5, 6, 7]])
    assert set(model(input_ids=ids)) == {"logits"}
    assert "auxiliary_loss" in model(input_ids=ids, labels=torch.tensor([1])) and "auxiliary_loss" in model.train()(ids)
    assert "auxiliary_loss" in model.config.keys_to_ignore_at_inference


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_hook_is_heard_in_every_linear_layer(model_type, make_model):
    """Those who watch, patch or prune activations put hooks there."""
    model = make_model(model_type).eval()
    ids, called = torch.arange(5, 16)[None], set()
    layers = {f"{number} {name}": layer for number, (_, name, layer) in enumerate(linear_layers(model))}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda module, inputs, result, name=name: called.add(name))
    model(input_ids=ids)
    assert called == set(layers)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_offloaded_weights_are_fetched(model_type, make_model):
    """Accelerate leaves parameters without data where no call of their module fetches them."""
    model, ids = make_model(model_type).eval(), torch.arange(5, 16)[None]
    expected = model(input_ids=ids).last_hidden_state
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    torch.testing.assert_close(model(input_ids=ids).last_hidden_state, expected)
