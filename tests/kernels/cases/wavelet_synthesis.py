"""Inputs of wavelet_synthesis."""

import torch

OPERATION = "wavelet_synthesis"


def make(batch, positions, width, taps, levels, generator, lengths=None, shared=False):
    bands = torch.randn(batch * -(-positions // 2**levels) * 2**levels, width, generator=generator)
    filters = torch.randn((taps,) if shared else (taps, width), generator=generator) / taps**0.5
    return (bands, filters, levels, batch, positions), {"lengths": None if lengths is None else torch.tensor(lengths)}


# name -> (arguments of make, whether Triton's interpreter can take it)
CASES = {
    "one": ((1, 1, 1, 2, 1), {}, True),
    "two-with-more-taps-than-rows": ((2, 2, 7, 6, 2), {"lengths": [2, 1]}, True),
    "three-shared-taps": ((3, 3, 4, 4, 1), {"lengths": [3, 0, 2], "shared": True}, True),
    "all-valid": ((2, 7, 3, 4, 2), {}, True),
    "none-valid": ((2, 5, 3, 4, 2), {"lengths": [0, 0]}, False),
    "prime": ((2, 37, 17, 4, 2), {"lengths": [37, 22]}, True),
    "even": ((1, 64, 64, 16, 1), {}, False),
    "long-filter": ((2, 33, 33, 40, 2), {"lengths": [5, 33]}, False),
    "wide": ((2, 37, 100, 10, 3), {"lengths": [37, 36]}, False),
    "long": ((1, 4097, 33, 16, 3), {}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    arguments, keywords, _ = CASES[name]
    return make(*arguments, generator, **keywords)
