"""What stands in the place of a linear layer is called: LoRA and its like change what a model computes."""

import pytest
import torch
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
