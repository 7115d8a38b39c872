"""Inputs of feature_map_attention."""

import torch

OPERATION = "feature_map_attention"


def make(shape, generator, feature_map, lengths=None, size=1.0):
    """`shape` is (B, H, N, d, c); `size` is that of queries and keys."""
    batch, heads, positions, width, channels = shape
    # Heads lie side by side, as a layer's projection has them.
    query, key = size * torch.randn(2, batch, positions, heads, width, generator=generator).transpose(2, 3)
    value = torch.randn(batch, positions, heads, channels, generator=generator).transpose(1, 2)
    return (query, key, value, feature_map), {"lengths": None if lengths is None else torch.tensor(lengths)}


# name -> (shape, keywords of make, whether Triton's interpreter can take it)
CASES = {
    # Features are one, so that rounding does not hide gradients that are zero.
    "one": ((1, 1, 1, 1, 1), {"feature_map": "elu", "size": 0.0}, True),
    "two": ((2, 2, 2, 5, 7), {"feature_map": "relu", "lengths": [2, 1]}, True),
    "three": ((3, 1, 3, 4, 6), {"feature_map": "elu", "lengths": [3, 0, 2]}, True),
    "none-valid": ((2, 1, 5, 3, 2), {"feature_map": "elu", "lengths": [0, 0]}, True),
    "prime": ((2, 3, 37, 17, 7), {"feature_map": "elu", "lengths": [37, 20]}, True),
    "prime-relu": ((2, 3, 37, 17, 7), {"feature_map": "relu", "lengths": [37, 20]}, True),
    "pieces": ((1, 1, 61, 5, 4), {"feature_map": "elu"}, True),
    "pieces-relu": ((2, 1, 61, 5, 4), {"feature_map": "relu", "lengths": [61, 40]}, True),
    # Several blocks of channels, whose shares of gradients are added up.
    "wide": ((1, 2, 11, 20, 70), {"feature_map": "elu", "lengths": [9]}, True),
    "far": ((1, 2, 23, 6, 5), {"feature_map": "elu", "size": 30.0}, True),
    "far-relu": ((1, 2, 23, 6, 5), {"feature_map": "relu", "size": 30.0}, True),
    "full": ((2, 2, 130, 64, 64), {"feature_map": "elu", "lengths": [130, 77]}, False),
    "long": ((1, 1, 4097, 3, 2), {"feature_map": "elu", "lengths": [4096]}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1, 2)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    shape, keywords, _ = CASES[name]
    return make(shape, generator, **keywords)
