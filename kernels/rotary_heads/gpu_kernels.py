"""Heads with rotary positions in Triton: one launch each way, where plain PyTorch takes ten."""

import triton
from triton import language as tl

from ..common.exact_gpu import exact
from ..common.grids import checked
from ..common.interpreter import interpreted

# Tokens of a program, which goes through their heads: their angles are read once.
TOKENS = 32 if interpreted() else 16


def rotary_heads(projected, cosine, sine):
    """See operator.py."""
    batch, positions, parts, heads, features = projected.shape
    made = [projected.new_empty(batch, positions, heads, features) for _ in range(parts)]
    _turn(projected, made, cosine, sine, False)
    return tuple(made)


def rotary_heads_backward(query, key, value, cosine, sine):
    """See operator.py."""
    batch, positions, heads, features = query.shape
    made = query.new_empty(batch, positions, 3, heads, features)
    _turn(made, (query, key, value), cosine, sine, True)
    return made


def _turn(projected, heads, cosine, sine, back):
    batch, positions, _, count, features = projected.shape
    if projected.numel() == 0:
        return
    tokens, half = batch * positions, features // 2
    pairs = triton.next_power_of_2(half)
    turn_heads[checked(triton.cdiv(tokens, TOKENS))](
        *(projected, *heads, cosine, sine, tokens, cosine.numel() // features, count, half, back, pairs, TOKENS)
    )


@triton.jit
def turn_heads(projected, query, key, value, cosine, sine, tokens, angles, heads, HALF: tl.constexpr,
               BACK: tl.constexpr, PAIRS: tl.constexpr, TOKENS: tl.constexpr):  # fmt: skip
    """Query, key and value (tokens, H, d) of projected (tokens, 3, H, d), or back; the angles repeat after so many
    tokens.
    """
    number = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)[:, None]
    pair = tl.arange(0, PAIRS)[None, :]
    exists = (number < tokens) & (pair < HALF)
    token, angle = number.to(tl.int64), (number % angles).to(tl.int64) * (2 * HALF) + pair
    # Of both features of a pair the cosine is one, and the sines differ in their signs.
    along, across = tl.load(cosine + angle, exists, 0), tl.load(sine + angle + HALF, exists, 0)
    if BACK:
        across = -across
    width = heads * 2 * HALF
    own = token * width + pair
    joint = projected + token * 3 * width + pair
    for head in range(heads):
        at = head * 2 * HALF
        _turn_pairs(joint + at, query + own + at, along, across, exists, HALF, BACK)
        _turn_pairs(joint + width + at, key + own + at, along, across, exists, HALF, BACK)
        for half in tl.static_range(2):
            here, there = joint + 2 * width + at + half * HALF, value + own + at + half * HALF
            if BACK:
                tl.store(here, tl.load(there, exists), exists)
            else:
                tl.store(there, tl.load(here, exists), exists)


@triton.jit
def _turn_pairs(joint, apart, along, across, exists, HALF: tl.constexpr, BACK: tl.constexpr):
    """Pairs (i, HALF + i) at `joint` turned and stored `apart`, or those turned back and stored at `joint`."""
    come, go = joint, apart
    if BACK:
        come, go = apart, joint
    first, second = exact(tl.load(come, exists, 0)), exact(tl.load(come + HALF, exists, 0))
    tl.store(go, first * along - second * across, exists)
    tl.store(go + HALF, second * along + first * across, exists)
