"""Inputs of link_mix."""

import torch

OPERATION = "link_mix"


def make(batch, positions, width, factors, links, generator, lengths=None, wrap=True, documents=False, offsets=None):
    value = torch.randn(batch, positions, width, generator=generator)
    weights = torch.randn(batch, positions, factors, links, generator=generator) / links
    if offsets is None:
        # Paramixer's, around sequences of up to 8192 rows and again.
        offsets = [[0, *(2 ** (link % 13) for link in range(links - 1))] for _ in range(factors)]
    keywords = {"wrap": wrap, "lengths": None if lengths is None else torch.tensor(lengths)}
    if documents:
        keywords["document_ids"] = (torch.rand(batch, positions, generator=generator) < 0.2).cumsum(1) * 3 - 5
    return (value, weights, torch.tensor(offsets)), keywords


# name -> (arguments of make, whether Triton's interpreter can take it)
CASES = {
    "one": ((1, 1, 1, 1, 2), {}, True),
    "two": ((2, 2, 7, 2, 3), {"lengths": [2, 1]}, True),
    "three": ((3, 3, 4, 2, 3), {"lengths": [3, 0, 2]}, True),
    "none-valid": ((1, 5, 3, 2, 2), {"lengths": [0]}, True),
    "blocks": ((1, 35, 40, 2, 2), {}, True),
    "ragged": ((2, 17, 5, 3, 4), {"lengths": [17, 12]}, True),
    "dropped": ((2, 17, 5, 2, 4), {"lengths": [17, 12], "wrap": False}, True),
    "backward-links": ((1, 20, 8, 2, 2), {"wrap": False, "offsets": [[0, -1], [-4, -30]]}, True),
    "both-ways": ((1, 20, 8, 2, 3), {"offsets": [[0, 1, -1], [0, 70, -130]]}, True),
    "documents": ((2, 20, 5, 2, 3), {"lengths": [20, 13], "documents": True}, True),
    "documents-both-ways": ((2, 20, 5, 2, 3), {"documents": True, "offsets": [[0, 3, -1], [0, 70, -130]]}, True),
    "documents-dropped": ((1, 20, 5, 2, 3), {"documents": True, "wrap": False}, True),
    "documents-dropped-both-ways": (
        (2, 20, 5, 2, 3),
        {"lengths": [20, 13], "documents": True, "wrap": False, "offsets": [[0, 3, -1], [0, 70, -2]]},
        True,
    ),
    "prime": ((2, 61, 64, 5, 7), {"lengths": [61, 40]}, False),
    "many-links": ((2, 50, 100, 2, 37), {"lengths": [50, 41], "wrap": False}, False),
    "many-documents": ((2, 300, 100, 3, 8), {"lengths": [300, 277], "documents": True}, False),
    "groups-of-blocks": ((3, 30, 200, 2, 4), {"lengths": [30, 0, 17]}, False),
    "long": ((1, 4097, 7, 1, 13), {}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    arguments, keywords, _ = CASES[name]
    return make(*arguments, generator, **keywords)
