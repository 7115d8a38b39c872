"""The calls of the Triton kernels that are compiled ahead of time: shapes of the shipped models, and the largest ones.

A call goes through the operators' own code, forward and backward, on tensors of the `meta` device: dtypes, strides and
alignment are those of a real call, and no memory is taken.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longmix.kernels.random_attention.places import Places

# Found here and not by longmix.kernels.selection, which loads torch._dynamo: a second for each process.
FOLDERS = sorted(path.parent.name for path in Path(__file__).parents[2].glob("kernels/*/gpu_kernels.py"))
# Samples and positions of most cases; Triton compiles alike for all that are multiples of 16.
BATCH, POSITIONS, FEW = 8, 2048, 128


@dataclass(frozen=True)
class Case:
    """An operation with its shapes: `call(dtype)` runs it forward and backward.

    `dtypes` are those of its arguments; bfloat16 is for cards that have it.
    """

    name: str
    call: Callable[[torch.dtype], None]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16)


class _ToLaunchers(TorchDispatchMode):
    """Sends longmix's operators on meta tensors to the functions of gpu_kernels.py, not to their declarations."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # nothing is compiled by torch here, and skipping would load torch._dynamo

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace != "longmix":
            return function(*args, **(kwargs or {}))
        _, *arguments = args
        return _function("gpu_kernels", function._schema.name.removeprefix("longmix::"))(*arguments)


def _function(file: str, name: str) -> Callable:
    """The function of that name in this file of the operations' folders."""
    modules = (importlib.import_module(f"longmix.kernels.{folder}.{file}") for folder in FOLDERS)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def without_autocast() -> contextlib.AbstractContextManager:
    """In this context nothing switches autocast: torch has none for tensors without data."""
    return mock.patch.object(torch, "autocast", lambda *_, **__: contextlib.nullcontext())


def call(operation: str, floating: list[torch.Tensor], *others: object) -> None:
    """Run an operation's launchers forward and backward on meta tensors."""
    leaves = [tensor.requires_grad_() for tensor in floating if tensor is not None]
    with without_autocast(), _ToLaunchers():
        found = _function("operator", operation)("gpu_kernels", *floating, *others)
        results = found if isinstance(found, tuple) else (found,)
        torch.autograd.grad(results, leaves, [*map(torch.empty_like, results)])


def _empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def _lengths(batch: int, ragged: bool) -> torch.Tensor | None:
    return _empty(batch) if ragged else None


# One function for each operation, of shapes and then a dtype. `ragged`: samples have lengths; else all rows are valid.


def attention(operation, causal, shape, documents, dtype):
    """`shape` is (B, H, N, m, d)."""
    batch, heads, positions, features, width = shape
    query, key = (_empty(batch, heads, positions, features, dtype=dtype) for _ in range(2))
    value = _empty(batch, heads, positions, width, dtype=dtype)
    ids = _empty(batch, positions) if documents else None
    call(operation, [query, key, value], _empty(batch), causal, ids)


def mapped(shape, feature_map, dtype):
    """`shape` is (B, H, N, d)."""
    batch, heads, positions, width = shape
    query, key, value = _empty(batch, positions, 3, heads, width, dtype=dtype).transpose(1, 3).unbind(2)
    call("feature_map_attention", [query, key, value], feature_map, _empty(batch))


def givens(shape, orders, permuted, planes, without_own, dtype, ragged=True):
    """`shape` is (B, N, H, d)."""
    batch, positions, heads, width = shape
    value = _empty(batch, positions, heads, width, 2, dtype=dtype)
    if planes:
        value = _empty(batch, positions, 2, heads, width, dtype=dtype).permute(0, 1, 3, 4, 2)
    angles = batch, heads, orders, positions - 1, 3
    tables = [_empty(*size, dtype=torch.float32) for size in (angles, angles, (batch, heads, positions))]
    permutation = _empty(orders, positions) if permuted else None
    call("givens_mix", [value, *tables], _lengths(batch, ragged), permutation, without_own)


def links(shape, factors, links, wrap, documents, dtype):
    """`shape` is (B, N, D)."""
    batch, positions, _ = shape
    weights = _empty(batch, positions, factors, links, dtype=dtype)
    ids = _empty(batch, positions) if documents else None
    call("link_mix", [_empty(*shape, dtype=dtype), weights], _empty(factors, links), _empty(batch), wrap, ids)


def near(shape, places, before, documents, dtype, ragged=True):
    """`shape` is (B, H, N, d)."""
    batch, heads, positions, width = shape
    query, key, value = _empty(batch, positions, 3, heads, width, dtype=dtype).transpose(1, 3).unbind(2)
    estimate = _empty(*shape, dtype=dtype)
    parameters = [_empty(heads, places, dtype=dtype), _empty(heads, dtype=dtype)]
    ids = _empty(batch, positions) if documents else None
    lengths = _lengths(batch, ragged)
    call("near_attention", [query, key, value, estimate, *parameters], before, lengths, ids)


def random(shape, documents, dtype, causal=False, biased=True, of_each=False):
    """`shape` is (B, H, N, d, m); 64 waves of the places, of each sample or of all, or no biases."""
    batch, heads, positions, width, features = shape
    query, key, value = _empty(batch, positions, 3, heads, width, dtype=dtype).transpose(1, 3).unbind(2)
    wide = torch.promote_types(dtype, torch.float32)
    sizes = (features, width), (batch if of_each else 1, 1, positions, 64), (2, heads, 64, features)
    biases = [_empty(*size, dtype=wide) for size in sizes]
    ids = _empty(batch, positions) if documents else None
    places = Places(ids, positions) if documents and biased and not of_each else None
    if not biased:
        biases[1:] = None, None
    call("random_feature_attention", [query, key, value, *biases], places, _empty(batch), causal, ids)


def rotary(shape, of_each, dtype):
    """`shape` is (B, N, H, d); the angles are those of each sample, or of all."""
    batch, positions, heads, width = shape
    projected = _empty(batch, positions, 3, heads, width, dtype=dtype)
    of_all = (batch, 1, positions, width) if of_each else (positions, width)
    angles = (_empty(*of_all, dtype=torch.promote_types(dtype, torch.float32)) for _ in range(2))
    call("rotary_heads", [projected], *angles)


def spectral(shape, segments, n_fft, beside, dtype, ragged=True):
    """`shape` is (B, N, D)."""
    spectrum = _empty(n_fft // 2 + 1, shape[2], 2, dtype=dtype)
    call(
        "spectral_filter", [_empty(*shape, dtype=dtype), spectrum], n_fft, segments, _lengths(shape[0], ragged), beside
    )


def tokens(shape, terms, documents, dtype):
    """`shape` is (B, N, H, d); the polynomial has so many terms."""
    batch, positions, heads, width = shape
    value = _empty(batch, positions, 2, heads, width, dtype=dtype).permute(0, 1, 3, 4, 2)
    wide = torch.promote_types(dtype, torch.float32)
    drawn, coefficients = _empty(*shape[:3], 7, dtype=wide), _empty(heads, terms, dtype=dtype) if terms else None
    constants = [_empty(heads, 7, dtype=wide) for _ in range(2)]
    begins = _empty(batch, positions, dtype=torch.bool) if documents else None
    call("token_givens_mix", [value, drawn, coefficients], *constants, begins, _empty(batch), None, True)


def wavelet(shape, taps, levels, dtype, ragged=True):
    """`shape` is (B, N, D)."""
    filters = _empty(taps, shape[2], dtype=torch.promote_types(dtype, torch.float32))
    lengths = _lengths(shape[0], ragged)
    call("wavelet_analysis", [_empty(*shape, dtype=dtype), filters], levels, lengths)
    call("wavelet_synthesis", [_bands(shape, levels, dtype), filters], levels, *shape[:2], lengths)


def lifting(shape, taps, levels, dtype, ragged=True):
    """`shape` is (B, N, D); fixed steps where `taps` is None."""
    steps = [_empty(taps, shape[2], dtype=torch.float32) if taps else None for _ in range(2)]
    lengths = _lengths(shape[0], ragged)
    call("lifting_analysis", [_empty(*shape, dtype=dtype), *steps], levels, lengths)
    call("lifting_synthesis", [_bands(shape, levels, dtype), *steps], levels, *shape[:2], lengths)


def _bands(shape, levels, dtype):
    batch, positions, width = shape
    return _empty(batch * -(-positions // 2**levels) * 2**levels, width, dtype=dtype)


def _attention_cases() -> Iterator[Case]:
    names = {"feature_attention": "logarithms", "linear_attention": "features"}
    for operation, of in names.items():
        for causal, order in ((True, "causal"), (False, "whole")):
            name = f"attention-{of}-{order}"
            # Of wider heads a program takes as many channels as of these.
            for features in (64, 128, 256):
                call = partial(attention, operation, causal, (BATCH, 12, POSITIONS, features, 64), True)
                yield Case(f"{name}-m{features}-d64", call)
                if features == 64 or (features == 256 and not causal):
                    yield Case(f"{name}-m{features}-d64-float64", call, (torch.float64,))
            shape = (BATCH, 12, POSITIONS, 64, 64)
            yield Case(f"{name}-m64-d64-alone", partial(attention, operation, causal, shape, False))
    # As many heads as keep a card busy: none is cut into pieces of rows.
    call = partial(attention, "feature_attention", True, (4 * BATCH, 12, POSITIONS, 64, 64), True)
    yield Case("attention-logarithms-causal-m64-d64-whole-heads", call)
    # The positive features of WavSpA's Performer: int(d ln d) of them.
    for features, width in ((110, 32), (266, 64)):
        call = partial(attention, "feature_attention", False, (BATCH, 12, POSITIONS, features, width), False)
        yield Case(f"attention-logarithms-whole-m{features}-d{width}", call)
    # Heads of so few rows are not cut into pieces.
    for operation, kind in (("feature_attention", "logarithms"), ("linear_attention", "features")):
        call = partial(attention, operation, False, (BATCH, 12, FEW, 64, 64), False)
        yield Case(f"attention-{kind}-whole-short", call)


def _other_cases() -> Iterator[Case]:
    heads, rows = (BATCH, POSITIONS, 24, 32), (BATCH, POSITIONS, 768)
    yield Case("givens-d32", partial(givens, heads, 1, False, True, True))
    yield Case("givens-d32-all-valid", partial(givens, heads, 1, False, True, True, ragged=False))
    yield Case("givens-d32-short", partial(givens, (BATCH, FEW, 24, 32), 1, False, True, True))
    yield Case("givens-d32-long", partial(givens, (BATCH // 4, 4 * POSITIONS, 24, 32), 1, False, True, True))
    yield Case("givens-d32-pairs", partial(givens, heads, 1, False, False, False))
    yield Case("givens-d32-permuted", partial(givens, heads, 2, True, True, False))
    yield Case("links-k9-cut", partial(links, rows, 12, 9, False, True))
    yield Case("links-k19-wrap", partial(links, rows, 9, 19, True, True))
    yield Case("links-k19-wrap-alone", partial(links, rows, 9, 19, True, False))
    yield Case("links-ones", partial(links, (1, 1, 1), 1, 1, True, True))
    yield Case("links-k19-wrap-float64", partial(links, rows, 9, 19, True, True), (torch.float64,))
    queries = (BATCH, 12, POSITIONS, 64)
    yield Case("near-d64-p9", partial(near, queries, 9, 4, False))
    yield Case("near-d64-p9-all-valid", partial(near, queries, 9, 4, False, ragged=False))
    yield Case("near-d64-p9-documents", partial(near, queries, 9, 4, True))
    yield Case("near-d64-p5-causal-float64", partial(near, queries, 5, 4, True), (torch.float64,))
    for feature_map in ("elu", "relu"):
        yield Case(f"mapped-{feature_map}-d64", partial(mapped, queries, feature_map))
        yield Case(f"mapped-{feature_map}-d64-short", partial(mapped, (BATCH, 12, FEW, 64), feature_map))
    yield Case("mapped-elu-d128", partial(mapped, (BATCH, 6, POSITIONS, 128), "elu"))
    yield Case("mapped-elu-d64-float64", partial(mapped, queries, "elu"), (torch.float64,))
    features = (*queries, 64)
    yield Case("random-d64-m64", partial(random, features, False))
    yield Case("random-d64-m64-documents", partial(random, features, True))
    short = (BATCH, 12, FEW, 64, 64)
    yield Case("random-d64-m64-short", partial(random, short, False))
    yield Case("random-d64-m64-short-documents", partial(random, short, True))
    yield Case("random-d64-m256", partial(random, (BATCH, 12, POSITIONS, 64, 256), False))
    yield Case("random-d64-m64-causal", partial(random, features, False, causal=True))
    yield Case("random-d64-m64-causal-documents", partial(random, features, True, causal=True))
    yield Case("random-d64-m256-causal", partial(random, (BATCH, 12, POSITIONS, 64, 256), True, causal=True))
    # WavSpA's Performer, whose features are d ln d.
    yield Case("random-d64-m266", partial(random, (BATCH, 12, POSITIONS, 64, 266), False, biased=False))
    yield Case("random-d32-m110", partial(random, (BATCH, 24, POSITIONS, 32, 110), False, biased=False))
    yield Case("random-ones", partial(random, (1, 1, 1, 1, 1), True))
    yield Case("random-d64-m64-float64", partial(random, features, True), (torch.float64,))
    yield Case("rotary-d64", partial(rotary, (BATCH, POSITIONS, 12, 64), False))
    yield Case("rotary-d64-documents", partial(rotary, (BATCH, POSITIONS, 12, 64), True))
    yield Case("rotary-d6", partial(rotary, (BATCH, POSITIONS, 3, 6), False))
    yield Case("rotary-ones", partial(rotary, (1, 1, 1, 2), False))
    yield Case("rotary-d64-float64", partial(rotary, (BATCH, POSITIONS, 12, 64), True), (torch.float64,))
    yield Case("spectral-r8", partial(spectral, rows, 8, POSITIONS, True))
    yield Case("spectral-r8-all-valid", partial(spectral, rows, 8, POSITIONS, True, ragged=False))
    yield Case("spectral-r8-short", partial(spectral, rows, 8, 4 * POSITIONS, False))
    yield Case("spectral-r1", partial(spectral, rows, 1, POSITIONS, True))
    yield Case("spectral-r768", partial(spectral, rows, 768, POSITIONS, True))
    yield Case("spectral-ones", partial(spectral, (1, 1, 1), 1, 1, True))
    yield Case("spectral-r8-float64", partial(spectral, rows, 8, POSITIONS, True), (torch.float64,))
    yield Case("tokens-d32", partial(tokens, heads, 3, False))
    yield Case("tokens-d32-documents", partial(tokens, heads, 3, True))
    yield Case("tokens-d32-float64", partial(tokens, heads, 3, True), (torch.float64,))
    for taps in (2, 16, 40):
        yield Case(f"wavelet-t{taps}", partial(wavelet, rows, taps, 3))
    yield Case("wavelet-t16-all-valid", partial(wavelet, rows, 16, 3, ragged=False))
    yield Case("wavelet-t16-float64", partial(wavelet, rows, 16, 3), (torch.float64,))
    yield Case("lifting-fixed", partial(lifting, rows, None, 3))
    yield Case("lifting-t16", partial(lifting, rows, 16, 3))
    yield Case("lifting-t16-all-valid", partial(lifting, rows, 16, 3, ragged=False))
    yield Case("lifting-t16-float64", partial(lifting, rows, 16, 3), (torch.float64,))


CASES = {case.name: case for case in (*_attention_cases(), *_other_cases())}


def _largest_cases() -> Iterator[Case]:
    """Every operation at 8 x 65,536 tokens, 1024 channels and 16 heads, and at as many tokens in short rows."""
    for batch, positions in ((8, 65536), (32768, 16)):
        rows, name = (batch, positions, 1024), f"{batch}x{positions}"
        for operation in ("feature_attention", "linear_attention"):
            for causal in (True, False):
                for features in (64, 256):
                    call = partial(attention, operation, causal, (batch, 16, positions, features, 64), True)
                    yield Case(f"{operation}-{'causal' if causal else 'whole'}-m{features}-{name}", call)
        yield Case(f"givens-one-order-{name}", partial(givens, (batch, positions, 16, 64), 1, False, True, True))
        yield Case(f"givens-{name}", partial(givens, (batch, positions, 16, 64), 2, True, True, False))
        yield Case(f"mapped-{name}", partial(mapped, (batch, 16, positions, 64), "elu"))
        yield Case(f"near-{name}", partial(near, (batch, 16, positions, 64), 9, 4, True))
        for causal in (False, True):
            kind = "causal" if causal else "whole"
            yield Case(f"random-{kind}-{name}", partial(random, (batch, 16, positions, 64, 64), True, causal=causal))
        yield Case(f"links-{name}", partial(links, rows, 16, 33, True, True))
        yield Case(f"rotary-{name}", partial(rotary, (batch, positions, 16, 64), True))
        yield Case(f"spectral-{name}", partial(spectral, rows, 8, positions, True))
        yield Case(f"tokens-{name}", partial(tokens, (batch, positions, 16, 64), 3, True))
        yield Case(f"wavelet-{name}", partial(wavelet, rows, 40, 4))
        yield Case(f"lifting-{name}", partial(lifting, rows, 16, 4))


LARGEST = {case.name: case for case in _largest_cases()}
