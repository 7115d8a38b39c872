"""FLT: its mask against closed forms, its features against the dense softmax, and what its configuration refuses."""

import itertools
import math

import pytest
import torch
from torch.nn import functional
from transformers import AutoModel

from longmix.kernels import ops
from longmix.kernels.random_attention.portable import log_features
from longmix.modeling.block import PostNormBlock
from longmix.modeling.context import BatchContext
from longmix.modeling.flt.attention import columns_of
from longmix.modeling.flt.spectral_mask import SpectralMask, scaled_columns
from longmix.modeling.flt.two_readers import heads_for_two
from longmix.modeling.rotary import positions_in_documents

KINDS = {
    "mixture": {"spectral_kind": "gaussian_mixture", "directional": True},
    "learnable": {"spectral_kind": "gaussian_mixture", "frequency_sampling": "learnable_normal"},
    "local": {"spectral_kind": "local", "exponents": [2]},
    "basis": {"spectral_kind": "gaussian_basis", "frequency_sampling": "stratified"},
    "kernel": {"spectral_kind": "kernel"},
}


@pytest.mark.parametrize("causal", [False, True])
def test_the_error_against_the_dense_softmax_falls_like_the_root_of_the_features(causal, make_config):
    torch.manual_seed(0)
    fields = {"hidden_size": 4, "num_attention_heads": 1, "num_frequencies": 4, "is_causal": causal}
    mask = SpectralMask(make_config("flt", **fields, directional=True)).double()
    x = functional.normalize(torch.randn(1, 8, 4), dim=2).double() * torch.rand(1, 8, 1).double()
    rotation = torch.linalg.qr(torch.randn(4, 4)).Q.double()
    scores = mask.matrix(None, 8)[0, 0] + x[0] @ (x[0] @ rotation.T).T / math.sqrt(4)
    if causal:
        scores = scores.masked_fill(torch.ones(8, 8).triu(1).bool(), -math.inf)
    dense = scores.softmax(1)
    errors = []
    for features in (64, 256, 1024):
        squares = []
        for draw in range(32):
            config = make_config("flt", **fields, num_random_features=features, buffer_seed=draw)
            mixer = AutoModel._model_mapping[type(config)].mixer_class(config, 0).double()
            mixer.use_shared(mask)
            with torch.no_grad():
                mixer.attention.projection.weight.copy_(torch.cat([torch.eye(4), rotation, torch.eye(4)]))
                mixer.attention.projection.bias.zero_()
                squares.append((mixer.mixing_matrix(x, BatchContext())[0, 0] - dense).square().mean())
        errors.append(torch.stack(squares).mean().sqrt().log2().item())
    slopes = [(later - earlier) / 2 for earlier, later in itertools.pairwise(errors)]
    assert all(-0.65 < slope < -0.35 for slope in slopes), slopes
    assert errors[-1] < math.log2(dense.mean().item()) - 3


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_mask_it_is_a_performer(kind, make_mixer):
    mixer = make_mixer("flt", **KINDS[kind])
    with torch.no_grad():
        mixer.attention.mask.weight.zero_()
    x = torch.randn(2, 9, 16)
    query, key, _ = mixer.attention.projection(x).view(2, 9, 3, 2, 8).permute(2, 0, 3, 1, 4)
    content = mixer.attention.feature_projection[:, -8:]
    logs = (log_features(tensor, content) for tensor in (query, key))
    performer = ops.feature_attention(*logs, torch.eye(9).expand(2, 2, 9, 9))
    torch.testing.assert_close(mixer.mixing_matrix(x, BatchContext()), performer, rtol=0, atol=1e-5)
    with torch.no_grad():
        mixer.attention.mask.weight.fill_(0.5)
    assert (mixer.mixing_matrix(x, BatchContext()) - performer).abs().amax() > 1e-3


def shape_of(name, distance):
    """Closed forms, of height 1, of the masks that `test_many_frequencies_give_the_function` sets up."""
    square = distance.square().sum(-1)
    if name == "mixture":
        return torch.cos(2 * math.pi * 0.2 * distance[..., 0]) * torch.exp(-2 * math.pi**2 * 0.03**2 * square)
    if name == "basis":
        return torch.exp(-square / (2 * 1.5**2))
    if name == "triangle":
        return (1 - distance.abs() / 8).clamp(min=0).prod(-1)
    if name == "gaussian":
        return torch.exp(-square / (2 * 1.5**2))
    if name == "laplacian":
        return torch.exp(-distance.abs().sum(-1) / 1.5)
    return (1 / (1 + (distance / 1.5).square())).prod(-1)


def set_scale(mask, scale):
    """Give all frequencies of a mask one scale."""
    frequencies = mask.frequencies
    frequencies.scale_shift.sub_(frequencies.log_scale() - math.log(scale))


@pytest.mark.parametrize(
    ("name", "fields", "tolerance"),
    [
        ("mixture", {"frequency_sampling": "stratified"}, 1e-3),
        ("mixture", {"frequency_sampling": "normal"}, 0.08),
        ("mixture", {"frequency_sampling": "learnable_normal"}, 0.08),
        ("triangle", {"spectral_kind": "local", "exponents": [2], "frequency_sampling": "stratified"}, 0.02),
        ("basis", {"spectral_kind": "gaussian_basis", "frequency_sampling": "stratified"}, 1e-3),
        (
            "basis",
            {"spectral_kind": "gaussian_basis", "frequency_sampling": "learnable_normal", "coordinate_dimensions": 3},
            0.1,
        ),
        ("gaussian", {"spectral_kind": "kernel", "coordinate_dimensions": 2}, 0.03),
        ("laplacian", {"spectral_kind": "kernel", "coordinate_dimensions": 2}, 0.03),
        ("cauchy", {"spectral_kind": "kernel", "coordinate_dimensions": 2}, 0.03),
    ],
)
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_many_frequencies_give_the_function(name, fields, tolerance, shift, make_config):
    """The mask of one term of weight 0.7, centred at `shift` on every axis, and of another of weight 0."""
    torch.manual_seed(0)
    if fields.get("spectral_kind") == "kernel":
        fields = {**fields, "kernel": name}
    config = make_config("flt", num_frequencies=20000, num_components=2, directional=shift != 0, **fields)
    mask = SpectralMask(config).double()
    width = {"mixture": 0.03, "triangle": 4.0}.get(name, 1.5)
    with torch.no_grad():
        mask.weight.copy_(torch.tensor([0.7, 0.0])[: mask.weight.shape[1]])
        if mask.offset is not None:
            mask.offset.fill_(shift)
        for parameter in mask.spectrum.parameters():
            parameter.fill_(0.2 if parameter.dim() == 3 and name == "mixture" else math.log(width))
        if config.frequency_sampling == "learnable_normal":
            # A little wider than what they sample, for a bounded variance.
            set_scale(mask, 0.3 if name == "mixture" else 1.2 / (2 * math.pi * width))
        elif config.frequency_sampling == "kernel":
            set_scale(mask, 1 / width)
        dimensions = config.coordinate_dimensions
        coordinates = 3 * torch.randn(1, 10, dimensions).double() if dimensions else None
        points = torch.arange(10.0)[:, None].double() if coordinates is None else coordinates[0]
        expected = 0.7 * shape_of(name, points[:, None] - points[None] - shift)
        torch.testing.assert_close(mask.matrix(coordinates, 10)[0, 0], expected, rtol=0, atol=tolerance)


def test_a_local_mask_is_a_window(make_config):
    config = make_config(
        "flt", spectral_kind="local", num_frequencies=2000, num_components=1, frequency_sampling="stratified"
    )
    mask = SpectralMask(config).double()
    with torch.no_grad():
        mask.weight.fill_(1)
        mask.spectrum.log_radius.fill_(math.log(7.5))
        row = mask.matrix(None, 30)[0, 0, 0]
    torch.testing.assert_close(row, (torch.arange(30) < 8).double(), rtol=0, atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_those_of_the_dense_form(kind, make_mixer, load_oracle):
    mixer = make_mixer("flt", **KINDS[kind]).double()
    x = torch.randn(7, 16, dtype=torch.float64)
    direction = torch.randn(7, 16, dtype=torch.float64)
    parameters = dict(mixer.named_parameters())
    assert any(name.startswith("attention.mask.") for name in parameters)
    ours = torch.autograd.grad((mixer(x[None], BatchContext())[0] * direction).sum(), parameters.values())
    dense = torch.autograd.grad((load_oracle("flt")(mixer, x) * direction).sum(), parameters.values())
    for name, one, other in zip(parameters, ours, dense, strict=True):
        assert one.abs().amax() > 1e-8 or name == "attention.projection.bias", name
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9, msg=name)


@pytest.mark.parametrize("offset", [0, 65000])
@pytest.mark.parametrize("kind", KINDS)
def test_features_multiply_to_the_mask_at_far_positions_too(kind, offset, make_config):
    config = make_config("flt", coordinate_dimensions=1, **KINDS[kind])
    mask = SpectralMask(config)
    index = torch.arange(0, 48, 4)
    context = BatchContext(coordinates=offset + index[None, :, None])
    waves, factors = mask(torch.empty(12, 1), context)
    columns = scaled_columns(factors, torch.eye(2 * config.num_frequencies)[None])[0]
    query, key = (waves[:, None] @ columns).unbind(1)
    torch.testing.assert_close(
        (query @ key.transpose(-1, -2)).double(), mask.matrix(index[None, :, None], 12), rtol=0, atol=1e-5
    )
    for features in (query, key):
        norm = features.square().sum(-1)
        torch.testing.assert_close(norm, norm[:, :, :1].expand_as(norm))


def test_the_mixing_matrix_gives_the_result(make_mixer):
    mask = torch.arange(9) < torch.tensor([9, 4, 0])[:, None]
    x = torch.randn(3, 9, 16)
    for causal in (False, True):
        mixer = make_mixer("flt", is_causal=causal)
        matrix = mixer.mixing_matrix(x, BatchContext(mask))
        assert matrix.shape == (3, 2, 9, 9)
        valid = mask[:, None, :, None] & mask[:, None, None, :]
        assert (matrix[~valid.expand_as(matrix)] == 0).all()
        torch.testing.assert_close(matrix.sum(-1), mask[:, None].expand(3, 2, 9).float())
        assert (matrix.triu(1) == 0).all() == causal
        value = mixer.attention.projection(x)[..., 32:].view(3, 9, 2, 8).transpose(1, 2)
        mixed = mixer.attention.output((matrix @ value).transpose(1, 2).flatten(2))
        torch.testing.assert_close(
            torch.where(mask[..., None], mixed, 0), mixer(x, BatchContext(mask)), rtol=1e-5, atol=1e-5
        )


def test_all_layers_share_one_mask_unless_told_otherwise(make_model):
    shared, own = (make_model("flt", share_mask=share) for share in (True, False))
    names = [name for name in shared.state_dict() if "mask" in name or name.startswith("shared.")]
    assert sorted(names) == [
        "shared.frequencies.draws",
        "shared.spectrum.log_width",
        "shared.spectrum.mean",
        "shared.weight",
    ]
    assert shared.layers[0].mixer.attention.mask is shared.layers[1].mixer.attention.mask is shared.shared
    assert own.shared is None
    first, second = (layer.mixer.attention.mask for layer in own.layers)
    assert not torch.equal(first.frequencies.draws, second.frequencies.draws)
    assert not torch.equal(first.weight, second.weight)


def test_the_mask_is_made_once_for_all_layers(make_model, batch):
    """Also where layers are recomputed; reentrant checkpointing, backward through one by one, needs one for each."""
    input_ids, mask = batch([9, 5], 9)
    gradients = []
    for recompute, expected in ((None, 1), ({"use_reentrant": False}, 1), ({"use_reentrant": True}, 4)):
        model = make_model("flt", directional=True).train()
        if recompute is not None:
            model.activation_checkpointing_enable(recompute)
        calls = []
        model.shared.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        model(input_ids=input_ids, attention_mask=mask).last_hidden_state.square().sum().backward()
        assert len(calls) == expected
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, *others in zip(*gradients, strict=True):
        for other in others:
            torch.testing.assert_close(other, plain)


@pytest.mark.parametrize("kind", ["positive", "relu"])
def test_columns_of_all_layers_are_those_of_each(kind, make_model):
    model = make_model("flt", feature_kind=kind)
    context = BatchContext(embeddings=torch.randn(1, 5, model.config.hidden_size))
    factors = model.shared(context.embeddings, context)[1]
    expected = [columns_of([layer.mixer.attention], factors)[0] for layer in model.layers]
    assert not torch.equal(*expected[:2])
    contexts = model.contexts(context)
    if kind == "relu":  # whose projections are parameters, which only a layer may read
        assert all(torch.equal(each.shared[1], factors) for each in contexts)
    else:
        for each, columns in zip(contexts, expected, strict=True):
            torch.testing.assert_close(each.shared[1], columns)


def test_the_sum_of_weights_is_bounded(make_config):
    torch.manual_seed(0)
    free, loose, tight = (
        SpectralMask(make_config("flt", mask_bound=bound, directional=True)) for bound in (None, 1e3, 0.05)
    )
    for mask in (loose, tight):
        mask.load_state_dict(free.state_dict())
    sizes = []
    for mask in (free, loose, tight):
        _, real, imaginary = mask.weights()
        sizes.append((real.square() + imaginary.square()).sqrt())
    torch.testing.assert_close(sizes[1], sizes[0], rtol=0, atol=0)
    torch.testing.assert_close(sizes[2].mean(1), torch.full((2,), 0.05).double())
    torch.testing.assert_close(sizes[2], sizes[0] * 0.05 / sizes[0].mean(1, keepdim=True))
    assert tight.matrix(None, 20).abs().amax() <= 0.05


@pytest.mark.parametrize("dimensions", [0, 3])
@pytest.mark.parametrize("sampling", ["normal", "learnable_normal", "stratified", "kernel"])
@pytest.mark.parametrize("kind", ["gaussian_mixture", "local", "gaussian_basis", "kernel"])
def test_the_mask_starts_small(kind, sampling, dimensions, make_config):
    if (kind == "kernel") != (sampling == "kernel"):
        return
    torch.manual_seed(0)
    fields = {"spectral_kind": kind, "frequency_sampling": sampling, "coordinate_dimensions": dimensions}
    defaults = {"num_components": 25, "num_frequencies": 32, "initializer_range": 0.02, "num_attention_heads": 8}
    _, real, _ = SpectralMask(make_config("flt", **fields, **defaults)).weights()
    # The tail of a window's transform is heavier than that of normal frequencies (FL-4).
    assert 1e-4 < real.abs().mean() < (0.8 if (kind, sampling) == ("local", "normal") else 0.3)


def test_stratified_frequencies_fill_the_band(make_config):
    config = make_config("flt", frequency_sampling="stratified", num_frequencies=8, coordinate_dimensions=2)
    frequencies, _ = SpectralMask(config).frequencies()
    parts = ((frequencies[0] + 0.5) * 8).floor().sort(0).values
    assert torch.equal(parts, torch.arange(8.0).double()[:, None].expand(8, 2))
    assert not torch.equal(frequencies[0, :, 0].argsort(), frequencies[0, :, 1].argsort())


@pytest.mark.parametrize("sampling", ["normal", "learnable_normal", "stratified", "kernel"])
def test_half_precision_keeps_the_frequencies_and_the_mask_of_far_positions(sampling, make_config):
    torch.manual_seed(0)
    kind = "kernel" if sampling == "kernel" else "gaussian_mixture"
    fields = {"spectral_kind": kind, "frequency_sampling": sampling, "num_frequencies": 32}
    mask = SpectralMask(make_config("flt", coordinate_dimensions=1, **fields))
    points = torch.tensor([0, 1, 500, 501, 60000, 60001])[None, :, None]
    frequencies, before = mask.frequencies()[0].clone(), mask.matrix(points, 6)
    assert torch.equal(mask.bfloat16().frequencies()[0], frequencies)
    # The weights are rounded, by up to 2^-9, and their terms with the widths and means.
    torch.testing.assert_close(mask.matrix(points, 6), before, rtol=0, atol=0.005 * before.abs().amax().item())


def test_positions_count_from_the_start_of_each_document():
    ids = torch.tensor([[4, 4, 9, 9, 9, 4], [1, 1, 1, 1, 1, 1]])
    assert positions_in_documents(ids, 6, ids.device).tolist() == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]]
    assert positions_in_documents(ids[:, :0], 0, ids.device).shape == (2, 0)


@pytest.mark.parametrize("causal", [False, True])
def test_neighbours_in_blocks_equal_the_equations(causal, make_mixer, load_oracle):
    """Rows of several blocks, of which the last is not full, and documents that end inside of them."""
    mixer = make_mixer("flt", exact_reach=3, is_causal=causal, num_random_features=3).double()
    x = torch.randn(2, 75, 16, dtype=torch.float64)
    ids = torch.stack([torch.arange(75) // 31, torch.zeros(75, dtype=torch.int64)])
    mask = torch.arange(75) < torch.tensor([75, 70])[:, None]
    with torch.no_grad():
        result = mixer(x, BatchContext(mask, ids))
        for start, end in ((0, 31), (31, 62), (62, 75)):
            expected = load_oracle("flt")(mixer, x[0, start:end])
            torch.testing.assert_close(result[0, start:end], expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(result[1, :70], load_oracle("flt")(mixer, x[1, :70]), rtol=0, atol=1e-10)
    assert (result[1, 70:] == 0).all()


def test_an_estimate_has_the_rank_of_its_features_and_neighbours_the_full_one(make_mixer):
    x = torch.randn(1, 40, 16, dtype=torch.float64)
    for reach, rank in ((0, 5), (2, 40)):
        mixer = make_mixer("flt", num_random_features=5, exact_reach=reach).double()
        matrix = mixer.mixing_matrix(x, BatchContext())
        assert torch.linalg.matrix_rank(matrix, rtol=1e-9).tolist() == [[rank] * 2]


@pytest.mark.parametrize(("causal", "places"), [(False, [-1, 1, -2, 2, -1]), (True, [-1, -2, -1, -2, -1])])
def test_heads_start_at_different_neighbours(causal, places, make_config):
    fields = {"hidden_size": 20, "num_attention_heads": 5, "exact_reach": 2, "is_causal": causal}
    attention = AutoModel.from_config(make_config("flt", **fields)).layers[1].mixer.attention
    query, value = torch.zeros(1, 5, 9, 4), torch.eye(9).expand(1, 5, 9, 9)
    with torch.no_grad():
        matrix = attention.neighbours(query, query, value, torch.zeros(1, 5, 9, 9), BatchContext())[0]
    torch.testing.assert_close(matrix.sum(-1), torch.full((5, 9), 0.5))  # the other half is the estimate's
    assert (matrix[:, 4].argmax(-1) - 4).tolist() == places
    assert (matrix[:, 4].amax(-1) > 0.3).all()
    seen = torch.arange(9)[:, None] - torch.arange(9)
    assert torch.equal(matrix[0] > 0, (seen <= 2) & (seen >= (0 if causal else -2)))


def test_heights_and_shares_of_neighbours_do_not_decay(make_model):
    model = make_model("flt", exact_reach=2)
    names = [name for name, _ in model.named_parameters() if "neighbours" in name]
    assert len(names) == 4  # of two layers
    assert all(any(part in name for part in model.no_weight_decay) for name in names)


def test_the_block_of_the_paper_normalises_behind_the_sum(make_model):
    assert all(type(layer) is PostNormBlock for layer in make_model("flt", block_style="paper").layers)


@pytest.mark.parametrize(
    ("dimensions", "shape", "given", "allowed"),
    [(0, (1, 5, 1), r"\(1, 5, 1\)", "None"), (2, None, "None", "'N', 2"), (2, (1, 5, 3), r"\(1, 5, 3\)", "'N', 2")],
)
def test_coordinates_that_do_not_fit(dimensions, shape, given, allowed, make_mixer):
    mixer = make_mixer("flt", coordinate_dimensions=dimensions)
    coordinates = None if shape is None else torch.zeros(shape)
    with pytest.raises(ValueError, match=rf"coordinates have shape {given}; allowed: .*{allowed}"):
        mixer(torch.zeros(1, 5, 16), BatchContext(coordinates=coordinates))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"feature_kind": "elu"}, "feature_kind is 'elu'; allowed: positive, relu"),
        ({"spectral_kind": "box"}, "spectral_kind is 'box'; allowed: gaussian_mixture, local, gaussian_basis, kernel"),
        ({"num_random_features": 0}, "num_random_features is 0; allowed: at least 1"),
        ({"num_frequencies": 0}, "num_frequencies is 0; allowed: at least 1"),
        ({"num_components": 0}, "num_components is 0; allowed: at least 1"),
        ({"coordinate_dimensions": -1}, "coordinate_dimensions is -1; allowed: at least 0"),
        ({"exponents": [1]}, r"exponents is \[1\]; allowed: null, unless spectral_kind is local"),
        ({"exponents": [1, 2], "spectral_kind": "local"}, r"exponents is \[1, 2\]; allowed: .* \(1\)"),
        ({"exponents": [0], "spectral_kind": "local"}, r"exponents is \[0\]; allowed: .* above 0"),
        ({"exponents": [True], "spectral_kind": "local"}, r"exponents is \[True\]; allowed: .* integers above 0"),
        ({"kernel": "cauchy"}, "kernel is 'cauchy'; allowed: gaussian, unless spectral_kind is kernel"),
        ({"frequency_sampling": "kernel"}, "frequency_sampling is 'kernel'; allowed: normal, learnable_normal, str"),
        (
            {"frequency_sampling": "normal", "spectral_kind": "kernel"},
            "frequency_sampling is 'normal'; allowed: kernel",
        ),
        ({"kernel": "matern"}, "kernel is 'matern'; allowed: gaussian, laplacian, cauchy"),
        ({"position_scale": 0.0}, "position_scale is 0.0; allowed: above 0"),
        ({"exact_reach": -1}, "exact_reach is -1; allowed: at least 0"),
        ({"exact_reach": 2, "coordinate_dimensions": 3}, "exact_reach is 2; allowed: 0, where positions are coord"),
        ({"mask_bound": 0.0}, "mask_bound is 0.0; allowed: null"),
    ],
)
def test_configuration_mistakes(fields, message, make_config):
    with pytest.raises(ValueError, match=message):
        make_config("flt", **fields)


def test_gradients_of_two_readers_are_sums():
    generator = torch.Generator().manual_seed(0)
    projected = torch.randn(2, 5, 3 * 6, generator=generator, dtype=torch.float64, requires_grad=True)
    one, other = heads_for_two(projected, 2)
    for number, (first, second) in enumerate(zip(one, other, strict=True)):
        expected = projected[:, :, 6 * number : 6 * number + 6].unflatten(2, (2, 3)).transpose(1, 2)
        assert torch.equal(first, expected) and torch.equal(second, expected)

    def squares(x):
        return tuple(part.square() for parts in heads_for_two(x, 2) for part in parts)

    assert torch.autograd.gradcheck(squares, projected)
    assert torch.autograd.gradgradcheck(squares, projected)
