"""Inputs of spectral_filter."""

import torch

OPERATION = "spectral_filter"


def make(batch, positions, width, period, generator, segments=None, lengths=None, beside=False):
    x = torch.randn(batch, positions, width, generator=generator)
    spectrum = torch.randn(period // 2 + 1, width, 2, generator=generator)
    return (x, spectrum, period), {
        "segments": segments,
        "lengths": None if lengths is None else torch.tensor(lengths),
        "beside": beside,
    }


# name -> (arguments of make, keywords of make, whether Triton's interpreter can take it)
CASES = {
    "one": ((1, 1, 1, 1), {}, True),
    "two": ((2, 2, 7, 8), {"lengths": [2, 1]}, True),
    "three": ((3, 3, 4, 5), {"segments": 2, "lengths": [3, 0, 2]}, True),
    "none-valid": ((2, 5, 3, 8), {"lengths": [0, 0]}, True),
    "beside": ((2, 21, 12, 40), {"segments": 4, "lengths": [21, 6], "beside": True}, True),
    "blocks-of-channels": ((2, 9, 44, 17), {"segments": 2}, True),
    "short": ((2, 5, 6, 27), {"segments": 3, "lengths": [5, 2], "beside": True}, True),
    "prime": ((2, 61, 64, 128), {"segments": 8, "lengths": [61, 40]}, False),
    "wide": ((1, 99, 100, 99), {}, False),
    "longer-period": ((2, 37, 6, 200), {"segments": 1, "lengths": [37, 0]}, False),
    "long": ((1, 4097, 1, 4097), {}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    arguments, keywords, _ = CASES[name]
    return make(*arguments, generator, **keywords)
