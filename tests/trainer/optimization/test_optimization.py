"""Learning rates, parameter groups, and the guarded optimizer."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM

import longmix.modeling  # noqa: F401  registers our model types
from longmix.data_prep.errors import UserError
from longmix.trainer.optimization.optimizer import (
    is_fused,
    make_guarded_optimizer,
    make_optimizer,
    parameter_groups,
    set_fused,
    set_learning_rate,
)
from longmix.trainer.optimization.schedule import learning_rate
from longmix.trainer.settings.sections import OptimSection


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", {1: 0.25, 4: 1.0, 5: 1.0, 12: 1.0}),
        ("linear", {1: 0.25, 4: 1.0, 5: 8 / 9, 8: 5 / 9, 12: 1 / 9}),
        ("cosine", {4: 1.0, 8: 0.5 + 0.5 * math.cos(math.pi * 4 / 9), 12: 0.5 + 0.5 * math.cos(math.pi * 8 / 9)}),
        ("wsd", {2: 0.5, 4: 1.0, 10: 1.0, 11: 1 - math.sqrt(1 / 3), 12: 1 - math.sqrt(2 / 3)}),
        ("inverse_sqrt", {2: 0.5, 4: 1.0, 9: 2 / 3, 12: math.sqrt(1 / 3)}),
    ],
)
def test_schedules(schedule, expected):
    optim = OptimSection(lr=2.0, schedule=schedule, warmup_steps=4, max_steps=12)
    for step, share in expected.items():
        assert learning_rate(optim, step) == pytest.approx(2.0 * share)


def test_a_share_of_warm_up_serves_every_length():
    for max_steps in (1, 2, 7, 100, 10**6):
        for share in (0.0, 0.06, 0.5, 1.0):
            optim = OptimSection(lr=2.0, warmup_share=share, max_steps=max_steps)
            assert list(optim.mistakes()) == [] and optim.warmup_steps is None
            steps = OptimSection(lr=2.0, warmup_steps=round(share * max_steps), max_steps=max_steps)
            for step in {1, max_steps // 2 + 1, max_steps}:
                assert 0 < learning_rate(optim, step) == learning_rate(steps, step) <= 2.0


def test_the_fall_of_wsd_ends_with_the_last_step_and_never_starts_in_the_warm_up():
    for decay, warmup, max_steps in itertools.product((0.01, 0.2, 1.0), (0, 3, 10), (10, 1000)):
        optim = OptimSection(lr=1.0, schedule="wsd", decay_share=decay, warmup_steps=warmup, max_steps=max_steps)
        rates = [learning_rate(optim, step) for step in range(1, max_steps + 1)]
        top = rates.index(max(rates))
        assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
        assert rates[-1] > 0 and rates.count(1.0) >= max_steps - warmup - round(decay * max_steps)
        assert learning_rate(optim, max_steps + 1) == 0
        if decay == 1.0 and warmup < max_steps:  # all that the warm-up leaves
            assert rates[warmup] == pytest.approx(1 - math.sqrt(1 / (max_steps + 1 - warmup)))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "inverse_sqrt", "wsd"])
def test_without_warm_up_the_first_step_has_the_full_rate(schedule):
    optim = OptimSection(lr=2.0, schedule=schedule, warmup_steps=0, max_steps=1)
    assert 0 < learning_rate(optim, 1) <= 2.0
    optim = OptimSection(lr=2.0, schedule=schedule, warmup_steps=0, max_steps=10**6)
    assert learning_rate(optim, 1) == pytest.approx(2.0, rel=1e-5)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(3, 2)
        self.scale = nn.LayerNorm(2)
        self.normalizer = nn.Linear(2, 2, bias=False)
        self.frozen = nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.tied = nn.Linear(3, 2, bias=False)
        self.tied.weight = self.dense.weight


def test_decay_spares_biases_and_norms_and_every_parameter_stands_once():
    network = Network()
    decayed, spared = parameter_groups(network, OptimSection(weight_decay=0.3))
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)
    assert [id(parameter) for parameter in decayed["params"]] == [id(network.dense.weight)]
    # scale.weight has no "norm" in its name, but belongs to a LayerNorm.
    wanted = {network.dense.bias, network.scale.weight, network.scale.bias, network.normalizer.weight}
    assert {id(parameter) for parameter in spared["params"]} == {id(parameter) for parameter in wanted}
    (group,) = parameter_groups(network, OptimSection(no_decay=[]))
    assert len(group["params"]) == 5


def test_words_of_names_have_rates_of_their_own_and_the_longest_counts():
    network = Network()
    factors = {"n": 2.0, "normalizer": 0.5, "scale.weight": 3.0, "frozen": 9.0}
    optim = OptimSection(weight_decay=0.0, lr_factors=factors)
    optimizer = make_guarded_optimizer(parameter_groups(network, optim), optim, "fp32")
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    set_learning_rate(optimizer, 0.1)
    sum(parameter.sum() for parameter in network.parameters()).backward()
    optimizer.step()
    # The first step of AdamW has the size of the rate.
    moved = {name: (before[name] - parameter).mean().item() for name, parameter in network.named_parameters()}
    wanted = {"dense.weight": 2, "dense.bias": 2, "scale.weight": 3, "scale.bias": 1, "normalizer.weight": 0.5}
    assert moved == pytest.approx(dict.fromkeys(moved, 0.0) | {name: 0.1 * wanted[name] for name in wanted}, rel=1e-4)
    with pytest.raises(
        UserError, match=r"optim.lr_factors: 'head' stands in no .* such as dense.weight or frozen.bias"
    ):
        parameter_groups(network, OptimSection(lr_factors={"dense": 1.0, "head": 2.0}))


def test_what_describes_a_filter_or_a_mask_is_not_decayed():
    spared_fields = {
        "converter": ({}, {"polynomial.coefficients"}),
        "flt": ({}, {"shared.weight", "shared.spectrum.mean", "shared.spectrum.log_width"}),
        "wavspa": ({"space": "adaptive"}, {"mixer.space.low_pass"}),
        "s3attention": ({}, {"smoother.spectrum"}),
    }
    for model_type, (fields, expected) in spared_fields.items():
        config = AutoConfig.for_model(model_type, vocab_size=9, hidden_size=16, num_hidden_layers=1, **fields)
        model = AutoModelForMaskedLM.from_config(config)
        spared = {id(parameter) for parameter in parameter_groups(model, OptimSection())[1]["params"]}
        found = {
            name
            for name, parameter in model.named_parameters()
            if id(parameter) in spared and "bias" not in name and "norm" not in name
        }
        assert {name for name in found if not any(name.endswith(end) for end in expected)} == set(), model_type
        assert len(found) == len(expected), model_type


def test_the_spectrum_of_an_earlier_checkpoint_decays_as_it_did(tmp_path):
    config = AutoConfig.for_model("s3attention", vocab_size=9, hidden_size=16, num_hidden_layers=1, column_landmarks=4)
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"decay_spectrum": false,', ""))
    for loaded, group in ((config, 1), (AutoConfig.from_pretrained(tmp_path), 0)):
        model = AutoModelForMaskedLM.from_config(loaded)
        spectrum = model.encoder.layers[0].mixer.smoother.spectrum
        assert any(parameter is spectrum for parameter in parameter_groups(model, OptimSection())[group]["params"])


def make_pair(grad_clip, make=make_guarded_optimizer):
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    optim = OptimSection(lr=0.1, grad_clip=grad_clip)
    return network, make(parameter_groups(network, optim), optim, "fp32")


@pytest.mark.parametrize("grad_clip", [None, 0.01, 100.0])
def test_guarded_steps_equal_adamw_with_clipping(grad_clip):
    (ours, guarded), (theirs, plain) = make_pair(grad_clip), make_pair(grad_clip, make_optimizer)
    for number in range(3):
        for network in (ours, theirs):
            network.zero_grad()
            network(torch.full((2, 3), number + 1.0)).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), grad_clip or math.inf)
        guarded.step()
        plain.step()
        assert guarded._global_grad_norm == pytest.approx(norm.item())
        assert not guarded.overflow
    assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)


@pytest.mark.parametrize("share", [0.5, 0.985, 0.995, 1.0, 1.0 + 1e-6, 1.001, 1.1])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
def test_gradients_are_clipped_as_torch_clips_them_up_to_the_last_bit(size, share):
    """Also those about as large as the bound, where it is hard to say whether they are larger."""
    (ours, guarded), (theirs, _) = make_pair(None), make_pair(None)
    for network in (ours, theirs):
        network.weight.grad, network.bias.grad = torch.full((2, 3), size), torch.zeros(2)
    guarded.grad_clip = share * size * math.sqrt(6)
    guarded.step()
    nn.utils.clip_grad_norm_(theirs.parameters(), guarded.grad_clip)
    assert torch.equal(ours.weight.grad, theirs.weight.grad)


@pytest.mark.parametrize("make", [make_optimizer, make_guarded_optimizer])
def test_steps_are_fused_and_can_go_on_unfused_from_any_state(make):
    network, optimizer = make_pair(None, make)
    assert is_fused(optimizer)
    theirs, plain = make_pair(None)
    set_fused(plain, False)

    def step(network, optimizer, number):
        network.zero_grad()
        network(torch.full((2, 3), number + 1.0)).square().sum().backward()
        optimizer.step()

    for number in range(3):
        step(theirs, plain, number)
    network.load_state_dict(theirs.state_dict())
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    set_fused(optimizer, True)
    set_fused(optimizer, False)
    assert not is_fused(optimizer)
    for number in range(3):
        step(network, optimizer, number)
        step(theirs, plain, number)
    assert torch.equal(network.weight, theirs.weight)
    assert [state["step"].item() for state in optimizer.state.values()] == [6, 6]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_guarded_step_with_bad_gradients_changes_nothing(bad):
    network, optimizer = make_pair(1.0)
    network(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    before = [parameter.detach().clone() for parameter in network.parameters()]
    moments = {
        index: {name: value.clone() for name, value in state.items()}
        for index, state in optimizer.state_dict()["state"].items()
    }
    network.weight.grad[0, 1] = bad
    optimizer.step()
    assert optimizer.overflow
    assert all(torch.equal(*pair) for pair in zip(before, network.parameters(), strict=True))
    for index, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, moments[index][name]) for name, value in state.items())
    network.zero_grad()
    network(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert not optimizer.overflow and not torch.equal(before[0], network.weight)


def test_where_the_device_decides_about_steps_they_are_the_same():
    """Taken, clipped or dropped; but the host learns of it on the device alone, from the second step on."""
    pairs = [make_pair(1.0) for _ in range(2)]
    pairs[1][1].decides_on_device = True
    for number, factor in enumerate((1.0, 100.0, math.inf, 1e-3, math.nan, 1.0)):
        for network, optimizer in pairs:
            optimizer.zero_grad()
            (network(torch.ones(2, 3)) * factor).sum().backward()
            optimizer.step()
        (_, host), (_, device) = pairs
        assert isinstance(device.overflow, torch.Tensor) is (number > 0) and bool(device.overflow) is host.overflow
        assert host.overflow or float(device._global_grad_norm) == host._global_grad_norm
        for first, second in zip(*(network.parameters() for network, _ in pairs), strict=True):
            assert torch.equal(first, second)
            moments = host.state[first], device.state[second]
            assert all(torch.equal(moments[0][name], moments[1][name]) for name in moments[0])
    assert [state["step"].item() for state in device.state.values()] == [4, 4]


def test_a_first_step_that_is_dropped_makes_no_moments():
    network, optimizer = make_pair(1.0)
    optimizer.decides_on_device = True
    (network(torch.ones(2, 3)) * math.nan).sum().backward()
    optimizer.step()
    assert optimizer.overflow is True and not optimizer.state


def test_a_judge_of_steps_is_the_hosts():
    network, optimizer = make_pair(1.0)
    optimizer.decides_on_device = True
    for judge in (None, lambda norm: norm > 0):
        optimizer.guard.judge = judge
        network(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert optimizer.guard.dropped and optimizer.overflow is False


@pytest.mark.parametrize("fused", [False, True])
def test_fused_steps_count_where_the_parameters_are(fused):
    """Also of parameters that no group has at the moment, as at stage 3 of DeepSpeed."""
    parameter = torch.empty(2, device="meta", requires_grad=True)
    optimizer = torch.optim.AdamW([parameter])
    optimizer.state[parameter]["step"] = torch.tensor(3.0)
    optimizer.param_groups[0]["params"] = []
    set_fused(optimizer, fused)
    assert optimizer.state[parameter]["step"].device.type == ("meta" if fused else "cpu")
    assert optimizer.param_groups[0]["fused"] is (True if fused else None)
