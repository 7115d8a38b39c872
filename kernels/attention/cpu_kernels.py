"""The linear attentions in C++ (cpu.cpp)."""

import torch

from ..build import INTEGERS, REALS, SIZE, Function

ROWS = (*[REALS] * 3, *[INTEGERS] * 2)  # query, key, value, lengths, document_ids
FORWARD = (*ROWS, REALS, *[SIZE] * 6)  # the sizes are B, H, N, m, d, and whether causal
BACKWARD = (REALS, *ROWS, *[REALS] * 3, *[SIZE] * 6)
FUNCTIONS = {
    "feature_attention": Function("attention/cpu.cpp", "forward", FORWARD, "LOGARITHMS"),
    "feature_attention_backward": Function("attention/cpu.cpp", "backward", BACKWARD, "LOGARITHMS"),
    "linear_attention": Function("attention/cpu.cpp", "forward", FORWARD),
    "linear_attention_backward": Function("attention/cpu.cpp", "backward", BACKWARD),
}


def attention(query, key, value, lengths, document_ids, causal, logarithms):
    """The operation on query and key (B, H, N, m) and value (B, H, N, d); see operator.py."""
    result = torch.empty_like(value)
    run = FUNCTIONS["feature_attention" if logarithms else "linear_attention"]
    run(query, key, value, lengths, document_ids, result, *query.shape, value.shape[3], causal)
    return result


def attention_backward(gradient, query, key, value, lengths, document_ids, causal, logarithms):
    """Gradients of query, key and value."""
    gradients = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    run = FUNCTIONS["feature_attention_backward" if logarithms else "linear_attention_backward"]
    sizes = *query.shape, value.shape[3], causal
    run(gradient, query, key, value, lengths, document_ids, *gradients, *sizes)
    return gradients
