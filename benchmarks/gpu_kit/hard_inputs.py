"""Inputs on which kernels go wrong first: single rows, empty and ragged samples, odd sizes, documents, extremes, and
rows that fill several blocks."""

import math
from collections.abc import Callable

import torch

# (arguments, keywords) of an operation, floating ones in fp32.
Inputs = tuple[tuple, dict]
# Each is tried in all of them.
DTYPES = ("float32", "bfloat16", "float16")
# Empty samples among others, in odd numbers of rows.
ROWS, LENGTHS = 61, (61, 0, 40)
# Rows that fill blocks of several programs; too many for Triton's interpreter.
MANY_ROWS, MANY_LENGTHS = 1030, (1030, 777)
SCANNED_ROWS = 4200
BLOCKS = "blocks"


def _ids(batch: int, rows: int, generator: torch.Generator) -> torch.Tensor:
    """(B, N) ids of documents of about ten rows, in the middle of the first sample a long one; neither the first id nor
    their distance is 0 or 1.
    """
    begins = torch.rand(batch, rows, generator=generator) < 0.1
    begins[:1, rows // 4 : rows * 7 // 8] = False
    return begins.cumsum(1) * 3 - 5


def _keywords(lengths: tuple[int, ...] | None, **more: object) -> dict:
    return {"lengths": None if lengths is None else torch.tensor(lengths), **more}


def _attention(name: str, rows: int, lengths=None, heads=2, features=17, width=7, documents=False, far=0.0, **keywords):
    def make(generator):
        batch = len(lengths) if lengths else 1
        query, key = torch.randn(2, batch, heads, rows, features, generator=generator)
        if name == "linear_attention":
            query, key = query.relu(), key.relu()
            key[:, 0] = 0.0  # a head that has nothing to say
        if rows == 1:  # rounding must not hide gradients that are zero
            query, key = torch.zeros_like(query) + (name == "linear_attention"), torch.ones_like(key)
        query, key = (x + far * (2 * (x > 0) - 1) for x in (query, key))
        value = torch.randn(batch, heads, rows, width, generator=generator)
        ids = {"document_ids": _ids(batch, rows, generator)} if documents else {}
        return (query, key, value), _keywords(lengths, **keywords, **ids)

    return make


def _attentions(name: str, far: float) -> dict[str, Callable]:
    wide = {"heads": 3, "features": 64, "width": 64}
    found = {}
    for suffix, keywords in (("", {"causal": False}), ("-causal", {"causal": True})):
        found |= {
            # As many features as float64 divides by exactly: gradients that are zero are not what rounding leaves.
            f"one{suffix}": _attention(name, 1, (1, 0), features=16, **keywords),
            f"ragged{suffix}": _attention(name, ROWS, LENGTHS, **keywords),
            f"documents{suffix}": _attention(name, ROWS, LENGTHS, documents=True, far=far, **keywords),
            f"{BLOCKS}{suffix}": _attention(name, MANY_ROWS, MANY_LENGTHS, **wide, **keywords),
            f"{BLOCKS}-documents{suffix}": _attention(
                name, MANY_ROWS, MANY_LENGTHS, documents=True, **wide, **keywords
            ),
        }
    return found


def _mapped(rows: int, lengths=None, feature_map="elu", heads=2, width=17, channels=7, size=1.0):
    def make(generator):
        batch = len(lengths) if lengths else 1
        # Rounding must not hide gradients that are zero.
        scale = size if rows > 1 else 0.0
        query, key = scale * torch.randn(2, batch, heads, rows, width, generator=generator)
        value = torch.randn(batch, heads, rows, channels, generator=generator)
        return (query, key, value, feature_map), _keywords(lengths)

    return make


def _random(rows: int, lengths=None, heads=2, features=16, width=7, waves=6, documents=False, size=1.0, **keywords):
    def make(generator):
        batch = len(lengths) if lengths else 1
        # Rounding must not hide gradients that are zero.
        scale = size if rows > 1 else 0.0
        query, key = scale * torch.randn(2, batch, heads, rows, width, generator=generator)
        value = torch.randn(batch, heads, rows, width, generator=generator)
        found = [query, key, value, torch.randn(features, width, generator=generator)]
        if waves:
            found.append(scale * torch.randn(1, 1, rows, waves, generator=generator))
            found.append(torch.randn(2, heads, waves, features, generator=generator) / math.sqrt(waves))
        more = {}
        if documents:
            ids = _ids(batch, rows, generator)
            first = (ids[:, :, None] == ids[:, None]).int().argmax(-1)
            more = {"document_ids": ids, "positions": torch.arange(rows) - first}
        return tuple(found), _keywords(lengths, **keywords, **more)

    return make


def _givens(rows: int, lengths=None, width=7, orders=1, permuted=False, phases=2.0):
    def make(generator):
        batch = len(lengths) if lengths else 1
        value = torch.randn(batch, rows, 1, width, 2, generator=generator)
        upper, lower = (2 * torch.randn(batch, 1, orders, rows - 1, 3, generator=generator) for _ in range(2))
        phase = phases * torch.randn(batch, 1, rows, generator=generator)
        order = {"permutation": torch.rand(batch, orders, rows, generator=generator).argsort(-1)} if permuted else {}
        return (value, upper, lower, phase), _keywords(lengths, **order)

    return make


def _tokens(rows: int, lengths=None, heads=3, width=7, terms=3, documents=False, **keywords):
    def make(generator):
        batch = len(lengths) if lengths else 1
        value = torch.randn(batch, rows, heads, width, 2, generator=generator)
        drawn = torch.randn(batch, rows, heads, 7, generator=generator)
        coefficients = torch.randn(heads, terms, generator=generator) if terms else None
        scales = torch.randn(2, heads, 7, generator=generator)
        more = {"begins": torch.rand(batch, rows, generator=generator) < 0.2} if documents else {}
        return (value, drawn, coefficients, *scales), _keywords(lengths, **keywords, **more)

    return make


def _near(rows: int, lengths=None, width=7, reach=2, documents=False, far=1.0):
    def make(generator):
        batch = len(lengths) if lengths else 1
        tensors = torch.randn(4, batch, 2, rows, width, generator=generator)
        bias = far * torch.randn(2, 2 * reach + 1, generator=generator)
        ids = {"document_ids": _ids(batch, rows, generator)} if documents else {}
        return (*tensors, bias, torch.randn(2, generator=generator), reach), _keywords(lengths, **ids)

    return make


def _link(rows: int, lengths=None, width=40, factors=2, links=3, documents=False, wrap=True):
    def make(generator):
        batch = len(lengths) if lengths else 1
        value = torch.randn(batch, rows, width, generator=generator)
        weights = torch.randn(batch, rows, factors, links, generator=generator) / links
        offsets = torch.tensor([[0, *((-1) ** link * 2 ** (link % 9) for link in range(links - 1))]] * factors)
        ids = {"document_ids": _ids(batch, rows, generator)} if documents else {}
        return (value, weights, offsets), _keywords(lengths, wrap=wrap, **ids)

    return make


def _spectral(rows: int, lengths=None, width=12, segments=4, n_fft=None, beside=True):
    def make(generator):
        batch, period = len(lengths) if lengths else 1, n_fft or rows
        x = torch.randn(batch, rows, width, generator=generator)
        spectrum = torch.randn(period // 2 + 1, width, 2, generator=generator)
        return (x, spectrum, period), _keywords(lengths, segments=segments, beside=beside)

    return make


def _bands(batch: int, rows: int, levels: int, is_synthesis: bool) -> tuple[tuple, tuple]:
    """The input's shape but for its channels, and the arguments behind the filters."""
    if is_synthesis:
        return (batch * -(-rows // 2**levels) * 2**levels,), (levels, batch, rows)
    return (batch, rows), (levels,)


def _wavelet(is_synthesis: bool, rows: int, lengths=None, width=17, taps=4, levels=2, shared=False):
    def make(generator):
        batch = len(lengths) if lengths else 1
        shape, rest = _bands(batch, rows, levels, is_synthesis)
        x = torch.randn(*shape, width, generator=generator)
        filters = torch.randn((taps,) if shared else (taps, width), generator=generator) / math.sqrt(taps)
        return (x, filters, *rest), _keywords(lengths)

    return make


def _lifting(is_synthesis: bool, rows: int, lengths=None, width=17, taps=(4, 3), levels=2, scale=1.0):
    def make(generator):
        batch = len(lengths) if lengths else 1
        shape, rest = _bands(batch, rows, levels, is_synthesis)
        x = scale * torch.randn(*shape, width, generator=generator)
        steps = [torch.randn(n, width, generator=generator) / math.sqrt(n) if n else None for n in taps]
        return (x, *steps, *rest), _keywords(lengths)

    return make


def _transforms(is_synthesis: bool) -> tuple[dict[str, Callable], dict[str, Callable]]:
    """The cases of a wavelet and of a lifting transform."""
    wavelet = {
        "one": _wavelet(is_synthesis, 1, (1, 0), taps=2, levels=1),
        "ragged": _wavelet(is_synthesis, ROWS, LENGTHS),
        "more-taps-than-rows": _wavelet(is_synthesis, 3, (3, 2), taps=6, shared=True),
        BLOCKS: _wavelet(is_synthesis, MANY_ROWS, MANY_LENGTHS, width=100, taps=16, levels=3),
    }
    lifting = {
        "one": _lifting(is_synthesis, 1, (1, 0), taps=(0, 0), levels=1),
        "ragged": _lifting(is_synthesis, ROWS, LENGTHS),
        "ragged-fixed": _lifting(is_synthesis, ROWS, LENGTHS, taps=(0, 0), levels=3),
        "steep": _lifting(is_synthesis, 33, (33,), taps=(6, 5), levels=1, scale=80.0),
        BLOCKS: _lifting(is_synthesis, MANY_ROWS, MANY_LENGTHS, width=100, levels=3),
    }
    return wavelet, lifting


_ANALYSIS, _SYNTHESIS = _transforms(False), _transforms(True)
# Operation -> name -> what makes the inputs.
CASES: dict[str, dict[str, Callable[[torch.Generator], Inputs]]] = {
    "feature_attention": _attentions("feature_attention", far=80.0),
    "givens_mix": {
        "one": _givens(1, (1, 0)),
        "ragged": _givens(19, (19, 0, 12), orders=2, permuted=True),
        "large-phases": _givens(34, (34,), width=2, phases=1e4),
        BLOCKS: _givens(MANY_ROWS, MANY_LENGTHS, width=64),
        f"{BLOCKS}-permuted": _givens(MANY_ROWS, MANY_LENGTHS, width=64, orders=2, permuted=True),
        # More chunks than the scan over them takes at once.
        f"{BLOCKS}-scanned": _givens(SCANNED_ROWS, (SCANNED_ROWS,), width=4),
    },
    "feature_map_attention": {
        "one": _mapped(1, (1, 0)),
        "ragged": _mapped(ROWS, LENGTHS),
        "ragged-relu": _mapped(ROWS, LENGTHS, "relu"),
        "far": _mapped(ROWS, LENGTHS, size=30.0),
        "far-relu": _mapped(ROWS, LENGTHS, "relu", size=30.0),
        BLOCKS: _mapped(MANY_ROWS, MANY_LENGTHS, heads=3, width=64, channels=64),
        f"{BLOCKS}-relu": _mapped(MANY_ROWS, MANY_LENGTHS, "relu", heads=3, width=64, channels=64),
    },
    "lifting_analysis": _ANALYSIS[1],
    "lifting_synthesis": _SYNTHESIS[1],
    "linear_attention": _attentions("linear_attention", far=0.0),
    "link_mix": {
        "one": _link(1, (1, 0)),
        "ragged": _link(ROWS, LENGTHS),
        "documents": _link(ROWS, LENGTHS, documents=True),
        "documents-dropped": _link(ROWS, LENGTHS, documents=True, wrap=False),
        BLOCKS: _link(MANY_ROWS, MANY_LENGTHS, width=100, factors=5, links=9),
        f"{BLOCKS}-documents": _link(MANY_ROWS, MANY_LENGTHS, width=100, factors=5, links=9, documents=True),
    },
    "near_attention": {
        "one": _near(1, (1, 0)),
        "ragged": _near(ROWS, LENGTHS),
        "documents": _near(ROWS, LENGTHS, documents=True),
        "far": _near(ROWS, LENGTHS, far=50.0),
        BLOCKS: _near(MANY_ROWS, MANY_LENGTHS, width=64, reach=9, documents=True),
    },
    "random_feature_attention": {
        "one": _random(1, (1, 0)),
        "ragged": _random(ROWS, LENGTHS, features=17),
        "ragged-causal": _random(ROWS, LENGTHS, causal=True),
        "without-biases": _random(ROWS, LENGTHS, waves=0),
        "documents": _random(ROWS, LENGTHS, documents=True),
        "far": _random(ROWS, LENGTHS, size=5.0),
        BLOCKS: _random(MANY_ROWS, MANY_LENGTHS, heads=3, features=64, width=64, waves=64),
        f"{BLOCKS}-documents": _random(
            MANY_ROWS, MANY_LENGTHS, heads=3, features=64, width=64, waves=64, documents=True
        ),
    },
    "spectral_filter": {
        "one": _spectral(1, (1, 0)),
        "ragged": _spectral(ROWS, LENGTHS),
        "alone": _spectral(ROWS, LENGTHS, beside=False),
        "longer-period": _spectral(ROWS, LENGTHS, n_fft=3 * ROWS),
        BLOCKS: _spectral(MANY_ROWS, MANY_LENGTHS, width=300, segments=2),
    },
    "token_givens_mix": {
        "one": _tokens(1, (1, 0)),
        "ragged": _tokens(ROWS, LENGTHS, without_own=True),
        "documents": _tokens(ROWS, LENGTHS, documents=True, terms=5),
        "eigenvalues": _tokens(ROWS, LENGTHS, terms=0),
        BLOCKS: _tokens(MANY_ROWS, MANY_LENGTHS, heads=9, width=32, documents=True),
    },
    "wavelet_analysis": _ANALYSIS[0],
    "wavelet_synthesis": _SYNTHESIS[0],
}


def placed(inputs: Inputs, dtype: torch.dtype, device: str, is_exact: bool = False) -> Inputs:
    """Inputs in their precision on their device; `is_exact`: in float64, as `dtype` rounds them."""

    def place(value):
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_floating_point():
            value = value.to(dtype).to(torch.float64 if is_exact else dtype)
        return value.to(device)

    arguments, keywords = inputs
    return tuple(map(place, arguments)), {name: place(value) for name, value in keywords.items()}
