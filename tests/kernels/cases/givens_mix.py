"""Inputs of givens_mix."""

import math

import torch

OPERATION = "givens_mix"


def make(
    batch,
    positions,
    heads,
    width,
    generator,
    orders=1,
    lengths=None,
    permuted=None,
    hard=None,
    planes=False,
    without_own=False,
):
    """`permuted`: "shared" or "each"; `hard`: "quarters", angles at multiples of pi / 2, or "large", phases of 1e4."""
    value = torch.randn(batch, positions, heads, width, 2, generator=generator)
    if planes:
        value = value.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    upper, lower = (2 * torch.randn(batch, heads, orders, positions - 1, 3, generator=generator) for _ in range(2))
    phase = 2 * torch.randn(batch, heads, positions, generator=generator)
    if hard == "quarters":
        upper, lower, phase = ((angles * 2).round() * (math.pi / 2) for angles in (upper, lower, phase))
    elif hard == "large":
        phase = 5e3 * phase
    keywords = {"lengths": None if lengths is None else torch.tensor(lengths), "without_own": without_own}
    if permuted is not None:
        shape = (batch if permuted == "each" else 1, orders, positions)
        order = torch.rand(shape, generator=generator).argsort(-1)
        keywords["permutation"] = order if permuted == "each" else order[0]
    return (value, upper, lower, phase), keywords


# name -> (arguments of make, keywords of make, whether Triton's interpreter can take it)
CASES = {
    "one": ((1, 1, 1, 1), {}, True),
    "two": ((3, 2, 1, 7), {"lengths": [2, 1, 0], "orders": 2, "permuted": "shared"}, True),
    "three": ((2, 3, 1, 1), {"permuted": "each"}, True),
    "none-valid": ((2, 5, 1, 3), {"lengths": [0, 0], "permuted": "shared"}, True),
    "prime": ((2, 19, 1, 7), {"lengths": [19, 12]}, True),
    "orders": ((2, 18, 1, 5), {"lengths": [18, 11], "orders": 2, "permuted": "each"}, True),
    "quarters": ((1, 18, 1, 3), {"hard": "quarters"}, True),
    "several-blocks": ((1, 3, 1, 20), {}, True),
    "large": ((1, 34, 1, 2), {"hard": "large"}, True),
    "planes": ((1, 18, 2, 8), {"planes": True, "lengths": [13]}, True),
    # Blocks of chunks, of which Triton's interpreter takes two, and the last one is cut.
    "without-own": ((1, 66, 1, 18), {"lengths": [60], "planes": True, "without_own": True}, True),
    "without-own-permuted": ((2, 9, 1, 3), {"lengths": [9, 5], "permuted": "each", "without_own": True}, True),
    "many-orders": ((2, 34, 2, 17), {"lengths": [34, 19], "orders": 3, "permuted": "shared"}, False),
    "wide": ((1, 40, 1, 100), {"orders": 2}, False),
    "wide-planes": ((2, 33, 1, 64), {"planes": True, "lengths": [33, 30]}, False),
    "long": ((1, 4097, 1, 3), {"hard": "large"}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1, 2, 3)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    arguments, keywords, _ = CASES[name]
    return make(*arguments, generator, **keywords)
