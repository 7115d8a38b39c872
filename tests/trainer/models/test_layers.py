"""What a run does with the layers of its model one by one: compiled, or computed again in the backward pass."""

from collections import Counter

import pytest
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from longmix.data_prep.errors import UserError
from longmix.trainer.models import build as build_module
from longmix.trainer.run.setup import prepare
from longmix.trainer.settings import reading


@pytest.mark.parametrize(("every", "recomputed"), [(True, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [0, 3]), (9, [0])])
def test_every_kth_layer_is_computed_again(run_values, data, every, recomputed):
    for model_type in ("paramixer", "bert"):
        values = run_values("run", model_type, **{"model.num_hidden_layers": 5, "run.gradient_checkpointing": every})
        model = prepare(reading.from_dict(values, "test"), 1, torch.device("cpu")).build()
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        assert [index for index, layer in enumerate(layers) if layer.gradient_checkpointing] == recomputed
        ran = Counter()
        for index, layer in enumerate(layers):
            first = next(module for module in layer.modules() if isinstance(module, torch.nn.Linear))
            first.register_forward_hook(lambda *_, ran=ran, index=index: ran.update([index]))
        model.train()
        model(input_ids=torch.arange(8)[None]).logits.sum().backward()
        assert [index for index, times in sorted(ran.items()) if times == 2] == recomputed and len(ran) == 5


@pytest.mark.parametrize(
    ("every", "told"), [(0, "is 0, but must be true, false or at least 1"), (-2, "is -2"), ("x", "is 'x'")]
)
def test_other_numbers_of_layers_are_refused(run_values, every, told):
    with pytest.raises(UserError, match=rf"run\.gradient_checkpointing {told}"):
        reading.from_dict(run_values("run", **{"run.gradient_checkpointing": every}), "test")


@pytest.mark.full
@pytest.mark.parametrize(
    "model_type", ["transformer", "converter", "flt", "paramixer", "s3attention", "wavspa", "bert"]
)
def test_layers_compile_into_one_graph_without_breaks(run_values, model_type, monkeypatch):
    """Of all layers, and of all lengths once there were two; with every second layer computed again, too."""
    whole = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: whole(self, backend="aot_eager", fullgraph=True))
    graphs = torch._dynamo.utils.counters["stats"]
    for every in (False, 2):
        changes = {"run.compile": "layer", "model.num_hidden_layers": 4, "run.gradient_checkpointing": every}
        values = run_values("run", model_type, **changes)
        build = prepare(reading.from_dict(values, "test"), 1, torch.device("cpu")).build
        model = build().train()
        torch._dynamo.reset()
        graphs.clear()
        # Paramixer's first layer is another kind, and so is one that is computed again.
        kinds = 3 if every else 2
        for length, most in ((12, kinds), *((length, 2 * kinds) for length in (10, 9, 15, 7))):
            ids = torch.arange(2 * length).reshape(2, length)
            model(input_ids=ids, attention_mask=(ids != length - 1).long()).logits.sum().backward()
            assert 1 <= graphs["unique_graphs"] <= most


def test_a_model_without_layers_of_its_own_is_compiled_whole_or_not(run_values, monkeypatch):
    monkeypatch.setattr(build_module, "GradientCheckpointingLayer", torch.nn.GRU)
    values = run_values("run", **{"run.compile": "layer"})
    prepared = prepare(reading.from_dict(values, "test"), 1, torch.device("cpu"))
    with pytest.raises(UserError, match=r"run\.compile: transformer does not tell its layers apart; set it to true or"):
        prepared.build()
