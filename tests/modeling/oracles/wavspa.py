"""WavSpA with explicit matrices in float64: y = T^T blockdiag(attention) T x, one T for each channel."""

import math

import pywt
import torch

from longmix.modeling.attention import ATTENTIONS

TINY = {"linformer_rank": 5, "attention_window": 8}
# Every space, with the smallest fields that show it.
SPACES = {
    "none": {},
    "fourier": {},
    "fourier_forward": {},
    "fixed": {"levels": 2},
    "adaptive": {"levels": 2, "wavelet": "db2"},
    "orthogonal": {"levels": 2, "filter_length": 6},
    "lifting": {"levels": 2},
}
VARIANTS = {
    **{
        f"{space}-{attention}": {"space": space, "attention": attention, **fields}
        for space, fields in SPACES.items()
        for attention in ATTENTIONS
    },
    "fixed-2d": {"space": "fixed", "two_dimensional": True},
    "fourier-2d": {"space": "fourier", "two_dimensional": True},
    "fourier_forward-2d": {"space": "fourier_forward", "two_dimensional": True},
    "lifting-learned": {"space": "lifting", "learnable": True, "filter_length": 3},
    "orthogonal-dc": {"space": "orthogonal", "filter_length": 4, "dc_normalised": True},
    "paper": {"block_style": "paper"},
    "relu": {"attention": "performer", "performer_features": "relu"},
    "shared": {"share_bands": True, "attention": "linformer", "levels": 3},
    "shared-windowed": {"share_bands": True, "attention": "windowed", "levels": 2},
}

# By default each space with one attention, and each attention with one space or two: what a space does to the tokens
# and what an attention does to the coefficients are separate modules.
LEFT_TO_FULL = {
    f"{space}-{attention}"
    for number, space in enumerate(SPACES)
    for attention in ATTENTIONS
    if attention != list(ATTENTIONS)[number % len(ATTENTIONS)]
}


def oracle(mixer, x, document_ids=None, embeddings=None, coordinates=None):
    """One sample x (N, D), all valid -> (N, D)."""
    config = mixer.config
    if config.space == "none":
        return attention(mixer, 0, x, config.attention_window)
    if config.space.startswith("fourier"):
        return in_fourier_space(mixer, x)
    if config.space == "lifting":
        return in_lifting_space(mixer, x)
    return in_wavelet_space(mixer, x)


def attention(mixer, band, h, window):
    """Attention among the n coefficients (n, width) of a band."""
    module = mixer.attentions[band]
    kind, heads = mixer.config.attention, mixer.config.num_attention_heads
    size = mixer.config.hidden_size // heads
    projected = h @ module.projection.weight.T + module.projection.bias
    query, key, value = projected.split(mixer.config.hidden_size, dim=1)
    mixed = []
    for head in range(heads):
        q, k, v = (part[:, head * size : (head + 1) * size] for part in (query, key, value))
        if kind == "performer" and mixer.config.performer_features == "relu":
            q, k, v = (normalised(part, norm) for part, norm in zip((q, k, v), module.norms, strict=True))
        if kind == "linformer":
            shrink = module.sequence_projection[: len(h)].T
            k, v = shrink @ k, shrink @ v
        if kind in ("softmax", "windowed", "linformer"):
            weights = torch.exp(q @ k.T / math.sqrt(size))
        elif kind == "linear":
            q, k = (torch.where(part > 0, part + 1, part.clamp(max=0).exp()) for part in (q, k))
            weights = q @ k.T
        elif mixer.config.performer_features == "relu":
            q, k = (torch.relu(part / size**0.25) + 1e-3 for part in (q, k))
            weights = q @ k.T
        else:
            features = [
                torch.exp(
                    part @ module.directions.double().T / size**0.25
                    - (part**2).sum(1, keepdim=True) / (2 * math.sqrt(size))
                )
                for part in (q, k)
            ]
            weights = features[0] @ features[1].T
        if kind == "windowed":
            for i in range(len(h)):
                for j in range(len(h)):
                    if abs(i - j) > window // 2:
                        weights[i, j] = 0
        mixed.append(weights / weights.sum(1, keepdim=True) @ v)
    return torch.cat(mixed, dim=1) @ module.output.weight.T + module.output.bias


def normalised(x, norm):
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def in_bands(mixer, coefficients):
    """Attention of each band of the coefficients (n', D) = [cA_J, cD_J, .., cD_1]."""
    config, period = mixer.config, len(coefficients)
    levels = config.levels
    result, start = [], 0
    for band, depth in enumerate([levels, *range(levels, 0, -1)]):
        count = period // 2**depth
        window = config.attention_window // 2 ** (1 if config.share_bands else depth)
        rows = coefficients[start : start + count]
        result.append(attention(mixer, 0 if config.share_bands else band, rows, max(window, 2)))
        start += count
    return torch.cat(result)


def analysis_matrix(period, taps, levels):
    """T (n', n', D) of taps (L, D): one level after the other, each on the approximation rows of the one before."""
    length, width = taps.shape
    matrix = torch.eye(period, dtype=torch.float64)[:, :, None].expand(-1, -1, width)
    for level in range(levels):
        n = period >> level
        step = torch.zeros(n, n, width, dtype=torch.float64)
        for t in range(n // 2):
            for tap in range(length):
                step[t, (2 * t + tap) % n] += taps[tap]
                step[n // 2 + t, (2 * t + tap) % n] += (-1) ** tap * taps[length - 1 - tap]
        top = torch.einsum("ijc,jkc->ikc", step, matrix[:n])
        matrix = torch.cat([top, matrix[n:]])
    return matrix


def taps_of(space, width):
    """Low-pass taps (L, D) of the space, from its parameters."""
    config = space.config
    if config.space == "adaptive":
        return space.low_pass
    if config.space == "fixed":
        taps = torch.tensor(pywt.Wavelet(config.wavelet).dec_lo[::-1], dtype=torch.float64)
        return taps[:, None].expand(-1, width)
    angles = space.angles
    if config.dc_normalised:
        angles = torch.cat([angles, math.pi / 4 - angles.sum(0, keepdim=True)])
    length = 2 * len(angles)
    shift = torch.eye(length, dtype=torch.float64).roll(1, 1)  # row i to column i + 1
    columns = []
    for channel in range(width):
        matrix = torch.eye(length, dtype=torch.float64)
        for angle in angles[:, channel]:
            sine, cosine = angle.sin(), angle.cos()
            rotation = torch.stack([torch.stack([sine, cosine]), torch.stack([cosine, -sine])])
            matrix = matrix @ torch.block_diag(*[rotation] * (length // 2)) @ shift
        columns.append((matrix @ shift.T)[0])
    return torch.stack(columns, dim=1)


def zeros_behind(x, levels):
    """x (n, D) with zeros up to the period n'."""
    period = 2**levels * math.ceil(len(x) / 2**levels)
    return torch.cat([x, torch.zeros(period - len(x), x.shape[1], dtype=x.dtype)])


def in_wavelet_space(mixer, x):
    config = mixer.config
    taps = taps_of(mixer.space, x.shape[1])
    padded = zeros_behind(x, config.levels)
    rows = analysis_matrix(len(padded), taps, config.levels)
    if config.space != "adaptive":
        identity = torch.eye(len(padded), dtype=torch.float64)[:, :, None].expand_as(rows)
        torch.testing.assert_close(torch.einsum("ijc,kjc->ikc", rows, rows), identity, rtol=0, atol=1e-10)
    channels = torch.eye(x.shape[1], dtype=torch.float64)
    if config.two_dimensional:
        channels = analysis_matrix(x.shape[1], taps[:, :1], config.levels)[:, :, 0]
    coefficients = torch.einsum("ijc,jc->ic", rows, padded @ channels.T)
    mixed = in_bands(mixer, coefficients)
    return (torch.einsum("jic,jc->ic", rows, mixed) @ channels)[: len(x)]


def in_lifting_space(mixer, x):
    """Eqs. 7 to 9 row by row, undone in the opposite order."""
    space, levels = mixer.space, mixer.config.levels

    def guess(even, k):
        if space.predict is None:
            return (even[k] + even[(k + 1) % len(even)]) / 2
        total = sum(taps * even[(k + step) % len(even)] for step, taps in enumerate(space.predict))
        return total / (1 + torch.exp(-total)) / 2

    def lift(detail, k):
        if space.update is None:
            return (detail[k - 1] + detail[k]) / 4
        total = sum(taps * detail[(k - step) % len(detail)] for step, taps in enumerate(space.update))
        return total / (1 + torch.exp(-total)) / 4

    rows = list(zeros_behind(x, levels))
    details = []
    for _ in range(levels):
        even, odd = rows[::2], rows[1::2]
        detail = [odd[k] - guess(even, k) for k in range(len(even))]
        rows = [even[k] + lift(detail, k) for k in range(len(even))]
        details.insert(0, detail)
    mixed = list(in_bands(mixer, torch.stack([row for band in [rows, *details] for row in band])))
    rows = mixed[: len(rows)]
    start = len(rows)
    for _ in range(levels):
        detail = mixed[start : start + len(rows)]
        start += len(rows)
        even = [rows[k] - lift(detail, k) for k in range(len(rows))]
        odd = [detail[k] + guess(even, k) for k in range(len(even))]
        rows = [row for pair in zip(even, odd, strict=True) for row in pair]
    return torch.stack(rows)[: len(x)]


def fourier_matrix(n):
    """(n, n) complex, unitary."""
    return torch.tensor(
        [
            [complex(math.cos(a), -math.sin(a)) for a in [2 * math.pi * (t * f % n) / n for t in range(n)]]
            for f in range(n)
        ],
        dtype=torch.complex128,
    ) / math.sqrt(n)


def in_fourier_space(mixer, x):
    n, width = x.shape
    over_rows, over_channels = fourier_matrix(n), torch.eye(width, dtype=torch.complex128)
    if mixer.config.two_dimensional:
        over_channels = fourier_matrix(width)
    spectrum = (over_rows @ x.to(torch.complex128) @ over_channels.T)[: n // 2 + 1]
    mixed = attention(mixer, 0, torch.cat([spectrum.real, spectrum.imag], dim=1), mixer.config.attention_window)
    real, imaginary = mixed[:, :width], mixed[:, width:]
    if mixer.config.space == "fourier_forward":
        return torch.stack([real[t] if t <= n // 2 else imaginary[n - t] for t in range(n)])
    mixed = torch.complex(real, imaginary) @ over_channels.conj()
    # The other frequencies are the conjugates of these, and those that are their own conjugates are real.
    full = [mixed[f] if f <= n // 2 else mixed[n - f].conj() for f in range(n)]
    full[0] = full[0].real.to(torch.complex128)
    if n % 2 == 0:
        full[n // 2] = full[n // 2].real.to(torch.complex128)
    result = over_rows.conj().T @ torch.stack(full)
    torch.testing.assert_close(result.imag, torch.zeros_like(x), rtol=0, atol=1e-10)
    return result.real
