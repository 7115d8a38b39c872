"""Inputs of token_givens_mix."""

import math

import torch

OPERATION = "token_givens_mix"


def make(
    shape, generator, orders=1, terms=3, lengths=None, documents=0.0, permuted=False, planes=False, without_own=False
):
    """`shape` is (B, N, H, d), `terms` the coefficients of a head, `documents` how often one begins."""
    batch, positions, heads, _ = shape
    value = torch.randn(*shape, 2, generator=generator)
    if planes:
        value = value.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    count = 1 + 6 * orders
    drawn = torch.randn(batch, positions, heads, count, generator=generator)
    coefficients = torch.randn(heads, terms, generator=generator) if terms else None
    ranges = torch.rand(heads, count, generator=generator) + 0.5
    centres = math.pi * torch.rand(heads, count, generator=generator)
    keywords = {"lengths": None if lengths is None else torch.tensor(lengths), "without_own": without_own}
    if documents:
        keywords["begins"] = torch.rand(batch, positions, generator=generator) < documents
        keywords["begins"][:, :1] = True
    if permuted:
        keywords["permutation"] = torch.rand(orders, positions, generator=generator).argsort(-1)
    return (value, drawn, coefficients, centres, ranges), keywords


# name -> (shape, keywords of make, whether Triton's interpreter can take it)
CASES = {
    "one": ((1, 1, 1, 1), {}, True),
    "two": ((3, 2, 1, 7), {"lengths": [2, 1, 0], "terms": 2}, True),
    "three": ((2, 3, 3, 1), {"documents": 0.5}, True),
    "none-valid": ((2, 5, 1, 3), {"lengths": [0, 0], "documents": 0.3}, True),
    "prime": ((2, 19, 1, 7), {"lengths": [19, 12], "planes": True, "without_own": True}, True),
    "documents": ((2, 37, 3, 5), {"lengths": [37, 20], "documents": 0.2, "planes": True, "without_own": True}, True),
    "eigenvalues": ((1, 18, 2, 3), {"terms": 0, "documents": 0.3}, True),
    "many-terms": ((1, 18, 3, 3), {"terms": 7}, True),
    "orders": ((2, 18, 1, 5), {"lengths": [18, 11], "orders": 2, "permuted": True, "documents": 0.2}, True),
    "wide": ((2, 130, 9, 32), {"lengths": [130, 77], "planes": True, "without_own": True}, False),
    "long": ((1, 4097, 1, 3), {"documents": 0.01}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1, 2)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    shape, keywords, _ = CASES[name]
    return make(shape, generator, **keywords)
