"""The linear attentions in C++ (cpu.cpp)."""

import torch

from ..build import INTEGERS, REALS, SIZE, Function
from .feature_maps import FEATURE_MAPS

ROWS = (*[REALS] * 3, *[INTEGERS] * 2)  # query, key, value, lengths, document_ids
FORWARD = (*ROWS, REALS, *[SIZE] * 6)  # the sizes are B, H, N, m, d, and whether causal
BACKWARD = (REALS, *ROWS, *[REALS] * 3, *[SIZE] * 6)
FUNCTIONS = {
    "feature_attention": Function("attention/cpu.cpp", "forward", FORWARD, "LOGARITHMS"),
    "feature_attention_backward": Function("attention/cpu.cpp", "backward", BACKWARD, "LOGARITHMS"),
    "linear_attention": Function("attention/cpu.cpp", "forward", FORWARD),
    "linear_attention_backward": Function("attention/cpu.cpp", "backward", BACKWARD),
    **{f"{name}_attention": Function("attention/cpu.cpp", "forward", FORWARD, name.upper()) for name in FEATURE_MAPS},
    **{
        f"{name}_attention_backward": Function("attention/cpu.cpp", "backward", BACKWARD, name.upper())
        for name in FEATURE_MAPS
    },
}
# Kind of features -> whose functions take them.
OF_KIND = {"given": "linear", "logarithms": "feature"}


def attention(query, key, value, lengths, document_ids, causal, kind):
    """The operation on query and key (B, H, N, m) and value (B, H, N, d); see operator.py."""
    result = torch.empty_like(value)
    run = FUNCTIONS[f"{OF_KIND.get(kind, kind)}_attention"]
    run(query, key, value, lengths, document_ids, result, *query.shape, value.shape[3], causal)
    return result


def attention_backward(gradient, query, key, value, lengths, document_ids, causal, kind):
    """Gradients of query, key and value."""
    gradients = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    run = FUNCTIONS[f"{OF_KIND.get(kind, kind)}_attention_backward"]
    sizes = *query.shape, value.shape[3], causal
    run(gradient, query, key, value, lengths, document_ids, *gradients, *sizes)
    return gradients
