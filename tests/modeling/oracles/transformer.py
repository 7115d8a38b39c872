"""Softmax attention with an explicit N x N matrix in float64."""

import math

import torch

TINY = {}
VARIANTS = {"causal": {"is_causal": True}, "paper": {"block_style": "paper"}}


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
        scores = q @ k.T / math.sqrt(size)
        if mixer.config.is_causal:
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
        if document_ids is not None:
            scores = scores.masked_fill(document_ids[:, None] != document_ids, -math.inf)
        mixed.append(torch.softmax(scores, dim=1) @ v)
    return torch.cat(mixed, dim=1) @ attention.output.weight.T + attention.output.bias
