"""The cases of benchmarks/kernel_speed.py: the operations and whole mixers."""

import functools
from dataclasses import dataclass

import torch
from kernel.kinds import BATCH, Layer, Operation
from torch.nn import functional

from longmix.kernels import ops
from longmix.modeling.wavspa.wavelets import scaling_taps

WIDTH = 128
HEADS = 2
FEATURES = 64
FACTORS = 12
LINKS = 13
CHORD = torch.tensor([[0, *(2**link for link in range(LINKS - 1))]] * FACTORS)
TAPS = 16
SEGMENTS = 8


@dataclass(frozen=True)
class Size:
    """Of the operations' inputs: batch, channels D, heads H of the attentions."""

    batch: int = BATCH
    width: int = WIDTH
    heads: int = HEADS


def operations_of(size: Size) -> dict[str, Operation]:
    """Name -> case, for every operation."""
    made = (
        _givens(size),
        _link(size),
        _wavelet(size, 1),
        _wavelet(size, 3),
        _lifting(size, 3),
        _attention(size, "feature_attention", causal=True),
        _attention(size, "feature_attention", causal=False),
        _attention(size, "linear_attention", causal=True),
        _attention(size, "linear_attention", causal=False),
        _spectral(size),
    )
    return {case.name: case for case in made}


def _givens(size: Size) -> Operation:
    def make(length, generator):
        value = torch.randn(size.batch, length, 1, size.width, 2, generator=generator)
        angles = torch.randn(2, size.batch, 1, 1, length - 1, 3, generator=generator)
        return [value, *angles, torch.randn(size.batch, 1, length, generator=generator)]

    def apply(*inputs):
        return ops.givens_mix(*inputs)

    return Operation("givens_mix", ("givens_mix",), f"H=1 d={size.width} L=1", make, apply, batch=size.batch)


@functools.cache
def _chord(device: torch.device) -> torch.Tensor:
    """Copied once: a copy to a GPU waits for it, which would be timed."""
    return CHORD.to(device)


def _link(size: Size) -> Operation:
    def make(length, generator):
        value = torch.randn(size.batch, length, size.width, generator=generator)
        return [value, torch.randn(size.batch, length, FACTORS, LINKS, generator=generator) / LINKS]

    def apply(value, weights):
        return ops.link_mix(value, weights, _chord(value.device))

    return Operation("link_mix", ("link_mix",), f"D={size.width} M={FACTORS} K={LINKS}", make, apply, batch=size.batch)


def _wavelet(size: Size, levels: int) -> Operation:
    def make(length, generator):
        taps = scaling_taps(f"db{TAPS // 2}").float()[:, None].repeat(1, size.width)
        return [torch.randn(size.batch, length, size.width, generator=generator), taps]

    def apply(x, filters):
        return ops.wavelet_synthesis(ops.wavelet_analysis(x, filters, levels), filters, levels, *x.shape[:2])

    names = ("wavelet_analysis", "wavelet_synthesis")
    dimensions = f"D={size.width} T={TAPS} J={levels}"
    return Operation(f"wavelet-{levels}", names, dimensions, make, apply, batch=size.batch)


def _lifting(size: Size, levels: int) -> Operation:
    def make(length, generator):
        return [torch.randn(size.batch, length, size.width, generator=generator)]

    def apply(x):
        bands = ops.lifting_analysis(x, None, None, levels)
        return ops.lifting_synthesis(bands, None, None, levels, *x.shape[:2])

    names = ("lifting_analysis", "lifting_synthesis")
    return Operation("lifting", names, f"D={size.width} J={levels}", make, apply, linear=True, batch=size.batch)


def _attention(size: Size, name: str, causal: bool) -> Operation:
    channels = size.width // size.heads

    def make(length, generator):
        features = torch.randn(2, size.batch, size.heads, length, FEATURES, generator=generator)
        if name == "linear_attention":
            features = functional.elu(features) + 1
        return [*features, torch.randn(size.batch, size.heads, length, channels, generator=generator)]

    def apply(query, key, value):
        return getattr(ops, name)(query, key, value, causal=causal)

    dimensions = f"H={size.heads} m={FEATURES} d={channels}"
    label = f"{name}-causal" if causal else name
    return Operation(label, (name,), dimensions, make, apply, values=2, batch=size.batch)


def _spectral(size: Size) -> Operation:
    def make(length, generator):
        x = torch.randn(size.batch, length, size.width, generator=generator)
        return [x, torch.randn(length // 2 + 1, size.width, 2, generator=generator)]

    def apply(x, spectrum):
        return ops.spectral_filter(x, spectrum, x.shape[1], SEGMENTS)

    return Operation(
        "spectral_filter", ("spectral_filter",), f"D={size.width} r={SEGMENTS}", make, apply, batch=size.batch
    )


OPERATIONS = operations_of(Size())
LANDMARKS = (("segments", 8), ("row_landmarks", 8), ("column_landmarks", 8))
LAYERS = {
    case.name: case
    for case in (
        Layer("converter", "converter", ("token_givens_mix",)),
        Layer("paramixer", "paramixer", ("link_mix",)),
        Layer("s3attention", "s3attention", ("spectral_filter",), LANDMARKS),
        Layer(
            "wavspa",
            "wavspa",
            ("wavelet_analysis", "wavelet_synthesis"),
            (("space", "adaptive"), ("wavelet", "db8"), ("levels", 3)),
        ),
        Layer("flt", "flt", ("random_feature_attention",), (("num_random_features", FEATURES),)),
        Layer("softmax", "transformer"),
        Layer("fnet", "fnet"),
    )
}
# What the other layers are compared with.
YARDSTICKS = ("softmax", "fnet")
