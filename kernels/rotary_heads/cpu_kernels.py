"""Heads with rotary positions on CPUs, in C++ (cpu.cpp): one pass each way, where plain PyTorch takes three over
queries and keys, and one more to put the gradients together.
"""

from ..build import REALS, SIZE, WIDE_REALS, Function

_TYPES = (*[REALS] * 4, *[SIZE] * 4, WIDE_REALS, WIDE_REALS, SIZE)
FUNCTIONS = {
    "rotary_heads": Function("rotary_heads/cpu.cpp", "forward", _TYPES),
    "rotary_heads_backward": Function("rotary_heads/cpu.cpp", "backward", _TYPES),
}


def rotary_heads(projected, cosine, sine):
    """See operator.py."""
    batch, positions, parts, heads, features = projected.shape
    made = [projected.new_empty(batch, positions, heads, features) for _ in range(parts)]
    _turn("rotary_heads", projected, made, cosine, sine)
    return tuple(made)


def rotary_heads_backward(query, key, value, cosine, sine):
    """See operator.py."""
    batch, positions, heads, features = query.shape
    made = query.new_empty(batch, positions, 3, heads, features)
    _turn("rotary_heads_backward", made, (query, key, value), cosine, sine)
    return made


def _turn(function, projected, heads, cosine, sine):
    batch, positions, _, count, features = projected.shape
    samples_differ = cosine.dim() == 4
    FUNCTIONS[function](projected, *heads, batch, positions, count, features, cosine, sine, samples_differ)
