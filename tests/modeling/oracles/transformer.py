"""Softmax attention with an explicit N x N matrix in float64."""

import math

import torch

TINY = {}
VARIANTS = {
    "causal": {"is_causal": True},
    "paper": {"block_style": "paper"},
    "learned": {"position_embedding_type": "learned"},
    "theta": {"rope_theta": 50.0},
}


def oracle(mixer, x, document_ids=None, embeddings=None, coordinates=None):
    """One sample x (N, D), all valid -> (N, D)."""
    attention = mixer.attention
    n, width = x.shape
    heads = mixer.config.num_attention_heads
    size = width // heads
    query, key, value = (x @ attention.projection.weight.T + attention.projection.bias).split(width, dim=1)
    mixed = []
    for head in range(heads):
        q, k, v = (part[:, head * size : (head + 1) * size] for part in (query, key, value))
        if mixer.config.position_embedding_type == "rope":
            turns = rotations(document_ids, n, size, mixer.config.rope_theta)
            q, k = (torch.einsum("nij,nj->ni", turns, part) for part in (q, k))
        scores = q @ k.T / math.sqrt(size)
        if mixer.config.is_causal:
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
        if document_ids is not None:
            scores = scores.masked_fill(document_ids[:, None] != document_ids, -math.inf)
        mixed.append(torch.softmax(scores, dim=1) @ v)
    return torch.cat(mixed, dim=1) @ attention.output.weight.T + attention.output.bias


def rotations(document_ids, n, size, theta):
    """A matrix (n, d, d) for each token (RoFormer, eq. 15): the pair (i, i + d / 2) turns by m theta^(-2 i / d)."""
    matrices = torch.zeros(n, size, size, dtype=torch.float64)
    position = 0
    for token in range(n):
        if token and document_ids is not None and document_ids[token] != document_ids[token - 1]:
            position = 0
        for pair in range(size // 2):
            angle = position * theta ** (-2 * pair / size)
            first, second = pair, pair + size // 2
            matrices[token, first, first] = matrices[token, second, second] = math.cos(angle)
            matrices[token, first, second], matrices[token, second, first] = -math.sin(angle), math.sin(angle)
        position += 1
    return matrices
