"""Converter on one sample, with explicit N x N matrices (Converter, eqs. 4 to 12)."""

import cmath
import math

import torch

TINY = {}
VARIANTS = {
    "orders": {"orders": 2, "permutations": True, "gibbs_kernel": "wang", "polynomial_order": 3},
    "paper": {"block_style": "paper", "parameter_head": "siren", "num_attention_heads": 1},
    "siren": {"parameter_head": "siren", "gibbs_kernel": "jackson", "polynomial_order": 5},
    "synvolution": {"operator": "synvolution", "permutations": True},
}


def oracle(mixer, x, document_ids=None, embeddings=None, coordinates=None):
    """x (N, D) float64 -> (N, D)."""
    mixed = convolution(mixer, x, document_ids)
    if mixer.config.block_style == "prenorm":
        own = torch.cat([torch.exp(1j * phase(mixer, x, h))[:, None] * v for h, v in enumerate(values(mixer, x))], 1)
        mixed = mixed - own
    return readout(mixer, mixed)


def convolution(mixer, x, document_ids=None):
    """The complex values M V of all heads, (N, D) complex128."""
    return torch.cat([matrix(mixer, x, h, document_ids) @ v for h, v in enumerate(values(mixer, x))], 1)


def values(mixer, x):
    """V of each head, (N, d) complex128."""
    width, heads = mixer.config.hidden_size, mixer.config.num_attention_heads
    together = torch.complex(x @ mixer.value.weight[:width].T, x @ mixer.value.weight[width:].T)
    return together.split(width // heads, 1)


def readout(mixer, mixed):
    """(N, D) complex128 -> (N, D) float64."""
    if mixer.config.block_style == "prenorm":
        layer = mixer.readout.projection
        return torch.cat([mixed.real, mixed.imag], 1) @ layer.weight.T + layer.bias
    zeta = 1 / (1 + torch.exp(-mixer.readout.zeta_logit))
    return zeta * mixed.real + (1 - zeta) * mixed.imag


def matrix(mixer, x, head, document_ids=None):
    """Phi^-1 exp(i p(Lambda)) Phi of one head, (N, N) complex128."""
    config = mixer.config
    n = len(x)
    angles = spectrum(mixer, x, head)[1]
    phi = torch.eye(n, dtype=torch.complex128)
    for order in range(config.orders):
        h_lower, h_upper = torch.eye(n, dtype=torch.complex128), torch.eye(n, dtype=torch.complex128)
        for k in range(n - 1):
            if document_ids is None or document_ids[k] == document_ids[k + 1]:
                h_lower = givens(n, k, angles[k, order, 0]) @ h_lower
                h_upper = h_upper @ givens(n, k, angles[k + 1, order, 1])
        phi = phi @ h_lower @ h_upper
        if config.permutations:
            keys = mixer.permutation_keys[order].tolist()
            phi = phi @ torch.eye(n, dtype=torch.complex128)[sorted(range(n), key=lambda place: keys[place])]
    result = torch.linalg.inv(phi) @ torch.diag(torch.exp(1j * phase(mixer, x, head))) @ phi
    identity = torch.eye(n, dtype=torch.complex128)
    torch.testing.assert_close(result.conj().T @ result, identity, rtol=0, atol=1e-12)
    return result


def spectrum(mixer, x, head):
    """Eigenvalues (N,) and angles (N, L, 2, 3)."""
    return {"linear": linear, "siren": siren}[mixer.config.parameter_head](mixer.parameter_head, x, head)


def phase(mixer, x, head):
    """Lambda of eq. 8, or p(Lambda) of eq. 12."""
    eigenvalues = spectrum(mixer, x, head)[0]
    if mixer.config.operator == "synvolution":
        return eigenvalues
    return polynomial(mixer.config, mixer.polynomial.coefficients[head], eigenvalues)


def givens(n, k, angles):
    """G_{k, k+1} with A, B, C (eq. 6)."""
    a, b, c = angles.tolist()
    result = torch.eye(n, dtype=torch.complex128)
    result[k, k] = cmath.exp(-1j * a) * math.cos(c)
    result[k, k + 1] = -cmath.exp(1j * b) * math.sin(c)
    result[k + 1, k] = cmath.exp(-1j * b) * math.sin(c)
    result[k + 1, k + 1] = cmath.exp(1j * a) * math.cos(c)
    return result


def linear(head, x, number):
    """Eigenvalues (N,) and angles (N, L, 2, 3) of head `number`."""
    config = head.config
    normalised = x / (x.square().mean(1, keepdim=True) + config.layer_norm_eps).sqrt()
    drawn = (normalised @ head.projection.weight.T + head.projection.bias).view(len(x), config.num_attention_heads, -1)
    drawn = drawn[:, number]
    smallest, largest = config.smallest_angle_range, config.largest_angle_range
    share = number / (config.num_attention_heads - 1) if config.num_attention_heads > 1 else 0
    u = drawn[:, 1:].reshape(len(x), config.orders, 2, 3)
    own_range = smallest * (largest / smallest) ** share
    frequency = 2 * math.pi * number * (math.sqrt(5) - 1) / 2
    angles = torch.stack(
        [own_range * u[..., 0], frequency + own_range * u[..., 1], math.pi / 2 + own_range * (1 + u[..., 2] / 2)], 3
    )
    return torch.sin(drawn[:, 0]), angles


def siren(head, x, number):
    """Eigenvalues (N,) and angles (N, L, 2, 3) of head `number` (eq. 4)."""
    config = head.config

    def network(layers):
        hidden = torch.sin(x @ layers.inner.weight.T + layers.inner.bias)
        hidden = hidden / (hidden.norm(dim=1, keepdim=True) + config.layer_norm_eps) * layers.norm.weight
        return torch.sin(hidden @ layers.outer.weight.T + layers.outer.bias)

    size = config.hidden_size // config.num_attention_heads
    own = slice(number * size, (number + 1) * size)
    vectors = network(head.eigenvectors)
    vectors = (vectors / (vectors.norm(dim=1, keepdim=True) + config.layer_norm_eps))[:, own]
    groups = 6 * config.orders
    pooled = [vectors[:, size * g // groups : -(-size * (g + 1) // groups)].mean(1) for g in range(groups)]
    alpha, beta, gamma = torch.stack(pooled, 1).view(len(x), config.orders, 2, 3).unbind(3)
    # The published code's alpha, beta and gamma are the paper's divided by 2 pi.
    angles = math.pi * torch.stack([alpha + beta, alpha - beta, gamma], 3)
    return network(head.eigenvalues)[:, own].mean(1), angles


def polynomial(config, coefficients, x):
    """p_KP(x) with T_k(x) = cos(k arccos x) (eq. 10)."""
    total = coefficients[0].expand_as(x)
    for k in range(1, config.polynomial_order + 1):
        total = total + gibbs(config, k) * coefficients[k] * torch.cos(k * torch.arccos(x))
    return total


def gibbs(config, k):
    """g_k (table 6)."""
    order = config.polynomial_order
    r = k / (order + 1)
    q = math.pi / (order + 2)
    xi = config.lorentz_width
    return {
        "dirichlet": 1,
        "fejer": 1 - r,
        "jackson": ((order + 2 - k) * math.cos(k * q) + math.sin(k * q) * math.cos(q) / math.sin(q)) / (order + 2),
        "lanczos": (math.sin(math.pi * r) / (math.pi * r)) ** config.lanczos_power,
        "lorentz": math.sinh(xi * (1 - r)) / math.sinh(xi),
        "vekic": 1 / 2 - 1 / 2 * math.tanh((r - 1 / 2) / (r * (1 - r))),
        "wang": math.exp(-((config.wang_scale * r) ** config.wang_power)),
    }[config.gibbs_kernel]
