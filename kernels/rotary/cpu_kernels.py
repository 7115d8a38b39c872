"""Heads with rotary positions on CPUs, in C++ (cpu.cpp): one pass each way, where plain PyTorch takes three over
queries and keys, and one more to put the gradients together.
"""

import torch

from ..build import REALS, SIZE, WIDE_REALS, Function

_TYPES = (*[REALS] * 4, *[SIZE] * 4, WIDE_REALS, WIDE_REALS, SIZE)
FUNCTIONS = {
    "rotary_heads": Function("rotary/cpu.cpp", "forward", _TYPES),
    "rotary_heads_backward": Function("rotary/cpu.cpp", "backward", _TYPES),
}


def rotary_heads(projected, cosine, sine):
    """See operator.py."""
    batch, positions, parts, heads, features = projected.shape
    read = projected.to(_computed_in(projected.dtype))
    made = [read.new_empty(batch, positions, heads, features) for _ in range(parts)]
    _turn("rotary_heads", read, made, cosine, sine)
    return tuple(part.to(projected.dtype) for part in made)


def rotary_heads_backward(query, key, value, cosine, sine):
    """See operator.py."""
    batch, positions, heads, features = query.shape
    read = [part.to(_computed_in(query.dtype)) for part in (query, key, value)]
    made = read[0].new_empty(batch, positions, len(read), heads, features)
    _turn("rotary_heads_backward", made, read, cosine, sine)
    return made.to(query.dtype)


def _computed_in(dtype):
    """The dtype that C++ reads and writes: not fp16, which compilers for CPUs may not know."""
    return torch.float32 if dtype == torch.float16 else dtype


def _turn(function, projected, heads, cosine, sine):
    batch, positions, _, count, features = projected.shape
    samples_differ = cosine.dim() == 4
    FUNCTIONS[function](projected, *heads, batch, positions, count, features, cosine, sine, samples_differ)
