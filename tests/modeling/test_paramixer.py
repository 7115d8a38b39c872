"""Paramixer: its links, their rank and reach, its initial scale, longer positions, and the block of the paper."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from longmix.modeling.context import BatchContext
from longmix.modeling.paramixer import modeling_paramixer
from longmix.modeling.paramixer.links import LinkNetworks, _OuterLayers, link_offsets
from longmix.modeling.paramixer.values import ValueNetwork

FORMS = [{}, {"symmetric": True}, {"protocol": "cdil", "links": 5}, {"is_causal": True}]


@pytest.fixture
def oracles(load_oracle):
    """The module of the oracle: its functions by name."""
    return load_oracle("paramixer").__globals__


def samples(batch, positions, width=16, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, batch, positions, width, generator=generator, dtype=dtype).unbind(0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [[0, 1, 2, 4]] * 3),
        ({"links": 2, "factors": 1}, [[0, 1]]),
        ({"symmetric": True}, [[0, 1, -1, 2, -2, 4, -4]] * 2),
        ({"is_causal": True}, [[0, -1, -2, -4]] * 3),
        ({"protocol": "cdil", "links": 5}, [[0, 1, -1, 2, -2], [0, 2, -2, 4, -4], [0, 4, -4, 8, -8]]),
        ({"protocol": "cdil", "links": 4, "is_causal": True}, [[0, -1, -2, -3], [0, -2, -4, -6], [0, -4, -8, -12]]),
    ],
)
def test_the_links_of_each_protocol(fields, expected, make_config):
    assert link_offsets(make_config("paramixer", max_position_embeddings=8, **fields)).tolist() == expected


@pytest.mark.parametrize(
    ("positions", "doublings", "half"),
    [(1, 1, 1), (2, 1, 1), (3, 2, 1), (5, 3, 2), (512, 9, 5), (513, 10, 5), (2000, 11, 6)],
)
def test_default_numbers_are_rounded_up(positions, doublings, half, make_config):
    chord, symmetric, before, cdil = (
        make_config("paramixer", max_position_embeddings=positions, **fields)
        for fields in ({}, {"symmetric": True}, {"symmetric": True, "factors": None}, {"protocol": "cdil"})
    )
    assert (chord.factors, chord.links) == (doublings, doublings + 1)
    assert (symmetric.factors, symmetric.links) == (half, 2 * doublings + 1)
    assert (before.factors, before.links) == (doublings, 2 * doublings + 1)
    assert (cdil.factors, cdil.links) == (doublings, 9)


@pytest.mark.parametrize("positions", [*range(2, 18), 31, 32, 33, 100, 128, 129, 300, 512])
def test_with_links_both_ways_half_as_many_factors_reach_all_and_one_fewer_does_not(positions, make_config):
    config = make_config("paramixer", symmetric=True, max_position_embeddings=positions)
    links = link_offsets(config)[0].tolist()
    for factors, enough in ((config.factors, True), (config.factors - 1, False)):
        reached = {0}
        for _ in range(factors):
            reached = {(place + link) % positions for place in reached for link in links}
        if enough or positions.bit_count() == 1:
            assert (len(reached) == positions) == enough


@pytest.mark.parametrize("fields", FORMS, ids=str)
def test_every_token_reaches_every_token_that_it_may(fields, make_mixer):
    mixer = make_mixer("paramixer", **fields).double()
    for positions in (1, 2, 3, 23, 32, 40):
        x, embeddings = samples(1, positions)
        matrix = mixer.mixing_matrix(x, BatchContext(embeddings=embeddings))[0, 0]
        reached = matrix != 0
        assert torch.equal(reached, reached.tril() if mixer.config.is_causal else torch.ones_like(reached))
        assert reached.tril().sum() == positions * (positions + 1) // 2


@pytest.mark.parametrize("fields", FORMS, ids=str)
def test_full_rank_at_random_weights(fields, make_mixer):
    """N independent rows at random parameters, where the scores of dot products have rank d; by a wide margin."""
    mixer = make_mixer("paramixer", max_position_embeddings=128, **fields).double()
    x, embeddings = samples(3, 128)
    matrix = mixer.mixing_matrix(x, BatchContext(embeddings=embeddings))
    assert matrix.shape == (3, 1, 128, 128)
    spectrum = torch.linalg.svdvals(matrix[:, 0])
    assert (spectrum[:, -1] > 1e-6 * spectrum[:, 0]).all()


@pytest.mark.parametrize("kernels", ["auto", "portable"])
@pytest.mark.parametrize("fields", FORMS, ids=str)
def test_the_mixing_matrix_is_the_product_of_the_factors(fields, kernels, make_mixer, oracles, monkeypatch):
    monkeypatch.setenv("LONGMIX_KERNELS", kernels)
    mixer = make_mixer("paramixer", **fields).double()
    x, embeddings = samples(2, 13)
    mask = torch.arange(13) < torch.tensor([13, 9])[:, None]
    documents = torch.tensor([[8] * 4 + [-3] * 9, [2**40] * 6 + [0] * 7])
    matrix = mixer.mixing_matrix(x, BatchContext(mask, documents, embeddings))
    value = mixer.value(x)
    result = mixer(x, BatchContext(mask, documents, embeddings))
    for row, n in enumerate((13, 9)):
        expected = oracles["matrix_oracle"](mixer, x[row, :n], documents[row, :n], embeddings[row, :n])
        torch.testing.assert_close(matrix[row, 0, :n, :n], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(result[row, :n], expected @ value[row, :n], rtol=0, atol=1e-10)
        assert not matrix[row, 0, n:].any() and not matrix[row, 0, :, n:].any()
    assert not matrix[0, 0, :4, 4:].any() and not matrix[0, 0, 4:, :4].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_links_are_weighed_alike_on_gpus(dtype, make_mixer, monkeypatch):
    links = make_mixer("paramixer").links.to(dtype)
    torch.nn.init.normal_(links.outer_bias)
    x = torch.randn(2, 9, 16).to(dtype).requires_grad_()
    found = []
    for kind in ("cpu", "cuda"):
        monkeypatch.setattr(f"{LinkNetworks.__module__}.stands_for", lambda _, kind=kind: kind)
        weights = links(x)
        cotangent = torch.linspace(-1, 1, weights.numel()).view_as(weights).to(dtype)
        found.append([weights, *torch.autograd.grad(weights, [x, *links.parameters()], cotangent)])
    assert found[1][0].permute(2, 3, 0, 1).is_contiguous()
    for expected, value in zip(*found, strict=True):
        assert value.dtype == dtype
        error = 1e-12 if dtype == torch.float64 else 2e-2
        assert (value - expected).norm() <= error * expected.norm()
    leaves = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((2, 3, 8), (2, 4, 3), (2, 3))]
    assert torch.autograd.gradgradcheck(_OuterLayers.apply, leaves)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_values_are_made_alike_on_gpus(dtype, make_mixer, monkeypatch):
    value = make_mixer("paramixer").value.to(dtype)
    torch.nn.init.normal_(value.outer.bias)
    x = torch.randn(2, 9, 16).to(dtype).requires_grad_()
    found, kept = [], []
    for kind in ("cpu", "cuda"):
        monkeypatch.setattr(f"{ValueNetwork.__module__}.stands_for", lambda _, kind=kind: kind)
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, shapes=shapes: shapes.append(tensor.shape) or tensor, lambda tensor: tensor
        ):
            result = value(x)
        kept.append(shapes.count((2, 9, value.inner.out_features)) + shapes.count((18, value.inner.out_features)))
        cotangent = torch.linspace(-1, 1, result.numel()).view_as(result).to(dtype)
        found.append([result, *torch.autograd.grad(result, [x, *value.parameters()], cotangent)])
    assert kept[1] == kept[0] - 1  # what the GELU gives
    for expected, made in zip(*found, strict=True):
        assert made.dtype == dtype
        error = 1e-12 if dtype == torch.float64 else 2e-2
        assert (made - expected).norm() <= error * expected.norm()
    if dtype == torch.float64:
        assert torch.autograd.gradgradcheck(value, x[:1, :2].detach().requires_grad_())


def test_values_that_are_watched_are_called_on_gpus(make_mixer, monkeypatch):
    value = make_mixer("paramixer").value
    monkeypatch.setattr(f"{ValueNetwork.__module__}.stands_for", lambda _: "cuda")
    value.outer.register_forward_hook(lambda module, inputs, result: 0 * result)
    assert not value(torch.randn(2, 9, 16)).any()


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1)], ids=str)
def test_links_have_a_gradient_wherever_their_networks_inputs_lie(order, poisoned_memory):
    inner, weight, bias = (torch.randn(size, dtype=torch.float64) for size in ((2, 5, 8), (2, 4, 3), (2, 3)))
    apart = inner.permute(order).contiguous().permute([order.index(axis) for axis in range(3)])
    found = []
    for given in (inner, apart):
        given.requires_grad_()
        links = _OuterLayers.apply(given, weight, bias)
        found += torch.autograd.grad(links, given, torch.linspace(-1, 1, links.numel()).view_as(links).double())
    torch.testing.assert_close(*found)


def test_where_the_weights_come_from(make_mixer):
    x, embeddings = samples(1, 13)
    changed = embeddings + 1
    mixer = make_mixer("paramixer").double()
    matrix = mixer.mixing_matrix(x, BatchContext(embeddings=embeddings))
    assert torch.equal(mixer.mixing_matrix(x + 1, BatchContext(embeddings=embeddings)), matrix)
    assert not torch.allclose(mixer.mixing_matrix(x, BatchContext(embeddings=changed)), matrix)
    assert torch.equal(mixer.mixing_matrix(embeddings, BatchContext()), matrix)
    mixer = make_mixer("paramixer", weights_from="input").double()
    matrix = mixer.mixing_matrix(x, BatchContext(embeddings=embeddings))
    assert torch.equal(mixer.mixing_matrix(x, BatchContext(embeddings=changed)), matrix)
    assert not torch.allclose(mixer.mixing_matrix(x + 1, BatchContext(embeddings=embeddings)), matrix)


@pytest.mark.parametrize("fields", FORMS, ids=str)
@pytest.mark.parametrize("positions", [64, 1000])
def test_mixing_keeps_the_scale_at_initialisation(fields, positions, make_model):
    """PX-9: the published initialisation makes a signal 4 to 16 times as large in every block."""
    model = make_model(
        "paramixer",
        num_hidden_layers=8,
        max_position_embeddings=positions,
        hidden_size=64,
        initializer_range=0.02,
        **fields,
    )
    embeddings = model.embeddings(torch.randint(60, (1, positions)))
    value = torch.randn_like(embeddings)
    gains = [layer.mixer._mix(value, embeddings, BatchContext(embeddings=embeddings)).std() for layer in model.layers]
    assert 1.2 < torch.stack(gains).log().mean().exp().item() < 2.2


@pytest.mark.parametrize("fields", FORMS, ids=str)
def test_more_positions_change_nothing_before_training(fields, make_model, batch):
    model = make_model("paramixer", **fields).double()
    links = model.layers[0].mixer.links
    links.outer_bias.data.normal_()
    links.outer_bias.requires_grad_(False)
    before = {name: parameter.detach().clone() for name, parameter in links.named_parameters()}
    input_ids, mask = batch([40, 11], 40)
    arguments = {"input_ids": input_ids, "attention_mask": mask}
    expected = model(**arguments).last_hidden_state
    model.resize_positions(150)
    config = model.config
    per_doubling = 2 if config.symmetric else 1 if config.protocol == "chord" else 0
    before_it, added = (3, 1) if config.symmetric else (6, 2)
    assert config.factors == before_it + added == links.outer_bias.shape[0]
    assert config.links - before["outer_bias"].shape[1] == 2 * per_doubling
    torch.testing.assert_close(model(**arguments).last_hidden_state, expected, rtol=0, atol=1e-13)
    for name in ("outer_weight", "outer_bias"):
        larger = getattr(links, name).detach().clone()
        corner = larger[tuple(slice(size) for size in before[name].shape)]
        assert torch.equal(corner, before[name])
        corner.zero_()
        assert not larger.any() and larger.dtype == torch.float64
    assert links.outer_weight.requires_grad and not links.outer_bias.requires_grad
    # New factors can learn: their first layers are not zero.
    input_ids, _ = batch([150], 150)
    model(input_ids=input_ids).last_hidden_state.square().sum().backward()
    assert (links.outer_weight.grad[before_it:].abs().amax((0, 1)) > 0).all()


def test_new_links_of_a_longer_model_are_those_of_its_configuration(make_config):
    config = make_config("paramixer", links=4, factors=3, max_position_embeddings=64)
    config.resize_positions(1000)
    assert (config.links, config.factors) == (8, 7)
    config = make_config("paramixer", protocol="cdil", links=3, max_position_embeddings=64)
    config.resize_positions(65)
    assert (config.links, config.factors) == (3, 7)


def test_the_block_of_the_paper(make_model, oracles):
    """No norm, no residual, no feed-forward; the weights of all blocks from the embeddings, the values chained."""
    model = make_model("paramixer", block_style="paper", value_hidden_size=4, link_hidden_size=4, num_hidden_layers=3)
    model = model.double()
    input_ids = torch.randint(60, (1, 14))
    output = model(input_ids=input_ids, output_hidden_states=True)
    embeddings, *states = (state[0] for state in output.hidden_states)
    tables = model.embeddings
    plain = tables.word_embeddings(input_ids[0]) + tables.token_type_embeddings.weight[0]
    assert torch.equal(embeddings, plain + tables.position_embeddings.weight[:14])
    value = embeddings
    for layer, state in zip(model.layers, states, strict=True):
        value = oracles["oracle"](layer.mixer, value, embeddings=embeddings)
        torch.testing.assert_close(state, value, rtol=0, atol=1e-10)
    assert model.layers[0].mixer.value.inner.out_features == 4


def test_dropout_of_the_papers_block(make_model):
    model = make_model("paramixer", block_style="paper", hidden_dropout_prob=0.2, value_dropout_prob=0.8).train()
    assert model.embeddings.dropout.p == 0.2
    assert [layer.input_dropout.p for layer in model.layers] == [0.2, 0.0]
    zeros = model(input_ids=torch.randint(60, (20, 40))).last_hidden_state == 0
    assert 0.78 < zeros.float().mean() < 0.82
    model = make_model("paramixer", block_style="paper", hidden_dropout_prob=0.3)
    assert [layer.dropout.p for layer in model.layers] == [0.3, 0.3]


def test_the_papers_block_starts_from_the_published_distribution(make_model):
    model = make_model("paramixer", block_style="paper", hidden_size=64, link_hidden_size=32, value_hidden_size=48)
    mixer = model.layers[0].mixer
    for parameter, inputs in [
        (mixer.links.inner.weight, 64),
        (mixer.links.inner.bias, 64),
        (mixer.links.outer_weight, 32),
        (mixer.links.outer_bias, 32),
        (mixer.value.inner.weight, 64),
        (mixer.value.outer.weight, 48),
        (mixer.value.outer.bias, 48),
    ]:
        bound = inputs**-0.5
        assert 0.9 * bound < parameter.abs().max() <= bound
        assert parameter.std().item() * math.sqrt(3) / bound == pytest.approx(1, abs=0.2)


def test_a_causal_model_sees_the_past_alone(make_model, batch):
    model = make_model("paramixer", AutoModelForCausalLM)
    assert model.config.is_causal
    input_ids, _ = batch([40], 40)
    changed = input_ids.clone()
    changed[:, 23:] = 3
    first, second = (model(input_ids=ids).logits for ids in (input_ids, changed))
    torch.testing.assert_close(first[:, :23], second[:, :23])
    changed[:, 0] += 1
    assert ((model(input_ids=changed).logits - second)[0, :, 0] != 0).all()


@pytest.mark.full
def test_compiles_without_breaks(make_model, batch):
    model = make_model("paramixer", num_hidden_layers=1, factors=2, links=3)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    input_ids, mask = batch([9, 4], 9)
    arguments = {"input_ids": input_ids, "attention_mask": mask, "document_ids": input_ids // 30}
    torch.testing.assert_close(compiled(**arguments).last_hidden_state, model(**arguments).last_hidden_state)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"protocol": "ring"}, "protocol is 'ring'; allowed: chord, cdil"),
        ({"weights_from": "values"}, "weights_from is 'values'; allowed: embeddings, input"),
        ({"links": 1}, "links is 1; allowed: at least 2"),
        ({"links": 34}, "links is 34; allowed: what keeps every link shorter"),
        ({"links": 4, "symmetric": True}, "links is 4; allowed: odd and at least 3"),
        ({"links": 2, "protocol": "cdil"}, "links is 2; allowed: odd and at least 3"),
        ({"factors": 0}, "factors is 0; allowed: at least 1"),
        ({"factors": "few"}, "factors is 'few'; allowed: at least 1, fewest, or null"),
        ({"factors": 40, "protocol": "cdil"}, "factors is 40; allowed: what keeps every link shorter"),
        ({"link_hidden_size": 0}, "link_hidden_size is 0; allowed: at least 1"),
        ({"value_hidden_size": 0}, "value_hidden_size is 0; allowed: at least 1"),
        ({"value_dropout_prob": 1.0}, "value_dropout_prob is 1.0; allowed: 0 <= probability < 1"),
        ({"symmetric": True, "protocol": "cdil"}, "symmetric is True; allowed: false with cdil"),
        ({"symmetric": True, "is_causal": True}, "is_causal is True; allowed: false with symmetric links"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0; allowed: at least 1"),
        ({"max_position_embeddings": None}, "max_position_embeddings is None"),
    ],
)
def test_configuration_mistakes(fields, message, make_config):
    with pytest.raises(ValueError, match=message):
        make_config("paramixer", **fields)


def test_offsets_are_made_once_for_all_layers(make_config, monkeypatch):
    made = []
    monkeypatch.setattr(modeling_paramixer, "link_offsets", lambda *given: made.append(given) or link_offsets(*given))
    model = AutoModelForCausalLM.from_config(make_config("paramixer", is_causal=True, num_hidden_layers=3))
    model(torch.zeros(1, 4, dtype=torch.int64))
    assert len(made) == 1


def test_links_that_no_kernel_can_follow_among_documents_are_refused(make_mixer):
    mixer = make_mixer("paramixer", links=22)
    ids = torch.tensor([[0, 0, 1, 1, 1]])
    assert mixer(torch.randn(1, 5, 16), BatchContext(document_ids=ids)).isfinite().all()
    x, on_a_gpu = torch.empty(1, 5, 16, device="meta"), BatchContext(document_ids=ids.to("meta"))
    far = "lead 1048576 positions far; allowed with packed documents on a GPU: less than 1048576"
    with pytest.raises(ValueError, match=rf"{far} \(configure fewer links\)"):
        mixer.to("meta")(x, on_a_gpu)
    mixer = make_mixer("paramixer", protocol="cdil", links=3, factors=21).to("meta")
    with pytest.raises(ValueError, match=rf"{far} \(configure fewer factors\)"):
        mixer(x, on_a_gpu)
