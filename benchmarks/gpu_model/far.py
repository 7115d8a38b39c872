"""Calls of the Triton kernels on tensors of more than 2^31 elements, for addresses.py."""

from collections.abc import Iterator
from functools import partial

from gpu_model.launches import (
    Case,
    attention,
    givens,
    lifting,
    links,
    mapped,
    near,
    random,
    rotary,
    spectral,
    tokens,
    wavelet,
)


def _far_cases() -> Iterator[Case]:
    """Every kernel: many short samples, with narrow heads where what heads have is to be large; many channels, where a
    program goes through all samples; and heads of one long sample, which is cut into pieces.
    """
    many, wide = (40000, 64), (640, 64, 1 << 17)
    yield Case("links", partial(links, (*many, 1024), 6, 33, True, True))
    yield Case("links-factors", partial(links, (*many, 64), 30, 33, True, True))
    yield Case("links-alone", partial(links, (*many, 1024), 6, 33, False, False))
    yield Case("givens", partial(givens, (*many, 8, 64), 1, False, True, True))
    yield Case("givens-pairs", partial(givens, (*many, 1200, 4), 1, False, False, False))
    yield Case("givens-permuted", partial(givens, (*many, 8, 64), 2, True, True, False))
    yield Case("tokens", partial(tokens, (*many, 1200, 4), 3, True))
    yield Case("near", partial(near, (40000, 16, 64, 64), 9, 4, True))
    yield Case("mapped", partial(mapped, (40000, 16, 64, 64), "elu"))
    yield Case("mapped-pieces", partial(mapped, (1, 3, 4_400_000, 256), "relu"))
    for of_each in (False, True):
        yield Case(f"rotary-{of_each}", partial(rotary, (*many, 16, 64), of_each))
    yield Case("spectral", partial(spectral, wide, 8, 64, True))
    yield Case("wavelet", partial(wavelet, wide, 16, 1))
    yield Case("lifting", partial(lifting, wide, 16, 1))
    for causal in (True, False):
        kind = "causal" if causal else "whole"
        for operation in ("feature_attention", "linear_attention"):
            yield Case(f"{operation}-{kind}", partial(attention, operation, causal, (40000, 16, 64, 64, 64), True))
        yield Case(f"random-{kind}", partial(random, (2560, 16, 1024, 64, 64), True, causal=causal))
        call = partial(random, (2560, 16, 1024, 64, 64), False, causal=causal, of_each=True)
        yield Case(f"random-{kind}-each", call)
        for documents in (True, False):
            call = partial(attention, "feature_attention", causal, (1, 3, 4_400_000, 256, 256), documents)
            yield Case(f"pieces-{kind}-{'documents' if documents else 'alone'}", call)
        call = partial(attention, "feature_attention", causal, (1, 1, 8_800_000, 256, 256), True)
        yield Case(f"pieces-{kind}-one-head", call)


FAR = {case.name: case for case in _far_cases()}
