"""Inputs of feature_attention."""

import torch

OPERATION = "feature_attention"


def make(shape, generator, lengths=None, causal=False, documents=0.0, size=1.0):
    """`shape` is (B, H, N, m, d); `documents` is how often one begins; `size` that of the log-features, +-."""
    batch, heads, positions, features, width = shape
    query, key = torch.randn(2, batch, heads, positions, features, generator=generator)
    if size > 1:
        query, key = (x + size * (2 * (x > 0) - 1) for x in (query, key))
    value = torch.randn(batch, heads, positions, width, generator=generator)
    keywords = {"causal": causal, "lengths": None if lengths is None else torch.tensor(lengths)}
    if documents:
        keywords["document_ids"] = (torch.rand(batch, positions, generator=generator) < documents).cumsum(1) * 3 - 5
    return (query, key, value), keywords


# name -> (shape, keywords of make, whether Triton's interpreter can take it)
CASES = {
    "one": ((1, 1, 1, 1, 1), {}, True),
    "one-causal": ((2, 1, 1, 2, 3), {"causal": True, "lengths": [1, 0]}, True),
    "two": ((2, 2, 2, 5, 7), {"lengths": [2, 1]}, True),
    "three": ((3, 1, 3, 4, 1), {"lengths": [3, 0, 2], "causal": True}, True),
    "none-valid": ((2, 1, 5, 3, 2), {"lengths": [0, 0]}, True),
    "prime": ((2, 1, 61, 17, 7), {"lengths": [61, 40]}, True),
    "prime-causal": ((2, 1, 61, 17, 7), {"lengths": [61, 40], "causal": True}, True),
    "wide": ((1, 1, 70, 7, 100), {}, False),
    "wide-causal": ((1, 2, 99, 33, 100), {"causal": True}, False),
    "full": ((2, 2, 130, 64, 64), {"lengths": [130, 77]}, False),
    "full-causal": ((2, 2, 130, 64, 64), {"lengths": [130, 77], "causal": True}, False),
    "documents": ((2, 1, 61, 8, 33), {"lengths": [61, 40], "documents": 0.1}, True),
    # Documents that begin where the pieces do that Triton cuts a head into.
    "documents-short": ((1, 1, 61, 4, 3), {"documents": 0.6}, True),
    "documents-causal": ((2, 1, 61, 8, 33), {"lengths": [61, 40], "documents": 0.1, "causal": True}, True),
    "documents-short-causal": ((1, 1, 61, 4, 3), {"documents": 0.6, "causal": True}, True),
    "documents-long": ((1, 1, 80, 4, 3), {"documents": 0.03, "lengths": [75]}, True),
    "documents-long-causal": ((1, 1, 80, 4, 3), {"documents": 0.03, "lengths": [75], "causal": True}, True),
    "wider": ((1, 1, 18, 3, 67), {"lengths": [11], "documents": 0.1}, True),
    "wider-causal": ((1, 1, 18, 3, 67), {"lengths": [11], "documents": 0.1, "causal": True}, True),
    "far": ((1, 1, 67, 5, 4), {"size": 80.0}, True),
    "far-causal": ((1, 1, 67, 5, 4), {"size": 80.0, "causal": True}, True),
    "far-documents-long": ((1, 2, 80, 5, 4), {"size": 80.0, "documents": 0.03}, False),
    "far-documents": ((1, 2, 67, 5, 4), {"size": 80.0, "causal": True, "documents": 0.1}, False),
    # More features than a product takes at once.
    "features": ((1, 1, 37, 70, 5), {"lengths": [35]}, True),
    "features-documents": ((1, 1, 37, 70, 5), {"documents": 0.1}, True),
    "features-causal": ((1, 1, 37, 70, 5), {"lengths": [35], "causal": True}, True),
    "long": ((1, 1, 4097, 2, 1), {"causal": True, "lengths": [4096]}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1, 2)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    shape, keywords, _ = CASES[name]
    return make(shape, generator, **keywords)
