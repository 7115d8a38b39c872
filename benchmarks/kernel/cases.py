"""The cases of benchmarks/kernel_speed.py: the operations and whole mixers."""

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


def _givens_inputs(length: int, generator: torch.Generator) -> list[torch.Tensor]:
    value = torch.randn(BATCH, length, 1, WIDTH, 2, generator=generator)
    angles = torch.randn(2, BATCH, 1, 1, length - 1, 3, generator=generator)
    return [value, *angles, torch.randn(BATCH, 1, length, generator=generator)]


def _givens(*inputs: torch.Tensor) -> torch.Tensor:
    return ops.givens_mix(*inputs)


def _link_inputs(length: int, generator: torch.Generator) -> list[torch.Tensor]:
    value = torch.randn(BATCH, length, WIDTH, generator=generator)
    return [value, torch.randn(BATCH, length, FACTORS, LINKS, generator=generator) / LINKS]


def _link(value: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return ops.link_mix(value, weights, CHORD.to(value.device))


def _wavelet_inputs(length: int, generator: torch.Generator) -> list[torch.Tensor]:
    taps = scaling_taps(f"db{TAPS // 2}").float()[:, None].repeat(1, WIDTH)
    return [torch.randn(BATCH, length, WIDTH, generator=generator), taps]


def _wavelet(levels: int) -> Operation:
    def apply(x, filters):
        return ops.wavelet_synthesis(ops.wavelet_analysis(x, filters, levels), filters, levels, x.shape[1])

    names = ("wavelet_analysis", "wavelet_synthesis")
    return Operation(f"wavelet-{levels}", names, f"D={WIDTH} T={TAPS} J={levels}", _wavelet_inputs, apply)


def _lifting(levels: int) -> Operation:
    def make(length, generator):
        return [torch.randn(BATCH, length, WIDTH, generator=generator)]

    def apply(x):
        bands = ops.lifting_analysis(x, None, None, levels)
        return ops.lifting_synthesis(bands, None, None, levels, x.shape[1])

    names = ("lifting_analysis", "lifting_synthesis")
    return Operation("lifting", names, f"D={WIDTH} J={levels}", make, apply, linear=True)


def _attention(name: str, causal: bool) -> Operation:
    channels = WIDTH // HEADS

    def make(length, generator):
        features = torch.randn(2, BATCH, HEADS, length, FEATURES, generator=generator)
        if name == "linear_attention":
            features = functional.elu(features) + 1
        return [*features, torch.randn(BATCH, HEADS, length, channels, generator=generator)]

    def apply(query, key, value):
        return getattr(ops, name)(query, key, value, causal=causal)

    dimensions = f"H={HEADS} m={FEATURES} d={channels}"
    return Operation(f"{name}-causal" if causal else name, (name,), dimensions, make, apply, values=2)


def _spectral_inputs(length: int, generator: torch.Generator) -> list[torch.Tensor]:
    x = torch.randn(BATCH, length, WIDTH, generator=generator)
    return [x, torch.randn(length // 2 + 1, WIDTH, 2, generator=generator)]


def _spectral(x: torch.Tensor, spectrum: torch.Tensor) -> torch.Tensor:
    return ops.spectral_filter(x, spectrum, x.shape[1], SEGMENTS)


OPERATIONS = {
    case.name: case
    for case in (
        Operation("givens_mix", ("givens_mix",), f"H=1 d={WIDTH} L=1", _givens_inputs, _givens),
        Operation("link_mix", ("link_mix",), f"D={WIDTH} M={FACTORS} K={LINKS}", _link_inputs, _link),
        _wavelet(1),
        _wavelet(3),
        _lifting(3),
        _attention("feature_attention", causal=True),
        _attention("feature_attention", causal=False),
        _attention("linear_attention", causal=True),
        _attention("linear_attention", causal=False),
        Operation("spectral_filter", ("spectral_filter",), f"D={WIDTH} r={SEGMENTS}", _spectral_inputs, _spectral),
    )
}
LANDMARKS = (("segments", 8), ("row_landmarks", 8), ("column_landmarks", 8))
LAYERS = {
    case.name: case
    for case in (
        Layer("converter", "converter", ("givens_mix",)),
        Layer("paramixer", "paramixer", ("link_mix",)),
        Layer("s3attention", "s3attention", ("spectral_filter",), LANDMARKS),
        Layer(
            "wavspa",
            "wavspa",
            ("wavelet_analysis", "wavelet_synthesis"),
            (("space", "adaptive"), ("wavelet", "db8"), ("levels", 3)),
        ),
        Layer("flt", "flt", ("feature_attention",), (("num_random_features", FEATURES),)),
        Layer("softmax", "transformer"),
        Layer("fnet", "fnet"),
    )
}
# What the other layers are compared with.
YARDSTICKS = ("softmax", "fnet")
