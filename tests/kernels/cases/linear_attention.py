"""Inputs of linear_attention."""

import torch

OPERATION = "linear_attention"


def make(shape, generator, lengths=None, causal=False, documents=0.0, zeros=False, ones=False):
    """`shape` is (B, H, N, m, d); `documents` is how often one begins; `zeros`: the first head's keys are zero;
    `ones`: all features are one, so that rounding does not hide gradients that are zero."""
    batch, heads, positions, features, width = shape
    query, key = torch.randn(2, batch, heads, positions, features, generator=generator).relu() + 0.01
    if zeros:
        query, key = query - 0.01, key - 0.01
        key[:, 0] = 0.0
    if ones:
        query, key = torch.ones_like(query), torch.ones_like(key)
    value = torch.randn(batch, heads, positions, width, generator=generator)
    keywords = {"causal": causal, "lengths": None if lengths is None else torch.tensor(lengths)}
    if documents:
        keywords["document_ids"] = (torch.rand(batch, positions, generator=generator) < documents).cumsum(1) * 3 - 5
    return (query, key, value), keywords


# name -> (shape, keywords of make, whether Triton's interpreter can take it)
CASES = {
    "wider-causal": ((1, 1, 18, 3, 67), {"lengths": [11], "documents": 0.1, "causal": True}, True),
    "one": ((1, 1, 1, 1, 1), {"ones": True}, True),
    "two-causal": ((2, 2, 2, 5, 7), {"causal": True, "lengths": [2, 0]}, True),
    "three": ((3, 1, 3, 4, 1), {"lengths": [3, 0, 2]}, True),
    "none-valid": ((2, 1, 5, 3, 2), {"lengths": [0, 0], "causal": True}, True),
    "prime": ((2, 1, 61, 17, 7), {"lengths": [61, 40]}, True),
    "prime-causal": ((2, 1, 61, 17, 7), {"lengths": [61, 40], "causal": True}, True),
    "wide-causal": ((1, 2, 99, 33, 100), {"causal": True}, False),
    "full": ((2, 2, 130, 64, 64), {"lengths": [130, 77]}, False),
    "full-causal": ((2, 2, 130, 64, 64), {"lengths": [130, 77], "causal": True}, False),
    "documents": ((2, 1, 61, 8, 33), {"lengths": [61, 40], "documents": 0.1}, True),
    # Documents that begin where the pieces do that Triton cuts a head into.
    "documents-short": ((1, 1, 61, 4, 3), {"documents": 0.6}, True),
    "documents-causal": ((2, 1, 61, 8, 33), {"lengths": [61, 40], "documents": 0.1, "causal": True}, True),
    "zeros": ((1, 2, 35, 5, 4), {"zeros": True}, True),
    "zeros-causal": ((1, 2, 35, 5, 4), {"zeros": True, "causal": True}, True),
    "long": ((1, 1, 4097, 3, 2), {"causal": True, "lengths": [4096]}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1, 2)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    shape, keywords, _ = CASES[name]
    return make(shape, generator, **keywords)
