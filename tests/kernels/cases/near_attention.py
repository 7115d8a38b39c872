"""Inputs of near_attention."""

import torch

OPERATION = "near_attention"


def make(shape, places, before, generator, lengths=None, documents=0.0, far=1.0, joined=False):
    """`shape` is (B, H, N, d, c); `documents` is how often one begins; `far`: how much scores differ by their places;
    `joined`: heads lie side by side, and queries, keys and values between each other."""
    batch, heads, positions, width, channels = shape
    if joined:
        projected = torch.randn(batch, positions, 3, heads, width, generator=generator)
        query, key, value = (part.transpose(1, 2) for part in projected.unbind(2))
    else:
        query, key = torch.randn(2, batch, heads, positions, width, generator=generator)
        value = torch.randn(batch, heads, positions, channels, generator=generator)
    estimate = torch.randn(value.shape, generator=generator)
    bias, share_logit = far * torch.randn(heads, places, generator=generator), torch.randn(heads, generator=generator)
    keywords = {"lengths": None if lengths is None else torch.tensor(lengths)}
    if documents:
        keywords["document_ids"] = (torch.rand(batch, positions, generator=generator) < documents).cumsum(1) * 3 - 5
    return (query, key, value, estimate, bias, share_logit, before), keywords


# name -> (arguments of make, keywords of make, whether Triton's interpreter can take it)
CASES = {
    "one": (((1, 1, 1, 1, 1), 1, 0), {}, True),
    "two": (((2, 2, 2, 5, 7), 5, 4), {"lengths": [2, 0], "documents": 0.5}, True),
    "three": (((3, 1, 3, 4, 1), 3, 1), {"lengths": [3, 0, 2]}, True),
    "none-valid": (((2, 1, 5, 3, 2), 3, 1), {"lengths": [0, 0]}, True),
    "prime": (((2, 1, 19, 3, 5), 5, 2), {"lengths": [19, 12]}, True),
    "documents": (((1, 2, 19, 4, 4), 5, 2), {"lengths": [17], "documents": 0.2, "joined": True}, True),
    "far": (((1, 1, 11, 4, 4), 7, 3), {"far": 50.0}, True),
    "causal": (((1, 1, 9, 4, 4), 3, 2), {}, True),
    "blocks": (((2, 2, 130, 16, 16), 9, 4), {"lengths": [130, 77], "documents": 0.05}, False),
    "wide-reach": (((1, 1, 70, 8, 8), 101, 50), {"lengths": [66]}, False),
    "long": (((1, 1, 4097, 3, 2), 9, 4), {"lengths": [4096]}, False),
}
# Arguments that have a gradient.
FLOATING = (0, 1, 2, 3, 4, 5)


def inputs(name, generator):
    """(arguments, keywords) of a case, floating ones in fp32."""
    arguments, keywords, _ = CASES[name]
    return make(*arguments, generator, **keywords)
