"""Converter: its unitary matrix, its polynomial, its paper's block, and what its configuration refuses."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from longmix.kernels.common.chebyshev import chebyshev_series
from longmix.kernels.token_givens.parameters import parameters_of
from longmix.modeling.context import BatchContext
from longmix.modeling.converter import layers
from longmix.modeling.converter.configuration_converter import GIBBS_KERNELS
from longmix.modeling.converter.kernel_polynomial import KernelPolynomial, gibbs_factors
from longmix.modeling.converter.parameter_heads import begins_of

_spec = importlib.util.spec_from_file_location("converter_oracle", Path(__file__).parent / "oracles" / "converter.py")
equations = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(equations)


def unitary_defect(matrix):
    """Largest entry of M^H M - 1 for pairs (..., N, N, 2)."""
    complex_matrix = torch.complex(*matrix.unbind(-1))
    return (complex_matrix.mH @ complex_matrix - torch.eye(matrix.shape[-2])).abs().max().item()


def parameters_by(head, x, context):
    """upper, lower and phase (sines of the eigenvalues' arguments) that a linear head makes of x (B, N, D)."""
    drawn = head(x)
    return parameters_of(drawn, None, *head.centres_and_ranges(drawn), begins_of(context))


def rms_at(matrix, distance):
    """Root mean square of the moduli of the entries at a distance on both sides, over all heads."""
    squares = matrix.square().sum(-1)
    both = [squares.diagonal(side, -2, -1) for side in (distance, -distance)]
    return torch.cat(both, -1).mean().sqrt().item()


@pytest.mark.parametrize("fields", [{}, {"orders": 2, "permutations": True}, {"parameter_head": "siren"}], ids=str)
def test_the_mixing_matrix_is_unitary_and_what_forward_applies(fields, make_mixer):
    mixer = make_mixer("converter", **fields).double()
    x = torch.randn(2, 40, 16, dtype=torch.float64)
    mask = torch.arange(40) < torch.tensor([40, 23])[:, None]
    matrix = mixer.mixing_matrix(x, BatchContext(mask))
    assert matrix.shape == (2, 2, 40, 40, 2)
    assert unitary_defect(matrix[0]) < 1e-12 and unitary_defect(matrix[1, :, :23, :23]) < 1e-12
    assert (matrix[1, :, 23:] == 0).all() and (matrix[1, :, :, 23:] == 0).all()
    values = (x @ mixer.value.weight.T).unflatten(2, (2, 2, 8)).movedim(2, -1)  # (B, N, H, d, 2)
    values = torch.view_as_complex(torch.where(mask[:, :, None, None, None], values, 0).contiguous())
    expected = torch.einsum("bhij,bjhd->bihd", torch.view_as_complex(matrix), values).flatten(2)
    mixed = mixer(x, BatchContext(mask), as_pairs=True)
    torch.testing.assert_close(torch.complex(*mixed.unbind(2)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("operator", ["kernelution", "synvolution"])
@pytest.mark.parametrize(("width", "heads"), [(64, 1), (128, 2), (768, 12)])
def test_it_reaches_256_tokens_at_initialisation(operator, width, heads, make_config):
    config = make_config(
        "converter",
        hidden_size=width,
        num_attention_heads=heads,
        max_position_embeddings=512,
        operator=operator,
        num_hidden_layers=1,
    )
    torch.manual_seed(0)
    mixer = AutoModel.from_config(config).layers[0].mixer
    with torch.no_grad():
        matrix = mixer.mixing_matrix(torch.randn(1, 512, width), BatchContext())
    assert unitary_defect(matrix) < 1e-4
    assert rms_at(matrix, 256) >= 1e-3
    assert rms_at(matrix, 1) >= 2e-3


def test_the_papers_head_hardly_mixes_at_large_widths(make_config):
    torch.manual_seed(0)
    config = make_config("converter", hidden_size=768, num_attention_heads=1, parameter_head="siren")
    mixer = AutoModel.from_config(config).double().layers[0].mixer
    tokens = torch.nn.functional.normalize(torch.randn(1, 40, 768, dtype=torch.float64), dim=-1)
    with torch.no_grad():
        squares = mixer.mixing_matrix(tokens, BatchContext()).square().sum(-1)[0, 0]
    share = (squares.fill_diagonal_(0).sum().sqrt() / math.sqrt(40)).item()
    assert 1e-6 < share < 1e-4


def test_equal_eigenvalues_do_not_mix(make_mixer):
    mixer = make_mixer("converter", operator="synvolution")
    with torch.no_grad():
        projection = mixer.parameter_head.projection
        projection.weight.view(2, -1, 16)[:, 0] = 0
        projection.bias.view(2, -1)[:, 0] = math.asin(0.3)
    matrix = mixer.mixing_matrix(torch.randn(1, 20, 16), BatchContext())
    expected = torch.eye(20)[..., None] * torch.tensor([math.cos(0.3), math.sin(0.3)])
    torch.testing.assert_close(matrix, expected.expand(1, 2, -1, -1, -1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("positions", [1, 2, 5])
@pytest.mark.parametrize("ids", [None, [[3, 3, 3, 7, 7], [1, 2, 2, 2, 1]]], ids=["alone", "documents"])
def test_gradients_of_the_linear_heads_parameters(positions, ids, make_mixer):
    head = make_mixer("converter", orders=2).parameter_head.double()
    ids = None if ids is None else torch.tensor(ids)[:, :positions]
    context = BatchContext(document_ids=ids)
    x = torch.randn(2, positions, 16, dtype=torch.float64, requires_grad=True)
    torch.use_deterministic_algorithms(True, warn_only=True)  # memory that nobody writes holds NaN
    try:
        assert torch.autograd.gradcheck(lambda x: parameters_by(head, x, context), x)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("adds", [False, True])
def test_gradients_of_two_readers_are_sums(adds, monkeypatch):
    monkeypatch.setattr(layers, "_adds_products", lambda device: adds)
    layer = layers.LinearOfUnitRows(4, 3, 0.5, 1e-5).double()

    def both(x):
        result, passed = layer(x, with_input=True)
        return result.sin(), passed.cos()

    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(both, x) and torch.autograd.gradgradcheck(both, x)
    found = [torch.autograd.grad(sum(y.sum() for y in both(x)), x, create_graph=graph)[0] for graph in (False, True)]
    torch.testing.assert_close(*found)
    (of_passed,) = torch.autograd.grad(layer(x, with_input=True)[1].sum(), x)
    assert (of_passed == 1).all()
    (of_result,) = torch.autograd.grad(layer(x, with_input=True)[0].sum(), x)
    torch.testing.assert_close(of_result, *torch.autograd.grad(layer(x).sum(), x))
    of_both = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 4, 5, dtype=torch.float64).mT
    for given in (of_both, (of_both[0], torch.ones(1, 1, 4, dtype=torch.float64).expand(2, 5, 4))):
        (found,) = torch.autograd.grad(layer(x, with_input=True), x, given)
        torch.testing.assert_close(found, torch.autograd.grad(layer(x), x, given[0])[0] + given[1])


def test_a_watched_projection_makes_its_results_alone(make_mixer):
    mixer, seen = make_mixer("converter"), []
    x = torch.randn(2, 5, 16, requires_grad=True)
    assert mixer.parameter_head.joins(x) and not mixer.parameter_head.joins(x.detach())
    expected = mixer(x, BatchContext())
    for module in (mixer.parameter_head.projection, mixer.parameter_head):
        hook = module.register_forward_hook(lambda module, inputs, result: seen.append(result))
        torch.testing.assert_close(mixer(x, BatchContext()), expected, rtol=0, atol=0)
        hook.remove()
    assert [result.shape for result in seen] == [(2, 5, 2 * 7), (2, 5, 2, 7)]


def test_angles_lie_around_the_centres_of_their_heads(make_mixer):
    mixer = make_mixer("converter", hidden_size=64, num_attention_heads=4)
    with torch.no_grad():
        mixer.parameter_head.projection.bias.zero_()
    upper, lower, _ = parameters_by(mixer.parameter_head, torch.randn(8, 500, 64), BatchContext())
    angles = torch.stack([lower, upper])
    ranges = torch.tensor([0.05, 0.13572, 0.36840, 1.0])
    a, b, c = ((angles[..., kind].movedim(2, 0).flatten(1)) for kind in range(3))
    for values, centre, spread in ((a, 0, 1), (b, torch.arange(4) * math.pi * (5**0.5 - 1), 1), (c, None, 0.5)):
        expected = math.pi / 2 + ranges if centre is None else centre % (2 * math.pi) * torch.ones(4)
        assert ((values.mean(1) - expected).abs() < 0.1 * ranges).all()
        assert ((values.std(1) / (spread * ranges) - 1).abs() < 0.5).all()


def test_permutations_of_shorter_sequences_are_restrictions(make_mixer, make_model):
    mixer = make_mixer("converter", orders=3, permutations=True)
    keys = mixer.permutation_keys
    whole = keys.argsort(-1)
    for length in (1, 2, 17, 39):
        shorter = keys[:, :length].argsort(-1)
        for order in range(3):
            assert shorter[order].tolist() == [place for place in whole[order].tolist() if place < length]
    assert len({tuple(line) for line in whole.tolist()}) == 3
    model = make_model("converter", permutations=True)
    before = [layer.mixer.permutation_keys.clone() for layer in model.layers]
    assert not torch.equal(*before)
    model.resize_positions(100)
    for layer, old in zip(model.layers, before, strict=True):
        assert layer.mixer.permutation_keys.shape == (1, 100)
        assert torch.equal(layer.mixer.permutation_keys[:, :40], old)
        assert layer.mixer.permutation_keys.unique().numel() == 100


def test_documents_with_the_equations(make_mixer):
    mixer = make_mixer("converter").double()
    x = torch.randn(12, 16, dtype=torch.float64)
    documents = torch.tensor([0] * 5 + [1] + [2] * 6)
    expected = equations.oracle(mixer, x, documents)
    torch.testing.assert_close(mixer(x[None], BatchContext(None, documents[None]))[0], expected, rtol=0, atol=1e-10)


def block_oracle(block, x):
    """The paper's block on one sample (N, D) (section 4.3, eq. 13)."""
    mixer = block.mixer

    def scale_norm(z, weight):
        return z / (torch.linalg.vector_norm(z, dim=1, keepdim=True) + 1e-5) * weight

    x = scale_norm(x, block.embedding_norm.weight)
    z = scale_norm(equations.convolution(mixer, x) + x, block.mixer_norm.weight)
    layers = block.feed_forward
    magnitude = torch.log(1 + torch.exp(z.real @ layers.magnitude.weight.T + layers.magnitude.bias))
    sign = torch.tanh(z.imag @ layers.sign.weight.T + layers.sign.bias)
    gated = (magnitude * sign) @ layers.output.weight.T + layers.output.bias
    return scale_norm(gated + equations.readout(mixer, z), block.feed_forward_norm.weight)


@pytest.mark.parametrize("head", ["linear", "siren"])
def test_the_papers_block(head, make_model):
    model = make_model("converter", block_style="paper", parameter_head=head).double()
    block = model.layers[0]
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    assert isinstance(model.final_norm, torch.nn.Identity) and isinstance(model.embeddings.norm, torch.nn.Identity)
    x = torch.randn(2, 11, 16, dtype=torch.float64)
    mask = torch.arange(11) < torch.tensor([11, 4])[:, None]
    result = block(torch.where(mask[:, :, None], x, float("nan")), BatchContext(mask))
    assert (result[~mask] == 0).all()
    for row, length in enumerate((11, 4)):
        torch.testing.assert_close(result[row, :length], block_oracle(block, x[row, :length]), rtol=0, atol=1e-10)


def test_gradients_of_the_papers_block(make_model):
    block = make_model("converter", block_style="paper", hidden_size=8, num_attention_heads=1).double().layers[0]
    names = [name for name, _ in block.named_parameters()]
    parameters = [parameter.detach().requires_grad_() for parameter in block.parameters()]
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)

    def function(x, *parameters):
        return torch.func.functional_call(block, dict(zip(names, parameters, strict=True)), (x, BatchContext(mask)))

    assert torch.autograd.gradcheck(function, (x, *parameters), fast_mode=True)
    assert torch.autograd.grad(block(x, BatchContext(mask)).sum(), x)[0][~mask].eq(0).all()


def test_gibbs_factors_of_table_6(make_config):
    values = {
        "dirichlet": [1, 1, 1, 1],
        "fejer": [1, 0.75, 0.5, 0.25],
        "jackson": [1, math.cos(math.pi / 5), 1 / math.sqrt(5), (5 - math.sqrt(5)) / 20],
        "lanczos": [
            1,
            (math.sin(math.pi / 4) * 4 / math.pi) ** 3,
            (2 / math.pi) ** 3,
            (math.sin(math.pi / 4) * 4 / (3 * math.pi)) ** 3,
        ],
        "lorentz": [1, math.sinh(3) / math.sinh(4), math.sinh(2) / math.sinh(4), math.sinh(1) / math.sinh(4)],
        "vekic": [1, 0.5 + 0.5 * math.tanh(4 / 3), 0.5, 0.5 - 0.5 * math.tanh(4 / 3)],
        "wang": [1, math.exp(-1 / 4), math.exp(-1), math.exp(-9 / 4)],
    }
    assert set(values) == set(GIBBS_KERNELS)
    for kernel, expected in values.items():
        config = make_config("converter", gibbs_kernel=kernel, polynomial_order=3)
        assert gibbs_factors(config) == pytest.approx(expected, rel=1e-5), kernel


@pytest.mark.parametrize("order", [1, 2, 7])
@pytest.mark.parametrize("kernel", ["dirichlet", "fejer"])
def test_the_polynomial_is_a_chebyshev_sum(order, kernel, make_config):
    config = make_config("converter", polynomial_order=order, gibbs_kernel=kernel)
    module = KernelPolynomial(config).double()
    assert module.coefficients[1].tolist() == pytest.approx([1 / (order + 1)] + [2 / (order + 1)] * order)
    with torch.no_grad():
        module.coefficients.normal_()
    x = torch.linspace(-1, 1, 41, dtype=torch.float64).expand(3, 2, 41)
    damping = [1 - (k / (order + 1) if kernel == "fejer" else 0) for k in range(order + 1)]
    for head in range(2):
        expected = sum(
            damping[k] * module.coefficients[head, k] * torch.cos(k * torch.arccos(x[0, 0])) for k in range(order + 1)
        )
        torch.testing.assert_close(chebyshev_series(x, module())[1, head], expected, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(module().sum(), module.coefficients)
    assert gradient[1].tolist() == pytest.approx(damping)
    leaves = (0.9 * x[:, :, ::10].cos()).requires_grad_(), module().detach().requires_grad_()
    assert torch.autograd.gradcheck(chebyshev_series, leaves) and torch.autograd.gradgradcheck(chebyshev_series, leaves)


def test_the_kernel_polynomial_loss(make_mixer, make_config):
    mixers = [make_mixer("converter", polynomial_order=3) for _ in range(2)]
    with torch.no_grad():
        for scale, mixer in enumerate(mixers, 1):
            mixer.polynomial.coefficients.copy_(scale * torch.tensor([[9.0, 1, 2, 3], [5, 0, 0, 1]]))
    # pi (1 + 4 * 4 + 9 * 9) and pi * 9, averaged; of the second layer four times as much.
    one = torch.tensor(math.pi * (98 + 9) / 2)
    loss = type(mixers[0]).auxiliary_loss
    torch.testing.assert_close(loss(mixers[:1]), one)
    torch.testing.assert_close(loss(mixers), 5 * one)
    assert loss([make_mixer("converter", gibbs_kernel="jackson")]) is None
    assert loss([make_mixer("converter", operator="synvolution")]) is None
    assert make_config("converter").auxiliary_loss_weight == 1e-3


def test_the_loss_is_mixed_as_in_equation_14(make_model, batch):
    model = make_model("converter", AutoModelForMaskedLM, auxiliary_loss_weight=0.25)
    input_ids, mask = batch([9, 4], 9)
    arguments = {"input_ids": input_ids, "attention_mask": mask, "labels": torch.where(mask, input_ids, -100)}
    plain = model(**arguments).loss
    mixers = [layer.mixer for layer in model.encoder.layers]
    polynomial = sum(type(mixer).auxiliary_loss([mixer]) for mixer in mixers)
    torch.testing.assert_close(model.train()(**arguments).loss, 0.75 * plain + 0.25 * polynomial)


def test_values_start_as_large_as_the_tokens(make_config):
    torch.manual_seed(0)
    model = AutoModel.from_config(make_config("converter", hidden_size=256, num_attention_heads=4, num_hidden_layers=1))
    x = torch.randn(1, 30, 256)
    mixed = model.layers[0].mixer(x, BatchContext(), as_pairs=True)
    assert mixed.square().sum().item() == pytest.approx(x.square().sum().item(), rel=0.1)


def test_initialisation_survives_the_models_own(make_config):
    torch.manual_seed(0)
    model = AutoModel.from_config(
        make_config("converter", block_style="paper", parameter_head="siren", hidden_size=64, initializer_range=9.0)
    )
    siren = model.layers[1].mixer.parameter_head.eigenvectors
    bound = math.sqrt(6 / 64)
    assert 0.95 * bound < siren.outer.weight.abs().max().item() <= bound
    feed_forward = model.layers[1].feed_forward
    assert feed_forward.sign.weight.std().item() == pytest.approx(math.sqrt(2 / (64 + 256)), rel=0.05)
    assert (feed_forward.sign.bias == 0).all() and model.layers[1].mixer.readout.zeta_logit.item() == 0
    assert isinstance(model.layers[1].embedding_norm, torch.nn.Identity)


def test_causal_is_refused_with_a_reason(make_config):
    with pytest.raises(ValueError, match="is_causal is True; allowed: false for converter, because a unitary matrix"):
        make_config("converter", is_causal=True)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("operator", "convolution", "kernelution, synvolution"),
        ("orders", 0, "at least 1"),
        ("parameter_head", "mlp", "linear, siren"),
        ("polynomial_order", 0, "at least 1"),
        ("gibbs_kernel", "Fejér", "dirichlet, fejer, jackson, lanczos, lorentz, vekic, wang"),
        ("lanczos_power", 0, "at least 1"),
        ("lanczos_power", 10**400, "at most 100"),
        ("lorentz_width", 0, "above 0"),
        ("lorentz_width", 1000.0, "at most 100"),
        ("wang_scale", -1.0, "above 0"),
        ("wang_scale", 1e15, "at most 100"),
        ("wang_power", float("inf"), "at most 100"),
        ("smallest_angle_range", 0, "above 0"),
        ("largest_angle_range", 0.01, "at least smallest_angle_range"),
        ("auxiliary_loss_weight", 1.0, "0 <= weight < 1"),
    ],
)
def test_configuration_mistakes(field, value, allowed, make_config):
    with pytest.raises(ValueError, match=rf"{field} is {value!r}; allowed: .*{allowed}"):
        make_config("converter", **{field: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"operator": "synvolution", "polynomial_order": 3}, "order is 3; allowed: 2, unless operator is kernelution"),
        ({"operator": "synvolution", "gibbs_kernel": "fejer"}, "is 'fejer'; allowed: dirichlet, unless operator"),
        ({"lanczos_power": 2}, "lanczos_power is 2; allowed: 3, unless gibbs_kernel is lanczos"),
        ({"lorentz_width": 2.0}, "lorentz_width is 2.0; allowed: 4.0, unless gibbs_kernel is lorentz"),
        ({"gibbs_kernel": "lorentz", "wang_scale": 3.0}, "scale is 3.0; allowed: 2.0, unless gibbs_kernel is wang"),
        ({"wang_power": 3.0}, "wang_power is 3.0; allowed: 2.0, unless gibbs_kernel is wang"),
        ({"parameter_head": "siren", "largest_angle_range": 2.0}, "range is 2.0; allowed: 1.0, unless parameter_head"),
    ],
)
def test_fields_that_nothing_would_read(fields, message, make_config):
    with pytest.raises(ValueError, match=message):
        make_config("converter", **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"gibbs_kernel": "lanczos", "lanczos_power": 100},
        {"gibbs_kernel": "lorentz", "lorentz_width": 100.0},
        {"gibbs_kernel": "lorentz", "lorentz_width": 1e-9},
        {"gibbs_kernel": "wang", "wang_scale": 100.0, "wang_power": 100.0},
    ],
    ids=str,
)
def test_every_gibbs_kernel_that_is_allowed_can_be_computed(fields, make_config):
    for order in (1, 50):
        factors = gibbs_factors(make_config("converter", polynomial_order=order, **fields))
        assert all(0 <= factor <= 1 for factor in factors)


def test_more_angles_than_the_paper_head_has_channels(make_config):
    with pytest.raises(ValueError, match="orders is 2; allowed: at most 1 with the siren head"):
        make_config("converter", parameter_head="siren", orders=2)


def test_compiled_eigenvalues_lie_as_compilers_think():
    def phases(drawn, centres, ranges):
        return parameters_of(drawn, None, centres, ranges, None)[2].contiguous()

    given = torch.randn(2, 5, 3, 7), *torch.randn(2, 3, 7)
    compiled = torch.compile(phases, backend="aot_eager", fullgraph=True)(*given)
    assert compiled.is_contiguous()  # as C++ reads them
    torch.testing.assert_close(compiled, phases(*given))
