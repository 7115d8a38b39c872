"""Paramixer's factors as explicit N x N matrices in float64, entry by entry (equations 3 to 6)."""

import torch

TINY = {"link_hidden_size": 8}
VARIANTS = {
    "causal": {"is_causal": True, "weights_from": "input"},
    "cdil": {"protocol": "cdil", "links": 5, "factors": 3},
    "cdil-causal": {"protocol": "cdil", "links": 4, "is_causal": True},
    "paper": {"block_style": "paper", "value_hidden_size": 8},
    "symmetric": {"symmetric": True, "weights_from": "input"},
}


def oracle(mixer, x, document_ids=None, embeddings=None, coordinates=None):
    """One sample x (N, D), all valid -> (N, D)."""
    return matrix_oracle(mixer, x, document_ids, embeddings) @ network(mixer.value.inner, mixer.value.outer, x)


def matrix_oracle(mixer, x, document_ids=None, embeddings=None):
    """A = (I + W_{M-1}) ... (I + W_0), (N, N)."""
    n = len(x)
    config = mixer.config
    source = x if embeddings is None or config.weights_from == "input" else embeddings
    product = torch.eye(n, dtype=torch.float64)
    for m in range(config.factors):
        width = config.link_hidden_size
        rows = slice(m * width, (m + 1) * width)
        hidden = torch.nn.functional.gelu(source @ mixer.links.inner.weight[rows].T + mixer.links.inner.bias[rows])
        weights = hidden @ mixer.links.outer_weight[m] + mixer.links.outer_bias[m]
        factor = torch.eye(n, dtype=torch.float64)
        for i in range(n):
            start, end = document_of(i, n, document_ids)
            for k, distance in enumerate(distances(config, m)):
                j = i + distance
                if not config.is_causal:
                    j = start + (j - start) % (end - start)
                if start <= j < end:
                    factor[i, j] += weights[i, k]
        product = factor @ product
    return product


def network(inner, outer, x):
    """Linear, GELU, linear."""
    return torch.nn.functional.gelu(x @ inner.weight.T + inner.bias) @ outer.weight.T + outer.bias


def document_of(i, n, document_ids):
    """First row of the document of row i, and the first row after it."""
    start, end = i, i + 1
    if document_ids is None:
        return 0, n
    while start > 0 and document_ids[start - 1] == document_ids[i]:
        start -= 1
    while end < n and document_ids[end] == document_ids[i]:
        end += 1
    return start, end


def distances(config, m):
    """Offsets of the K links of factor m, link by link."""
    both_ways = (config.symmetric or config.protocol == "cdil") and not config.is_causal
    result = [0]
    step = 0
    while len(result) < config.links:
        distance = 2**step if config.protocol == "chord" else (step + 1) * 2**m
        if both_ways:
            result += [distance, -distance]
        else:
            result.append(-distance if config.is_causal else distance)
        step += 1
    return result
