"""S3Attention: running statistics, landmarks, scales and mistakes."""

import pytest
import torch
from transformers import AutoModel

from longmix.modeling.context import BatchContext
from longmix.modeling.s3attention import landmarks
from longmix.modeling.s3attention.column_attention import column_attention
from longmix.modeling.s3attention.landmarks import landmark_tokens, project_to_landmarks
from longmix.modeling.s3attention.mean_projection import project_mean


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"normalization": "batch", "stem_activation": "elu"},
        {"n_fft": 75, "segments": 16, "row_landmarks": 7, "column_landmarks": 8},
        {"segments": 1, "num_attention_heads": 1, "row_landmarks": 1, "column_landmarks": 1},
    ],
)
def test_equals_the_equations(fields, make_mixer, load_oracle):
    mixer = make_mixer("s3attention", **fields).double()
    if fields.get("normalization") == "batch":
        mixer.smoother.norm.running_mean.normal_()
        mixer.smoother.norm.running_variance.uniform_(0.5, 2)
    lengths = [23, 40, 5, 1, 2, 16]
    x = torch.randn(len(lengths), 40, 16, dtype=torch.float64)
    mask = torch.arange(40) < torch.tensor(lengths)[:, None]
    result = mixer(x, BatchContext(mask))
    for row, n in enumerate(lengths):
        expected = load_oracle("s3attention")(mixer, x[row, :n])
        torch.testing.assert_close(result[row, :n], expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(mixer(x[1:2], BatchContext())[0], result[1], rtol=0, atol=1e-10)


def test_with_unit_gain_the_smoothed_signal_is_as_large_as_its_input(make_config):
    torch.manual_seed(0)
    shape = {"hidden_size": 128, "segments": 8, "max_position_embeddings": 256, "num_hidden_layers": 1}
    model = AutoModel.from_config(make_config("s3attention", **shape, spectrum_initialization="unit_gain"))
    smoother = model.layers[0].mixer.smoother
    from longmix.kernels import ops

    x = torch.randn(8, 256, 128)
    filtered = ops.spectral_filter(x, smoother.spectrum, 256, 8)
    assert 0.8 < filtered.std().item() < 1.25


def test_the_papers_spectrum_is_kaimings(make_config):
    fields = {"hidden_size": 64, "segments": 8, "max_position_embeddings": 512, "num_hidden_layers": 1}
    for kind, expected in (("unit_gain", 2.0), ("kaiming", 2.0 / 16)):
        model = AutoModel.from_config(make_config("s3attention", **fields, spectrum_initialization=kind))
        assert model.layers[0].mixer.smoother.spectrum.std().item() == pytest.approx(expected, rel=0.05)
    like_the_paper = torch.nn.init.kaiming_normal_(torch.empty(257, 64, 2), mode="fan_in", nonlinearity="relu")
    assert like_the_paper.std().item() == pytest.approx(2.0 / 16, rel=0.05)


def test_the_smoother_has_a_dropout_of_its_own(make_config):
    for given, expected in ((None, 0.2), (0.5, 0.5)):
        config = make_config("s3attention", hidden_dropout_prob=0.2, smoother_dropout_prob=given)
        assert AutoModel.from_config(config).layers[0].mixer.smoother.dropout.p == expected


def test_landmarks_lie_in_the_valid_part_and_differ(make_mixer):
    attention = make_mixer("s3attention", row_landmarks=8).attention
    lengths = torch.arange(41).clamp(min=1)
    index, unseen = (of_layers[0] for of_layers in landmark_tokens(attention.landmark_fractions[None], lengths, 40))
    for n in range(1, 41):
        chosen = index[n][~unseen[n]].tolist()
        assert len(set(chosen)) == len(chosen) >= min(n, 4)
        assert max(chosen) < n
    assert index[8].tolist() == list(range(8)) and not unseen[8].any()
    assert not unseen[:, 0].any()


def test_landmarks_of_all_layers_are_made_once_and_are_those_of_each(make_model, monkeypatch):
    calls = []
    make = landmarks.make_landmarks

    def noted(fractions, *rest):
        calls.append(len(fractions))
        return make(fractions, *rest)

    monkeypatch.setattr("longmix.modeling.s3attention.modeling_s3attention.make_landmarks", noted)
    model = make_model("s3attention").eval()
    x = torch.randn(3, 20, model.config.hidden_size)
    context = BatchContext(torch.arange(20) < torch.tensor([20, 7, 2])[:, None], embeddings=x)
    layers = zip(model.layers, model.contexts(context), strict=True)
    results = [(layer.mixer(x, of_layer), layer.mixer(x, context)) for layer, of_layer in layers]
    assert calls == [len(model.layers), *[1] * len(model.layers)]
    assert len(results) > 1
    for of_all, own in results:
        assert torch.equal(of_all, own)


def test_projections_to_landmarks_are_linear_layers(make_mixer):
    attention = make_mixer("s3attention", row_landmarks=4, column_landmarks=3).double().attention
    x = torch.randn(2, 3, 16, dtype=torch.float64, requires_grad=True)
    (found,) = landmarks.make_landmarks(
        [attention.landmark_fractions],
        [attention.column_channels],
        attention.heads,
        x,
        BatchContext(torch.arange(3) < torch.tensor([3, 2])[:, None]),
    )
    layers = (attention.query, attention.key, attention.value)
    parameters = [x, *(parameter for layer in layers for parameter in layer.parameters())]
    tokens, columns, dense = found.tokens, found.columns, found.dense
    assert len(set(tokens.tolist())) < len(tokens)  # repeated in short samples: gradients add up
    results = project_to_landmarks(x, tokens, columns, dense, layers)

    query, key, value = (layer(x).unflatten(2, (attention.heads, -1)) for layer in layers)
    chosen = [part[..., attention.column_channels].flatten(2) for part in (key, value)]
    rows = torch.cat([key.flatten(2), value.flatten(2)], dim=2).flatten(0, 1)[tokens]
    expected = (torch.cat([query.flatten(2), *chosen], dim=2), rows)
    cotangents = [torch.randn_like(result) for result in results]
    gradients = [torch.autograd.grad(of, parameters, cotangents) for of in (results, expected)]
    for value, truth in zip([*results, *gradients[0]], [*expected, *gradients[1]], strict=True):
        torch.testing.assert_close(value, truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_column_attention_is_that_of_every_head_and_hands_queries_on(padded, dropout):
    batch, positions, heads, size, chosen = 2, 5, 3, 4, 2
    width, columns = heads * size, heads * chosen
    projected = torch.randn(batch, positions, width + 2 * columns, dtype=torch.float64, requires_grad=True)
    owners = torch.arange(columns)[:, None] // chosen, torch.arange(width) // size
    own_heads = torch.zeros(columns, width).masked_fill(owners[0] != owners[1], -torch.inf)
    shares = torch.rand(batch, positions, 1, dtype=torch.float64) if padded else None
    torch.manual_seed(5)
    results = column_attention(projected, shares, own_heads, dropout)
    torch.manual_seed(5)
    kept = torch.rand(batch, columns, width, dtype=torch.float64) < 1 - dropout

    query, key, value = projected.split([width, columns, columns], dim=2)
    of_heads = [part.unflatten(2, (heads, -1)) for part in (query, key, value)]
    scale = positions**-0.5 if shares is None else shares[..., None]
    weights = torch.einsum("bnhc,bnhd->bhcd", of_heads[1] * scale, of_heads[0]).softmax(2)
    kept = torch.einsum("bhchd->bhcd", kept.view(batch, heads, chosen, heads, size))
    expected = query, torch.einsum("bnhc,bhcd->bnhd", of_heads[2], weights * kept / (1 - dropout)).flatten(2)
    cotangents = [torch.randn_like(result) for result in results]
    gradients = [torch.autograd.grad(of, projected, cotangents)[0] for of in (results, expected)]
    for found, truth in zip([*results, gradients[0]], [*expected, gradients[1]], strict=True):
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-12)


def test_scores_of_very_many_tokens_stay_finite_in_fp16():
    """256 tokens' square root by 17 x 17 is more than fp16 holds, and cancels in the softmax."""
    projected = torch.full((1, 256 * 256, 4), 17.0, dtype=torch.float16)
    _, column = column_attention(projected, None, torch.zeros(1, 2), 0.0)
    assert torch.equal(column, torch.full_like(column, 17.0))


def test_the_projection_of_a_mean_is_a_linear_layer():
    layer = torch.nn.Linear(4, 3).double()
    pair = [torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    results = project_mean(*pair, layer), layer((pair[0] + pair[1]) / 2)
    cotangent = torch.randn_like(results[0])
    gradients = [torch.autograd.grad(result, (*pair, *layer.parameters()), cotangent) for result in results]
    for found, truth in zip(*([result, *of] for result, of in zip(results, gradients, strict=True)), strict=True):
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-12)


def test_causal_is_refused_with_a_reason(make_config):
    with pytest.raises(ValueError, match="is_causal is True; allowed: false for s3attention, because the Fourier"):
        make_config("s3attention", is_causal=True)
    config = make_config("s3attention")
    config.is_causal = True
    with pytest.raises(ValueError, match="is_causal is True"):
        AutoModel.from_config(config)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("segments", 3, "divisors of hidden_size"),
        ("row_landmarks", 41, "max_position_embeddings"),
        ("row_landmarks", 0, "1 .. max_position_embeddings"),
        ("column_landmarks", 9, "channels of a head"),
        ("n_fft", 39, "at least max_position_embeddings"),
        ("normalization", "group", "layer, batch"),
        ("stem_activation", "gelu", "relu, elu"),
        ("attention_probs_dropout_prob", 1.0, "0 <= probability < 1"),
        ("smoother_dropout_prob", -0.1, "0 <= probability < 1"),
        ("spectrum_initialization", "xavier", "unit_gain, kaiming"),
    ],
)
def test_configuration_mistakes(field, value, allowed, make_config):
    with pytest.raises(ValueError, match=rf"{field} is {value!r}; allowed: .*{allowed}"):
        make_config("s3attention", **{field: value})


def unforgiving(transformed, n, dim, irfft=torch.fft.irfft):
    """irfft that adds imaginary parts which it should ignore, as libraries for GPUs may."""
    real_alone = transformed[:: n // 2] if n % 2 == 0 else transformed[:1]
    return irfft(transformed, n=n, dim=dim) + real_alone.imag.sum(0)


@pytest.mark.parametrize(("old", "new"), [(16, 40), (17, 40), (16, 41), (17, 64)])
def test_a_longer_period_keeps_the_kernel(old, new, monkeypatch):
    from longmix.kernels import ops
    from longmix.modeling.s3attention.modeling_s3attention import longer_period

    x = torch.randn(2, 8, 4, dtype=torch.float64)
    spectrum = torch.randn(old // 2 + 1, 4, 2, dtype=torch.float64)
    with monkeypatch.context() as patch:
        patch.setattr(torch.fft, "irfft", unforgiving)
        longer = longer_period(spectrum, old, new)
    torch.testing.assert_close(ops.spectral_filter(x, longer, new), ops.spectral_filter(x, spectrum, old))
