"""Inputs of lifting_analysis."""

import torch

OPERATION = "lifting_analysis"


def make(batch, positions, width, taps, levels, generator, lengths=None, scale=1.0):
    x = scale * torch.randn(batch, positions, width, generator=generator)
    steps = [torch.randn(count, width, generator=generator) / count**0.5 if count else None for count in taps]
    return (x, *steps, levels), {"lengths": None if lengths is None else torch.tensor(lengths)}


# name -> (arguments of make, whether Triton's interpreter can take it)
CASES = {
    "one-fixed": ((1, 1, 1, (0, 0), 1), {}, True),
    "two-with-more-taps-than-rows": ((2, 2, 7, (6, 5), 2), {"lengths": [2, 1]}, True),
    "three": ((3, 3, 4, (1, 4), 1), {"lengths": [3, 0, 2]}, True),
    "all-valid": ((2, 7, 3, (3, 2), 2), {}, True),
    "none-valid": ((2, 5, 3, (2, 2), 2), {"lengths": [0, 0]}, False),
    "prime": ((2, 37, 5, (4, 3), 2), {"lengths": [37, 23]}, True),
    "prime-fixed": ((2, 61, 17, (0, 0), 3), {"lengths": [61, 39]}, True),
    "steep": ((1, 64, 64, (4, 4), 1), {"scale": 80.0}, False),
    "wide": ((2, 37, 100, (10, 10), 2), {"lengths": [37, 36]}, False),
    # More taps than a block of rows has, and several strips of several blocks.
    "strips": ((2, 150, 5, (18, 3), 2), {"lengths": [150, 97]}, True),
    "strips-fixed": ((2, 150, 5, (0, 0), 1), {"lengths": [150, 97]}, True),
    "long": ((1, 4097, 33, (3, 8), 3), {}, False),
    "long-fixed": ((1, 4097, 33, (0, 0), 3), {}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1, 2)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    arguments, keywords, _ = CASES[name]
    return make(*arguments, generator, **keywords)
