"""Muon: its arithmetic on whole matrices, and which parameter of which model it takes."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM

import longmix.modeling  # noqa: F401  registers our model types
from longmix.data_prep.errors import UserError
from longmix.trainer.optimization import muon
from longmix.trainer.optimization.matrices import matrix_entries, matrix_views
from longmix.trainer.optimization.muon import Muon, Piece, Share, batches, orthogonalise
from longmix.trainer.optimization.optimizer import (
    is_fused,
    make_guarded_optimizer,
    make_optimizer,
    parameter_groups,
)
from longmix.trainer.run.folder import refuse_changes, write_configuration
from longmix.trainer.run.memory import kept_per_parameter
from longmix.trainer.run.setup import prepare
from longmix.trainer.settings import deepspeed_file, reading
from longmix.trainer.settings.sections import OptimSection

SHAPES = [(8, 8), (4, 12), (12, 4), (1, 6)]


def by_singular_values(matrix):
    """The iteration of orthogonalise in float64: its polynomial maps singular values, and leaves their vectors."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_iteration_is_that_of_the_singular_values(shape):
    matrices = drawn(3, *shape)
    found = orthogonalise(matrices, torch.float32)
    assert found.dtype == torch.float32 and found.shape == matrices.shape
    for one, result in zip(matrices, found, strict=True):
        np.testing.assert_allclose(result.numpy(), by_singular_values(one.double().numpy()), atol=1e-5)
    rough = orthogonalise(matrices, torch.bfloat16)
    assert 1e-4 < (rough - found).abs().max() < 0.05 and rough.dtype == torch.float32


def test_singular_values_come_near_one_and_a_zero_matrix_stays_zero():
    values = torch.linalg.svdvals(orthogonalise(drawn(2, 32, 48), torch.float32))
    assert values.min() > 0.6 and values.max() < 1.25
    assert torch.equal(orthogonalise(torch.zeros(1, 4, 3), torch.float32), torch.zeros(1, 4, 3))


class Layers(nn.Module):
    """A list of layers with matrices of each shape, and parameters outside."""

    def __init__(self):
        super().__init__()
        self.outside = nn.Linear(5, 3)
        self.layers = nn.ModuleList(nn.Linear(columns, rows) for rows, columns in SHAPES)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(drawn(*parameter.shape, seed=number))

    def matrices(self):
        return [layer.weight for layer in self.layers]


def give_gradients(model, step):
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = drawn(*parameter.shape, seed=100 * step + number)


def make(precision="fp32", guarded=True, **fields):
    model = Layers()
    optim = OptimSection(name="muon", lr=0.02, weight_decay=0.3, **fields)
    maker = make_guarded_optimizer if guarded else make_optimizer
    return model, maker(parameter_groups(model, optim), optim, precision)


@pytest.mark.parametrize(("momentum", "update_rms"), [(0.95, 0.2), (0.5, 1.0)])
def test_steps_equal_a_reference_in_float64(momentum, update_rms):
    model, optimizer = make(momentum=momentum, update_rms=update_rms, grad_clip=None)
    weights = [matrix.detach().double().numpy() for matrix in model.matrices()]
    averages = [np.zeros_like(weight) for weight in weights]
    for step in range(4):
        give_gradients(model, step)
        optimizer.step()
        for index, matrix in enumerate(model.matrices()):
            gradient = matrix.grad.double().numpy()
            averages[index] = momentum * averages[index] + (1 - momentum) * gradient
            update = by_singular_values(momentum * averages[index] + (1 - momentum) * gradient)
            scale = update_rms * math.sqrt(max(matrix.shape))
            weights[index] = weights[index] * (1 - 0.02 * 0.3) - 0.02 * scale * update
            np.testing.assert_allclose(matrix.detach().numpy(), weights[index], atol=2e-6)


def test_steps_equal_torchs_muon_on_matrices_and_its_adamw_on_the_rest():
    model, optimizer = make("bf16", guarded=False)
    theirs = Layers()
    muon_of_torch = torch.optim.Muon(
        theirs.matrices(), lr=0.02, weight_decay=0.3, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    biases = [layer.bias for layer in theirs.layers] + [theirs.outside.bias]
    adamw = torch.optim.AdamW(
        [{"params": [theirs.outside.weight], "weight_decay": 0.3}, {"params": biases, "weight_decay": 0.0}],
        lr=0.02,
        betas=(0.9, 0.98),
        eps=1e-6,
    )
    for step in range(3):
        for one in (model, theirs):
            give_gradients(one, step)
        optimizer.step(), muon_of_torch.step(), adamw.step()
    ours = dict(model.named_parameters())
    for name, expected in theirs.named_parameters():
        if any(expected is matrix for matrix in theirs.matrices()):
            torch.testing.assert_close(ours[name], expected, rtol=0, atol=2e-3)  # both in bf16
        else:
            assert torch.equal(ours[name], expected), name


def test_updates_are_as_large_as_those_of_adamw():
    for shape in ((64, 64), (64, 256), (256, 64)):
        size = 0.2 * math.sqrt(max(shape)) * orthogonalise(drawn(1, *shape), torch.float32).square().mean().sqrt()
        assert 0.15 < size < 0.25


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_iteration_runs_in_bf16_only_where_the_run_does(precision):
    _, optimizer = make(precision)
    assert optimizer.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)


# A step that is dropped, and one without some gradients.


def state_of(model, optimizer):
    numbers = [parameter.detach().clone() for parameter in model.parameters()]
    return numbers + [value.clone() for state in optimizer.state.values() for value in state.values()]


@pytest.mark.parametrize("bad", [math.nan, math.inf, "judged"])
@pytest.mark.parametrize("on_device", [False, True])
def test_a_dropped_step_leaves_weights_and_momentum_as_they_were(on_device, bad):
    model, optimizer = make(grad_clip=1.0)
    optimizer.decides_on_device = on_device  # as the engine without DeepSpeed has it on a GPU
    assert is_fused(optimizer)
    give_gradients(model, 0)
    optimizer.step()
    before = state_of(model, optimizer)
    give_gradients(model, 1)
    if bad == "judged":
        optimizer.guard.judge = lambda norm: True
    else:
        model.layers[1].weight.grad[0, 0] = bad
    optimizer.step()
    after = state_of(model, optimizer)
    assert len(before) == len(after) and all(map(torch.equal, before, after))
    optimizer.guard.judge = None
    give_gradients(model, 1)
    optimizer.step()
    assert not any(map(torch.equal, before, state_of(model, optimizer)))


def test_a_matrix_without_a_gradient_stays():
    model, optimizer = make()
    give_gradients(model, 0)
    model.layers[0].weight.grad = None
    before = [matrix.detach().clone() for matrix in model.matrices()]
    optimizer.step()
    stays = [torch.equal(*pair) for pair in zip(before, model.matrices(), strict=True)]
    assert stays == [True, False, False, False]


def test_a_state_that_was_saved_goes_on_bit_for_bit():
    model, optimizer = make()
    other, resumed = make()
    for step in range(4):
        give_gradients(model, step)
        optimizer.step()
        if step == 1:
            other.load_state_dict(model.state_dict())
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        elif step > 1:
            give_gradients(other, step)
            resumed.step()
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_second_moments_of_matrices_stand_in_files_alone():
    """DeepSpeed's conversion of checkpoints wants them of every flat tensor; see test_muon_engines.py."""
    flat = nn.Parameter(torch.ones(12))
    group = {"params": [flat], "matrices": [(1, 3, 4)]}
    optimizer = Muon([group], momentum=0.9, update_rms=0.2, precision="fp32", lr=0.1)
    optimizer.shares = {flat: Share([(1, 3, 4)], [Piece(0, 0, 12)], [frozenset({0})])}
    assert optimizer.state_dict()["state"] == {}
    flat.grad = drawn(12)
    optimizer.step()
    (saved,) = optimizer.state_dict()["state"].values()
    assert saved["exp_avg_sq"].shape == (12,) and not saved["exp_avg_sq"].any()
    assert saved["exp_avg_sq"].untyped_storage().nbytes() == 4
    assert set(optimizer.state[flat]) == {"step", "exp_avg"}
    optimizer.load_state_dict(optimizer.state_dict())
    assert set(optimizer.state[flat]) == {"step", "exp_avg"}


# What is orthogonalised together: the same on any number of ranks, and a matrix never with another one.


def test_a_stacked_parameter_is_split_into_its_matrices():
    config = AutoConfig.for_model("transformer", vocab_size=9, hidden_size=16, num_hidden_layers=1)
    model = AutoModelForMaskedLM.from_config(config)
    optim = OptimSection(name="muon", lr=0.1, weight_decay=0.0)
    optimizer = make_guarded_optimizer(parameter_groups(model, optim), optim, "fp32")
    weight = model.encoder.layers[0].mixer.attention.projection.weight
    before = weight.detach().clone()
    weight.grad = drawn(48, 16)
    optimizer.step()
    parts = np.split(weight.grad.double().numpy(), 3)
    expected = np.concatenate([by_singular_values(part) for part in parts]) * 0.1 * 0.2 * 4
    np.testing.assert_allclose((before - weight.detach()).numpy(), expected, atol=1e-5)


def test_batches_are_of_one_shape_and_not_too_large(monkeypatch):
    views = [(1, 4, 4), (3, 4, 4), (1, 2, 8), (1, 4, 4), (1, 2, 8)]
    assert list(batches(views)) == [[0, 1, 3], [2, 4]]
    monkeypatch.setattr(muon, "_BATCH", 64)
    assert list(batches(views)) == [[0, 1], [3], [2, 4]]
    monkeypatch.setattr(muon, "_BATCH", 1)
    assert list(batches(views)) == [[0], [1], [3], [2], [4]]
    assert list(batches([])) == []


# Which parameter goes where.

FEED_FORWARD = {"feed_forward.inner.weight": (1, 24, 16), "feed_forward.outer.weight": (1, 16, 24)}
ATTENTION = {"attention.projection.weight": (3, 16, 16), "attention.output.weight": (1, 16, 16)}
# Model type -> fields, and the matrices of a layer by the end of their names.
MATRICES = {
    "transformer": ({}, {**FEED_FORWARD, **{f"mixer.{name}": view for name, view in ATTENTION.items()}}),
    "flt": ({}, {**FEED_FORWARD, **{f"mixer.{name}": view for name, view in ATTENTION.items()}}),
    "wavspa": (
        {"space": "adaptive"},
        {
            **FEED_FORWARD,
            **{f"mixer.attentions.{level}.projection.weight": (3, 16, 16) for level in (0, 1)},
            **{f"mixer.attentions.{level}.output.weight": (1, 16, 16) for level in (0, 1)},
        },
    ),
    "converter": (
        {},
        {
            **FEED_FORWARD,
            "mixer.value.weight": (2, 16, 16),
            "mixer.parameter_head.projection.weight": (1, 14, 16),
            "mixer.readout.projection.weight": (1, 16, 32),
        },
    ),
    "paramixer": (
        {"link_hidden_size": 8},
        {
            **FEED_FORWARD,
            "mixer.links.inner.weight": (5, 8, 16),
            "mixer.links.outer_weight": (5, 8, 6),
            "mixer.value.inner.weight": (1, 16, 16),
            "mixer.value.outer.weight": (1, 16, 16),
        },
    ),
    "s3attention": (
        {},
        {
            **FEED_FORWARD,
            "mixer.smoother.stem.weight": (1, 16, 96),
            **{f"mixer.attention.{name}.weight": (1, 16, 16) for name in ("query", "key", "value", "output")},
        },
    ),
    "bert": (
        {},
        {
            **{f"attention.self.{name}.weight": (1, 16, 16) for name in ("query", "key", "value")},
            "attention.output.dense.weight": (1, 16, 16),
            "intermediate.dense.weight": (1, 24, 16),
            "output.dense.weight": (1, 16, 24),
        },
    ),
    # With a projection of embeddings and a pooler, which are no layers.
    "fnet": ({}, {"intermediate.dense.weight": (1, 24, 16), "output.dense.weight": (1, 16, 24)}),
}
LAYERS = {"bert": "bert.encoder.layer", "fnet": "fnet.encoder.layer"}


def tiny(model_type, **fields):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    if model_type != "fnet":
        sizes["num_attention_heads"] = 2
    config = AutoConfig.for_model(model_type, vocab_size=9, max_position_embeddings=32, **sizes, **fields)
    return AutoModelForMaskedLM.from_config(config)


@pytest.mark.parametrize("model_type", MATRICES)
def test_matrices_of_layers_are_muons_and_the_rest_is_adamws(model_type):
    fields, expected = MATRICES[model_type]
    model = tiny(model_type, **fields)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    views = {names[key]: view for key, view in matrix_views(model).items()}
    layers = LAYERS.get(model_type, "encoder.layers")
    assert views == {f"{layers}.{layer}.{name}": view for layer in (0, 1) for name, view in expected.items()}
    assert matrix_entries(model) == 2 * sum(math.prod(view) for view in expected.values())
    for key, view in matrix_views(model).items():
        assert math.prod(view) == next(one.numel() for one in model.parameters() if id(one) == key)
    groups = parameter_groups(model, OptimSection(name="muon", weight_decay=0.3))
    # AdamW's first: DeepSpeed reads settings of the first group when it loads a converted checkpoint of stage 3.
    assert [bool(group["matrices"]) for group in groups] == [False, False, True]
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0, 0.3]
    found = [names[id(one)] for one in groups[2]["params"]]
    assert dict(zip(found, groups[2]["matrices"], strict=True)) == views
    everything = [id(one) for group in groups for one in group["params"]]
    assert sorted(everything) == sorted(id(one) for one in model.parameters())


def test_matrices_that_a_word_of_no_decay_names_are_not_decayed_and_frozen_ones_stay():
    model = tiny("transformer")
    model.encoder.layers[0].requires_grad_(False)
    groups = parameter_groups(model, OptimSection(name="muon", no_decay=["bias", "norm", "attention"]))
    assert [(bool(group["matrices"]), group["weight_decay"]) for group in groups] == [
        (False, 0.01),
        (False, 0.0),
        (True, 0.01),
        (True, 0.0),
    ]
    assert [len(group["params"]) for group in groups[2:]] == [2, 2]


def test_adamw_keeps_its_two_groups():
    groups = parameter_groups(tiny("transformer"), OptimSection())
    assert [set(group) for group in groups] == [{"params", "weight_decay"}] * 2


# What a run file may ask for.


@pytest.fixture
def configured(write_run_file, run_values, tmp_path):
    def make(*changes, **fields):
        values = run_values(tmp_path / "run", **fields)
        return reading.load([write_run_file(tmp_path / "run.yaml", values)], ["optim.name=muon", *changes])

    return make


def test_momentum_is_muons_and_below_one(configured):
    assert configured().optim.momentum == 0.95
    with pytest.raises(UserError, match=r"optim\.momentum is 1\.0, but must lie in \[0, 1\)"):
        configured("optim.momentum=1.0")
    with pytest.raises(UserError, match=r"optim\.momentum is 0\.9, but is for muon, and optim\.name is adamw"):
        configured("optim.momentum=0.9", "optim.name=adamw")


def test_the_size_of_updates_is_muons_and_positive(configured):
    assert configured().optim.update_rms == 0.2
    with pytest.raises(UserError, match=r"optim\.update_rms is 0\.0, but must be a positive number"):
        configured("optim.update_rms=0")
    with pytest.raises(UserError, match=r"optim\.update_rms is 1\.0, but is for muon, and optim\.name is adamw"):
        configured("optim.update_rms=1.0", "optim.name=adamw")


@pytest.mark.parametrize("part", ["offload_optimizer", "offload_param"])
def test_offloading_is_refused(configured, tmp_path, part):
    path = tmp_path / "ds.json"
    path.write_text(f'{{"zero_optimization": {{"stage": 3, "{part}": {{"device": "cpu"}}}}}}')
    configuration = configured(deepspeed=str(path))
    with pytest.raises(
        UserError, match=rf"zero_optimization\.{part} stands in .*: remove it, or set optim\.name=adamw"
    ):
        deepspeed_file.check(configuration, "fp32", 1)
    path.write_text('{"optimizer": {"type": "Muon"}, "zero_optimization": {"stage": 2, "offload_optimizer": null}}')
    deepspeed_file.check(configuration, "fp32", 1)


def test_a_run_goes_on_with_its_own_optimizer_alone(configured, tmp_path):
    before = configured("optim.name=adamw")
    write_configuration(tmp_path, before)
    refuse_changes(tmp_path, before)
    with pytest.raises(UserError, match=r"with optim\.name adamw, whose state is of no use to muon.*model\.from="):
        refuse_changes(tmp_path, configured("run.allow_changes=[optim]"))


def test_a_model_without_matrices_in_its_layers_is_refused(configured):
    configuration = configured(model_type="bert", **{"model.num_hidden_layers": 0})
    with pytest.raises(UserError, match=r"finds none in this bert: set optim\.name=adamw"):
        prepare(configuration, 1, torch.device("cpu"))


@pytest.mark.parametrize("layers", [2, 100])
def test_of_a_matrix_one_number_is_kept_and_two_of_other_parameters(configured, layers):
    configuration = configured(**{"model.num_hidden_layers": layers})
    prepared = prepare(configuration, 1, torch.device("cpu"))
    # Attention 4 x 16 x 16, feed-forward 2 x 16 x 32.
    entries = layers * (4 * 256 + 2 * 512)
    assert kept_per_parameter(prepared) == pytest.approx(2 - entries / prepared.size.parameters)
