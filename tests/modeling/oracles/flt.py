"""FLT with explicit N x N matrices in float64: algorithm 1 on the concatenated features, nothing cancelled."""

import math

import torch

TINY = {"num_random_features": 12, "num_components": 3, "num_frequencies": 6, "initializer_range": 0.3}
VARIANTS = {
    "basis": {
        "spectral_kind": "gaussian_basis",
        "coordinate_dimensions": 3,
        "frequency_sampling": "learnable_normal",
    },
    "causal": {"is_causal": True, "mask_bound": 0.1},
    "coordinates": {"spectral_kind": "local", "coordinate_dimensions": 2, "exponents": [2, 1]},
    "directional": {"spectral_kind": "local", "frequency_sampling": "stratified", "directional": True},
    "kernel": {"spectral_kind": "kernel", "position_scale": 0.3, "share_mask": False},
    "neighbours": {"exact_reach": 3},
    "neighbours-causal": {"exact_reach": 2, "is_causal": True, "feature_kind": "relu"},
    "paper": {"block_style": "paper", "is_causal": True, "spectral_kind": "local"},
    "relu": {"feature_kind": "relu"},
    "relu-causal": {"feature_kind": "relu", "is_causal": True, "mask_bound": None},
}


def frequencies_and_densities(mask, head):
    """xi_k (r, l) of a head and the density p(xi_k) (r,) that each was drawn from; None: g / p is constant."""
    config = mask.config
    draws = mask.frequencies.draws.double() / 2**32
    dimensions = draws.shape[1]
    normal = torch.exp(-(draws**2).sum(1) / 2) / (2 * math.pi) ** (dimensions / 2)
    if config.frequency_sampling == "normal":
        return draws, normal
    if config.frequency_sampling == "stratified":
        return draws, torch.ones(len(draws))
    shift = mask.frequencies.scale_shift[head].double().exp()
    if config.frequency_sampling == "kernel":  # inverse lengths of 1 to 16 over the heads
        return draws * shift / 16 ** ((head + 0.5) / config.num_attention_heads), None
    scale = shift / (2 * math.pi * 16 ** ((torch.arange(len(draws)).double() + 0.5) / len(draws)))
    return draws * scale[:, None], normal / scale**dimensions


def term(mask, head, t, xi):
    """g_t(xi), real, for one frequency xi (l,), whose mask has height 1 (k-fold convolutions: (2 v)^(k - 1) less)."""
    config = mask.config
    spectrum = mask.spectrum
    if config.spectral_kind == "gaussian_mixture":
        mean, width = spectrum.mean[head, t].double(), spectrum.log_width[head, t].double().exp()
        return torch.exp(-((xi - mean) ** 2).sum() / (2 * width**2)) / (2 * math.pi * width**2) ** (len(xi) / 2)
    if config.spectral_kind == "gaussian_basis":
        width = spectrum.log_width[head, t].double().exp()
        return torch.exp(-2 * math.pi**2 * width**2 * (xi**2).sum()) * (2 * math.pi * width**2) ** (len(xi) / 2)
    radii = spectrum.log_radius[head, t].double().exp()
    result = torch.ones(())
    for axis, v in enumerate(radii):
        power = 1 if config.exponents is None else config.exponents[axis]
        wave = torch.sin(2 * math.pi * v * xi[axis]) / (math.pi * xi[axis])
        result = result * wave**power / (2 * v) ** (power - 1)
    return result


def spectral_weights(mask, head):
    """w_k = g(xi_k) / p(xi_k), complex, of mean absolute value at most mask_bound: (r,)."""
    xi, density = frequencies_and_densities(mask, head)
    weights = []
    for k in range(len(xi)):
        total = torch.zeros((), dtype=torch.complex128)
        for t in range(mask.weight.shape[1]):
            ratio = 1.0 if density is None else term(mask, head, t, xi[k]) / density[k]
            value = mask.weight[head, t].double() * ratio
            if mask.offset is not None:
                value = value * torch.exp(-2j * math.pi * (mask.offset[head, t].double() @ xi[k]))
            total = total + value
        weights.append(total)
    weights = torch.stack(weights)
    bound = mask.config.mask_bound
    if bound is not None and weights.abs().mean() > bound:
        weights = weights * bound / weights.abs().mean()
    return xi, weights


def positions_of(mask, n, coordinates):
    """(N, l): indices, or the coordinates, in units of distance."""
    points = torch.arange(n)[:, None] if coordinates is None else coordinates
    return mask.config.position_scale * points.double()


def position_features(mask, head, n, coordinates):
    """phi(r_i) and psi(r_j), (N, 2 r) each: the weight's phase is a shift on the side of the keys."""
    xi, weights = spectral_weights(mask, head)
    angle = 2 * math.pi * (positions_of(mask, n, coordinates) @ xi.T)
    size, phase = weights.abs(), weights.angle()
    split = (size**2 + (0.01 * size.mean()) ** 2) ** 0.25
    shifted = angle - phase
    phi = torch.cat([split * angle.cos(), split * angle.sin()], 1)
    psi = torch.cat([size / split * shifted.cos(), size / split * shifted.sin()], 1)
    return phi / math.sqrt(len(xi)), psi / math.sqrt(len(xi))


def neighbour_weights(neighbours, head, q, k, allowed):
    """The exact part (N, N): softmax over the allowed keys at most exact_reach positions away, under its own mask."""
    scores = torch.full((len(q), len(q)), -math.inf, dtype=q.dtype)
    places = list(neighbours.distances)
    for i in range(len(q)):
        for j in range(len(q)):
            if j - i in places and allowed[i, j]:
                scores[i, j] = neighbours.bias[head, places.index(j - i)] + q[i] @ k[j] / math.sqrt(q.shape[1])
    return scores.softmax(1)


def oracle(mixer, x, document_ids=None, embeddings=None, coordinates=None):
    """One sample x (N, D), all valid -> (N, D)."""
    n, width = x.shape
    config = mixer.config
    size = width // config.num_attention_heads
    attention = mixer.attention
    query, key, value = (x @ attention.projection.weight.T + attention.projection.bias).split(width, dim=1)
    mixed = []
    for head in range(config.num_attention_heads):
        q, k, v = (part[:, head * size : (head + 1) * size] for part in (query, key, value))
        phi, psi = position_features(attention.mask, head, n, coordinates)
        features = []
        for content in (torch.cat([phi, q * size**-0.25], 1), torch.cat([psi, k * size**-0.25], 1)):
            projected = content @ attention.feature_projection.T
            if config.feature_kind == "relu":
                features.append(projected.clamp(min=0) + 1e-3)
            else:
                features.append(torch.exp(projected - (content**2).sum(1, keepdim=True) / 2))
        weights = features[0] @ features[1].T
        allowed = torch.ones(n, n, dtype=torch.bool)
        if config.is_causal:
            allowed = allowed.tril()
        if document_ids is not None:
            allowed = allowed & (document_ids[:, None] == document_ids)
        weights = weights * allowed
        weights = weights / weights.sum(1, keepdim=True)
        if attention.neighbours is not None:
            share = attention.neighbours.share_logit[head].double().sigmoid()
            exact = neighbour_weights(attention.neighbours, head, q, k, allowed)
            weights = (1 - share) * weights + share * exact
        mixed.append(weights @ v)
    return torch.cat(mixed, dim=1) @ attention.output.weight.T + attention.output.bias
