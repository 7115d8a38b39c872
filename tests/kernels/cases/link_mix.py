"""Inputs of link_mix."""

import torch

OPERATION = "link_mix"


def make(batch, positions, width, factors, links, generator, lengths=None, wrap=True, documents=False, offsets=None):
    value = torch.randn(batch, positions, width, generator=generator)
    weights = torch.randn(batch, positions, factors, links, generator=generator) / links
    if offsets is None:
        offsets = [[0, *(2**link for link in range(links - 1))] for _ in range(factors)]
    keywords = {"wrap": wrap, "lengths": None if lengths is None else torch.tensor(lengths)}
    if documents:
        keywords["document_ids"] = (torch.rand(batch, positions, generator=generator) < 0.2).cumsum(1) * 3 - 5
    return (value, weights, torch.tensor(offsets)), keywords


# name -> (arguments of make, whether Triton's interpreter can take it)
CASES = {
    "one": ((1, 1, 1, 1, 2), {}, True),
    "two": ((2, 2, 7, 2, 3), {"lengths": [2, 1]}, True),
    "three": ((3, 3, 4, 2, 3), {"lengths": [3, 0, 2]}, True),
    "prime": ((2, 61, 17, 3, 5), {"lengths": [61, 40]}, True),
    "dropped": ((2, 33, 40, 3, 5), {"lengths": [33, 12], "wrap": False}, True),
    "backward-links": ((1, 50, 8, 2, 3), {"wrap": False, "offsets": [[0, -1, -2], [0, -4, -8]]}, True),
    "both-ways": ((1, 50, 8, 2, 3), {"offsets": [[0, 1, -1], [0, 70, -130]]}, True),
    "documents": ((2, 100, 33, 3, 6), {"lengths": [100, 77], "documents": True}, True),
    "documents-dropped": ((2, 100, 33, 3, 6), {"documents": True, "wrap": False}, True),
    "long": ((1, 4097, 40, 2, 13), {}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    arguments, keywords, _ = CASES[name]
    return make(*arguments, generator, **keywords)
