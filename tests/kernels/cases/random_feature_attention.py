"""Inputs of random_feature_attention."""

import torch

OPERATION = "random_feature_attention"


def make(shape, generator, lengths=None, causal=False, documents=0.0, waves=None, size=1.0):
    """`shape` is (B, H, N, d, m, c); `documents` is how often one begins, `size` that of the queries and keys.

    `waves` is (samples, heads, width) of waves of the rows, or with documents of the places in them; None: no biases.
    """
    batch, heads, positions, width, features, channels = shape
    # Heads lie side by side, as a layer's projection has them.
    query, key = size * torch.randn(2, batch, positions, heads, width, generator=generator).transpose(2, 3)
    value = torch.randn(batch, positions, heads, channels, generator=generator).transpose(1, 2)
    tensors = [query, key, value, torch.randn(features, width, generator=generator), None, None]
    keywords = {"causal": causal, "lengths": None if lengths is None else torch.tensor(lengths)}
    if waves is not None:
        tensors[4] = torch.randn(*waves[:2], positions, waves[2], generator=generator)
        tensors[5] = torch.randn(2, heads, waves[2], features, generator=generator)
    if documents:
        begins = torch.rand(batch, positions, generator=generator) < documents
        keywords["document_ids"] = begins.cumsum(1) * 3 - 5
        begins[:, 0] = True
        row = torch.arange(positions)
        keywords["positions"] = row - torch.where(begins, row, 0).cummax(1).values
    return tuple(tensors), keywords


# name -> (shape, keywords of make, whether Triton's interpreter can take it)
CASES = {
    "one": ((1, 1, 1, 1, 1, 1), {"waves": (1, 1, 1)}, True),
    "two": ((2, 2, 2, 5, 3, 7), {"lengths": [2, 1], "waves": (2, 2, 4)}, True),
    "three": ((3, 1, 3, 4, 5, 6), {"lengths": [3, 0, 2], "waves": (1, 1, 2)}, True),
    "none-valid": ((2, 1, 5, 3, 2, 2), {"lengths": [0, 0]}, True),
    "without-biases": ((2, 2, 19, 3, 5, 4), {"lengths": [19, 12]}, True),
    "prime": ((2, 3, 37, 5, 17, 7), {"lengths": [37, 20], "waves": (1, 1, 6)}, True),
    "prime-causal": ((2, 1, 37, 5, 17, 7), {"lengths": [37, 20], "waves": (1, 1, 6), "causal": True}, True),
    "waves-of-heads": ((2, 3, 11, 4, 6, 5), {"waves": (1, 3, 4)}, True),
    "waves-of-samples": ((2, 3, 11, 4, 6, 5), {"waves": (2, 1, 4), "lengths": [9, 11]}, True),
    "documents": ((2, 2, 37, 4, 6, 5), {"lengths": [37, 20], "waves": (1, 1, 4), "documents": 0.2}, True),
    "documents-of-heads": ((2, 2, 19, 4, 6, 5), {"waves": (1, 2, 4), "documents": 0.7, "causal": True}, True),
    "wide": ((2, 2, 19, 37, 20, 9), {"lengths": [19, 12], "waves": (1, 1, 4)}, True),
    "wide-causal": ((2, 2, 19, 37, 20, 9), {"waves": (1, 2, 4), "documents": 0.2, "causal": True}, True),
    "far": ((1, 2, 23, 4, 6, 5), {"waves": (1, 1, 4), "size": 5.0}, True),
    "full": ((2, 2, 130, 64, 64, 64), {"lengths": [130, 77], "waves": (1, 1, 64)}, False),
    "full-documents": ((2, 2, 130, 64, 64, 64), {"lengths": [130, 77], "waves": (1, 1, 64), "documents": 0.05}, False),
    "long": ((1, 1, 4097, 2, 3, 1), {"waves": (1, 1, 4), "lengths": [4096]}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1, 2, 3, 4, 5)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    shape, keywords, _ = CASES[name]
    return make(shape, generator, **keywords)
