"""S3Attention against its equations, written out with explicit matrices and loops in float64."""

import math

import pytest
import torch
from transformers import AutoModel


def smoother_oracle(smoother, x):
    """Algorithm 2 on one sample (n, D): circulant matrices, segment means, and the stem by explicit shifts."""
    n, width = x.shape
    config = smoother.config
    spectrum = torch.view_as_complex(smoother.spectrum.double())
    kernel = torch.fft.irfft(spectrum, n=config.n_fft, dim=0)
    size = width // config.segments
    filtered = torch.zeros_like(x)
    for channel in range(width):
        circulant = torch.stack([kernel[(t - torch.arange(n)) % config.n_fft, channel] for t in range(n)])
        segment = channel // size
        filtered[:, channel] = circulant @ x[:, segment * size : (segment + 1) * size].mean(1)
    both = torch.cat([filtered, x], dim=1)
    weight = smoother.stem.weight
    stem = smoother.stem.bias.expand(n, width).clone()
    for tap in range(3):
        for t in range(n):
            if 0 <= t + tap - 1 < n:
                stem[t] = stem[t] + weight[:, :, tap] @ both[t + tap - 1]
    if config.normalization == "layer":
        normalised = smoother.norm(stem)
    else:
        mean, variance = smoother.norm.running_mean[:n, None], smoother.norm.running_variance[:n, None]
        normalised = (stem - mean) / (variance + config.layer_norm_eps).sqrt()
        normalised = normalised * smoother.norm.weight[:n, None] + smoother.norm.bias[:n, None]
    if config.stem_activation == "elu":
        return torch.where(normalised > 0, normalised, normalised.exp() - 1)
    return normalised.clamp(min=0)


def attention_oracle(attention, h):
    """Algorithm 1 on one sample (n, D), head by head; landmarks from their definition."""
    n, width = h.shape
    config = attention.config
    size = width // config.num_attention_heads
    query, key, value = (h @ layer.weight.T + layer.bias for layer in (attention.query, attention.key, attention.value))
    if n <= config.row_landmarks:
        tokens = list(range(n))
    else:
        tokens = sorted({int(fraction) * n // 2**32 for fraction in attention.landmark_fractions})
    rows, columns = [], []
    for head in range(config.num_attention_heads):
        q, k, v = (part[:, head * size : (head + 1) * size] for part in (query, key, value))
        rows.append(torch.softmax(q @ k[tokens].T / math.sqrt(size), dim=1) @ v[tokens])
        channels = attention.column_channels
        weights = torch.softmax(q.T @ k[:, channels] / math.sqrt(n), dim=1)
        columns.append(v[:, channels] @ weights.T)
    mixed = attention.row_norm(torch.cat(rows, 1)) / 2 + attention.column_norm(torch.cat(columns, 1)) / 2
    return mixed @ attention.output.weight.T + attention.output.bias


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"normalization": "batch", "stem_activation": "elu"},
        {"n_fft": 75, "segments": 16, "row_landmarks": 7, "column_landmarks": 8},
        {"segments": 1, "num_attention_heads": 1, "row_landmarks": 1, "column_landmarks": 1},
    ],
)
def test_equals_the_equations(fields, make_mixer):
    mixer = make_mixer("s3attention", **fields).double()
    if fields.get("normalization") == "batch":
        mixer.smoother.norm.running_mean.normal_()
        mixer.smoother.norm.running_variance.uniform_(0.5, 2)
    lengths = [23, 40, 5, 1, 2, 16]
    x = torch.randn(len(lengths), 40, 16, dtype=torch.float64)
    mask = torch.arange(40) < torch.tensor(lengths)[:, None]
    result = mixer(x, mask)
    for row, n in enumerate(lengths):
        expected = attention_oracle(mixer.attention, smoother_oracle(mixer.smoother, x[row, :n]))
        torch.testing.assert_close(result[row, :n], expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(mixer(x[1:2])[0], result[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("normalization", ["layer", "batch"])
def test_gradients(normalization, make_mixer):
    mixer = make_mixer(
        "s3attention",
        hidden_size=8,
        max_position_embeddings=6,
        column_landmarks=2,
        row_landmarks=2,
        segments=2,
        normalization=normalization,
        stem_activation="elu",
    ).double()
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in mixer.named_parameters()]
    parameters = [parameter.detach().requires_grad_() for parameter in mixer.parameters()]

    def function(x, *parameters):
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x, mask))

    assert torch.autograd.gradcheck(function, (x, *parameters), fast_mode=True)


def test_the_smoothed_signal_is_as_large_as_its_input(make_config):
    torch.manual_seed(0)
    model = AutoModel.from_config(
        make_config("s3attention", hidden_size=128, segments=8, max_position_embeddings=256, num_hidden_layers=1)
    )
    smoother = model.layers[0].mixer.smoother
    from longmix.kernels import ops

    x = torch.randn(8, 256, 128)
    filtered = ops.spectral_filter(x, smoother.spectrum, 256, 8)
    assert 0.8 < filtered.std().item() < 1.25


def test_landmarks_lie_in_the_valid_part_and_differ(make_mixer):
    attention = make_mixer("s3attention", row_landmarks=8).attention
    lengths = torch.arange(0, 41)
    index, allowed = attention.landmarks(lengths, 40)
    for n in range(1, 41):
        chosen = index[n][allowed[n]].tolist()
        assert len(set(chosen)) == len(chosen) >= min(n, 4)
        assert max(chosen) < n
    assert index[8].tolist() == list(range(8)) and allowed[8].all()
    assert allowed[:, 0].all()


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
    ],
)
def test_configuration_mistakes(field, value, allowed, make_config):
    with pytest.raises(ValueError, match=rf"{field} is {value!r}; allowed: .*{allowed}"):
        make_config("s3attention", **{field: value})
