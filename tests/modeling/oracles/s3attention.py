"""S3Attention's equations with explicit matrices and loops in float64."""

import math

import torch

TINY = {"segments": 4, "row_landmarks": 4, "column_landmarks": 3}
VARIANTS = {
    "batch": {"normalization": "batch", "stem_activation": "elu"},
    "odd": {"n_fft": 1001, "row_landmarks": 1, "column_landmarks": 8, "segments": 16},
    "paper": {"block_style": "paper"},
}


def oracle(mixer, x, document_ids=None, embeddings=None, coordinates=None):
    """One sample x (N, D), all valid -> (N, D)."""
    return attention_oracle(mixer.attention, smoother_oracle(mixer.smoother, x))


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
