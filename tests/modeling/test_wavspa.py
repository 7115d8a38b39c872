"""WavSpA's spaces, taps, block and configuration; the mixer against its equations stands in test_acceptance.py."""

import itertools
import math

import pytest
import pywt
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn import functional

from longmix.modeling.attention import softmax
from longmix.modeling.context import BatchContext
from longmix.modeling.wavspa import band_attention
from longmix.modeling.wavspa.band_attention import attend_in_bands
from longmix.modeling.wavspa.fourier import rows_of, spectrum_of
from longmix.modeling.wavspa.spaces import make_space
from longmix.modeling.wavspa.wavelets import lattice_taps, orthogonal_wavelets

LENGTHS = [23, 16, 9, 2, 1, 0]
INVERTIBLE = {
    "none": {"space": "none"},
    "fourier": {"space": "fourier"},
    "fourier-2d": {"space": "fourier", "two_dimensional": True},
    "fixed": {"space": "fixed", "levels": 4, "wavelet": "sym7"},
    "fixed-2d": {"space": "fixed", "levels": 2, "two_dimensional": True},
    "orthogonal": {"space": "orthogonal", "levels": 3},
    "orthogonal-dc": {"space": "orthogonal", "filter_length": 4, "dc_normalised": True},
    "lifting": {"space": "lifting"},
    "lifting-learned": {"space": "lifting", "learnable": True, "levels": 2, "initializer_range": 1.0},
}


def sample(positions=23, width=16, seed=0, batch=6):
    """x (B, N, D) float64 that is zero past LENGTHS, lengths and mask."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, positions, width, generator=generator, dtype=torch.float64)
    lengths = torch.tensor(LENGTHS[:batch])
    mask = torch.arange(positions) < lengths[:, None]
    return torch.where(mask[:, :, None], x, 0), lengths, mask


def in_bands(stacks, batch=6):
    """Stacks (k B, ..) -> k tensors (B, ..) of each."""
    return [band for stack in stacks for band in stack.split(batch)]


def in_stacks(bands, shapes):
    """Bands (R, width) -> stacks (k B, n, width) of these shapes."""
    parts = bands.split([samples * rows for samples, rows in shapes])
    return [part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True)]


def attend(attentions, stacked, stacks, masks):
    """What the attentions make of the stacks, as stacks."""
    shapes, rows = [stack.shape[:2] for stack in stacks], torch.cat([stack.flatten(0, 1) for stack in stacks])
    return in_stacks(attend_in_bands(attentions, stacked, shapes, rows, masks, BatchContext()), shapes)


@pytest.fixture
def space(make_config, request):
    """The space of the fields in `request.param`, in float64."""
    torch.manual_seed(0)
    return make_space(make_config("wavspa", **request.param)).double()


@pytest.mark.parametrize("space", INVERTIBLE.values(), ids=INVERTIBLE, indirect=True)
def test_there_and_back_changes_nothing(space):
    x, lengths, mask = sample()
    taps = space.working_taps(x.dtype)
    bands, masks = space.analyse(x, lengths, taps)
    stacks = in_stacks(bands, space.shapes(6, 23))
    for stack, valid in zip(stacks, masks, strict=True):
        assert stack.shape[:2] == valid.shape and (stack[~valid] == 0).all()
    back = space.synthesise(bands, 6, 23, lengths, taps)
    torch.testing.assert_close(back[mask], x[mask], rtol=0, atol=1e-10)
    for row, length in enumerate(LENGTHS[:-1]):
        alone, nothing = space.analyse(x[row : row + 1, :length], None, taps)
        assert all(valid is None for valid in nothing)
        own_bands = [band for stack in in_stacks(alone, space.shapes(1, length)) for band in stack]
        for band, valid, own in zip(in_bands(stacks), in_bands(masks), own_bands, strict=True):
            torch.testing.assert_close(band[row][valid[row]], own, rtol=0, atol=1e-10)
        assert [len(band) for band in own_bands] == space.band_positions(length)


@pytest.mark.parametrize("space", [INVERTIBLE["orthogonal"], INVERTIBLE["orthogonal-dc"]], ids=str, indirect=True)
def test_taps_from_angles_are_orthonormal_in_every_channel(space):
    taps = space.taps()
    for step in range(0, len(taps), 2):
        correlation = (taps[: len(taps) - step] * taps[step:]).sum(0)
        expected = torch.full((16,), 1.0 if step == 0 else 0.0, dtype=torch.float64)
        torch.testing.assert_close(correlation, expected, rtol=0, atol=1e-12)
    assert (taps[:, 1:] - taps[:, :1]).abs().max() > 0.1
    if space.config.dc_normalised:
        root = torch.full((16,), math.sqrt(2), dtype=torch.float64)
        torch.testing.assert_close(taps.sum(0), root, rtol=0, atol=1e-12)


def test_taps_of_two_angles_are_equation_6():
    first, second = torch.tensor([[0.3, 2.0], [1.1, -0.7]], dtype=torch.float64)
    expected = [
        second.cos() * first.sin(),
        -second.sin() * first.sin(),
        second.sin() * first.cos(),
        second.cos() * first.cos(),
    ]
    result = lattice_taps(torch.stack([first, second]))
    torch.testing.assert_close(result, torch.stack(expected), rtol=0, atol=1e-14)
    torch.testing.assert_close(result.sum(0), math.sqrt(2) * (math.pi / 4 + first + second).sin(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("two_dimensional", [False, True])
def test_spectra_are_those_of_each_samples_own_length(two_dimensional):
    x, lengths, _ = sample()
    result = torch.complex(*spectrum_of(x, lengths, two_dimensional).chunk(2, dim=2))
    for row, length in enumerate(LENGTHS[:-1]):
        expected = torch.fft.fft(x[row, :length], dim=0, norm="ortho")[: length // 2 + 1]
        if two_dimensional:
            expected = torch.fft.fft(expected, dim=1, norm="ortho")
        torch.testing.assert_close(result[row, : len(expected)], expected, rtol=0, atol=1e-12)
        assert (result[row, len(expected) :] == 0).all()
    noise = torch.randn(len(LENGTHS), 12, 32, dtype=torch.float64)
    for row, length in enumerate(LENGTHS[:-1]):
        alone = rows_of(noise[row : row + 1, : length // 2 + 1], length, None, two_dimensional)
        back = rows_of(noise, 23, lengths, two_dimensional)[row]
        torch.testing.assert_close(back[:length], alone[0], rtol=0, atol=1e-12)
        assert (back[length:] == 0).all()


def test_a_chirp_transform_is_exact_also_for_long_rows():
    length = 4099
    frequency = 1021
    x = torch.cos(2 * math.pi * (torch.arange(length) * frequency % length) / length)[None, :, None]
    spectrum = spectrum_of(torch.nn.functional.pad(x, (0, 0, 0, 13)), torch.tensor([length]))
    expected = torch.zeros(1, 4112 // 2 + 1, 2)
    expected[0, frequency, 0] = math.sqrt(length) / 2
    torch.testing.assert_close(spectrum, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["haar", "db2", "db4"])
def test_two_dimensions_equal_pywavelets(name, make_config):
    space = make_space(make_config("wavspa", space="fixed", wavelet=name, two_dimensional=True))
    x = torch.randn(24, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    both, (rows, columns, neither) = pywt.dwt2(x.numpy(), name, "periodization")
    late = pywt.Wavelet(name).dec_len // 2 - 1
    bands, _ = space.analyse(x.roll((late, late), (0, 1))[None], None, space.working_taps(x.dtype))
    (bands,) = in_stacks(bands, space.shapes(1, 24))
    low, high = (torch.from_numpy(part) for part in (both, rows)), (torch.from_numpy(p) for p in (columns, neither))
    approximation, detail = (torch.cat(pair, dim=1) for pair in zip(low, high, strict=True))
    torch.testing.assert_close(bands[0], approximation, rtol=0, atol=1e-10)
    torch.testing.assert_close(bands[1], detail, rtol=0, atol=1e-10)


@pytest.mark.parametrize("attention", ["softmax", "windowed"])
def test_trained_taps_differ_between_channels(attention, make_mixer, load_oracle):
    """At first the taps of all channels are equal, so the acceptance tests cannot tell them apart."""
    mixer = make_mixer("wavspa", space="adaptive", attention=attention, levels=2, wavelet="db2").double()
    torch.nn.init.normal_(mixer.space.low_pass, std=0.5)
    x, _, mask = sample()
    with torch.no_grad():
        result = mixer(x, BatchContext(mask))
        for row, length in enumerate(LENGTHS[:-1]):
            expected = load_oracle("wavspa")(mixer, x[row, :length])
            torch.testing.assert_close(result[row, :length], expected, rtol=0, atol=1e-10)


def test_adaptive_taps_start_as_the_wavelet(make_mixer):
    low_pass = make_mixer("wavspa", wavelet="db3").space.low_pass
    expected = torch.tensor(pywt.Wavelet("db3").dec_lo[::-1])
    torch.testing.assert_close(low_pass, expected[:, None].expand(6, 16))


@pytest.mark.parametrize("fields", INVERTIBLE.values(), ids=INVERTIBLE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_modules(fields, dtype, make_mixer):
    mixer = make_mixer("wavspa", **fields).to(dtype)
    x, _, mask = sample(batch=3)
    half = x.to(dtype)
    with torch.no_grad():
        result = mixer(half, BatchContext(mask))
        expected = mixer.double()(half.double(), BatchContext(mask))
    assert result.dtype == dtype and result.isfinite().all()
    assert (result.double() - expected).norm() < 3e-2 * expected.norm()


def test_fixed_taps_are_not_rounded_with_the_module(make_config):
    space = make_space(make_config("wavspa", space="fixed", wavelet="db4")).bfloat16()
    expected = torch.tensor(pywt.Wavelet("db4").dec_lo[::-1], dtype=torch.float64)
    assert torch.equal(space.taps(), expected)


def test_the_papers_block_has_one_normalisation(make_model, batch):
    model = make_model("wavspa", block_style="paper").double()
    layer = model.layers[0]
    x, _, mask = sample()
    with torch.no_grad():
        mixed = x + layer.mixer(
            functional.layer_norm(x, (16,), layer.mixer_norm.weight, layer.mixer_norm.bias), BatchContext(mask)
        )
        inner = functional.gelu(mixed @ layer.feed_forward.inner.weight.T + layer.feed_forward.inner.bias)
        expected = mixed + inner @ layer.feed_forward.outer.weight.T + layer.feed_forward.outer.bias
        torch.testing.assert_close(layer(x, BatchContext(mask)), expected, rtol=0, atol=1e-12)
    assert isinstance(model.final_norm, torch.nn.LayerNorm)
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in model.embeddings.modules())


@pytest.mark.parametrize("kind", ["softmax", "linear", "windowed"])
@pytest.mark.parametrize("share", [False, True])
def test_bands_of_one_length_are_attended_in_as_if_alone(kind, share, make_mixer):
    mixer = make_mixer("wavspa", levels=2, attention=kind).double()
    attentions = [mixer.attentions[0]] * 3 if share else mixer.attentions
    sizes, valid = (5, 5, 7), ([5, 2, 0], [4, 5, 1], [7, 1, 3])
    masks = [torch.arange(size) < torch.tensor(lengths)[:, None] for size, lengths in zip(sizes, valid, strict=True)]
    for chosen in (masks, [None] * 3):
        bands = [torch.randn(3, size, 16, dtype=torch.float64, requires_grad=True) for size in sizes]
        stacks = [torch.cat(bands[:2]), bands[2]]
        of_stacks = [None, None] if chosen[0] is None else [torch.cat(masks[:2]), masks[2]]
        together = in_bands(attend(attentions, [2, 1], stacks, of_stacks), 3)
        alone = [
            attention(*each) for attention, *each in zip(attentions, bands, map(BatchContext, chosen), strict=True)
        ]
        wanted = [*bands, *mixer.attentions.parameters()]
        weights = [torch.randn_like(result) for result in alone]
        derivatives = [
            torch.autograd.grad(results, wanted, weights, allow_unused=True) for results in (together, alone)
        ]
        torch.testing.assert_close([*together, *derivatives[0]], [*alone, *derivatives[1]], rtol=0, atol=1e-12)


@pytest.fixture
def in_segments(monkeypatch):
    """Softmax attention now computes as on a GPU; the list of the segments that it is given."""
    seen = []

    def within(query, key, value, segments, kernel, *, causal, dropout):
        seen.append(segments)
        cuts, rows = segments.offsets.tolist(), [tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value)]
        assert cuts[0] == 0 and cuts[-1] == len(rows[0]) and causal is False and kernel == "flash"
        pieces = [
            functional.scaled_dot_product_attention(*(tensor[begin:end].transpose(0, 1) for tensor in rows))
            for begin, end in itertools.pairwise(cuts)
        ]
        return torch.cat(pieces, 1).unflatten(1, (len(query), -1)).transpose(0, 1)

    for module in (softmax, band_attention):
        monkeypatch.setattr(module, "kernel_for", lambda query, dropout: "flash")
    monkeypatch.setattr(softmax, "variable_length_attention", within)
    return seen


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_bands_of_all_lengths_are_one_attention_within_segments(padded, share, make_mixer, in_segments):
    fields = {"levels": 3, "share_bands": share, "space": "lifting", "learnable": True}
    mixer = make_mixer("wavspa", **fields).double()
    x, _, mask = sample()
    if not padded:
        mask = None
    upstream = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def run():
        own = x.clone().requires_grad_()
        result = mixer(own, BatchContext(mask))
        return result, *torch.autograd.grad((result * upstream).sum(), [own, *mixer.parameters()])

    found = run()
    ((offsets, longest),) = in_segments
    # Of 23 rows, a period of 24: bands of 3, 3, 6 and 12 rows of six samples, with padding a segment of its own.
    assert longest == 12 and len(offsets) == 1 + 4 * 6 * (2 if padded else 1) and offsets.dtype == torch.int32
    assert offsets[-1] == 6 * 24 and offsets.diff().max() == 12
    hook = mixer.attentions[0].register_forward_hook(lambda *_: None)
    alone = run()  # a watched attention is called
    hook.remove()
    # Those of each stack know the padding as segments; two that have one length are called one by one.
    assert len(in_segments) == 1 + padded * (3 if share else 4)
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)


class Wrapped(torch.nn.Module):
    """What adapters and quantisation put in the place of a layer, or of an attention."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, *arguments):
        self.calls += 1
        return self.inner(*arguments)


@pytest.mark.parametrize("band", [1, 2])
@pytest.mark.parametrize("name", ["projection", "output", None])
def test_what_stands_in_the_place_of_an_attention_or_its_layer_is_called(name, band, make_mixer, in_segments):
    """Alone with its length, or beside another one of that."""
    mixer = make_mixer("wavspa", levels=2)
    x = torch.randn(2, 9, 16)
    expected = mixer(x, BatchContext())
    assert len(in_segments) == 1
    attention = mixer.attentions[band]
    if name is None:
        mixer.attentions[band] = Wrapped(attention)
    else:
        setattr(attention, name, Wrapped(getattr(attention, name)))
    wrapped = mixer.attentions[band] if name is None else getattr(attention, name)
    torch.testing.assert_close(mixer(x, BatchContext()), expected)
    assert len(in_segments) == 1 and wrapped.calls == 1


@pytest.mark.parametrize("kind", ["softmax", "linear"])
@pytest.mark.parametrize("band", [0, 1])
def test_a_watched_attention_beside_one_of_its_length_is_called(band, kind, make_mixer):
    mixer, x, seen = make_mixer("wavspa", levels=1, attention=kind), torch.randn(2, 9, 16), []
    expected = mixer(x, BatchContext())
    mixer.attentions[band].register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(mixer(x, BatchContext()), expected)
    assert seen == [1]


@pytest.mark.parametrize("padded", [False, True])
def test_graphs_of_bands_in_segments_hold_for_any_batch(padded, make_mixer, traced_segments):
    check_graphs(make_mixer("wavspa", levels=2), padded)


def test_graphs_of_padding_in_segments_hold_for_any_batch(make_mixer, traced_segments):
    check_graphs(make_mixer("transformer"), True)


@pytest.fixture
def traced_segments(monkeypatch):
    """Softmax attention takes segments, of which graphs see no more than that they are read."""

    def within(query, key, value, segments, *_, **__):
        return value + segments.offsets.sum() * 0

    for module in (softmax, band_attention):
        monkeypatch.setattr(module, "kernel_for", lambda query, dropout: "flash")
    monkeypatch.setattr(softmax, "variable_length_attention", within)


def check_graphs(mixer, padded):
    counter = CompileCounter()
    compiled = torch.compile(lambda x, mask: mixer(x, BatchContext(mask)), backend=counter, fullgraph=True)
    for batch, positions in ((2, 12), (3, 12), (4, 20), (5, 24), (6, 28)):
        mask = torch.ones(batch, positions, dtype=torch.bool).tril(positions - 2) if padded else None
        x = torch.randn(batch, positions, 16)
        torch.testing.assert_close(compiled(x, mask), mixer(x, BatchContext(mask)))
    assert counter.frame_count <= 3  # the first sizes, and then those of a kind


def test_layers_share_the_segments_of_bands(make_model, in_segments):
    model = make_model("wavspa", levels=2, num_hidden_layers=3)
    model(input_ids=torch.randint(5, 20, (2, 9)))
    assert len(in_segments) == 3 and len({id(segments) for segments in in_segments}) == 1


@pytest.mark.parametrize("kind", ["linear", "windowed"])
def test_other_attentions_know_no_segments(kind, make_mixer, in_segments):
    mixer, x = make_mixer("wavspa", levels=2, attention=kind), torch.randn(2, 9, 16)
    found = mixer(x, BatchContext())
    mixer.attentions[0].register_forward_hook(lambda *_: None)
    torch.testing.assert_close(found, mixer(x, BatchContext()))
    assert in_segments == []


def test_bands_of_one_length_keep_to_autocast(make_mixer):
    mixer = make_mixer("wavspa", levels=1)
    bands = [torch.randn(2, 5, 16, requires_grad=True) for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = in_bands(attend(mixer.attentions, [2], [torch.cat(bands)], [None]), 2)
        alone = [attention(band, BatchContext()) for attention, band in zip(mixer.attentions, bands, strict=True)]
    assert {result.dtype for result in mixed} == {torch.bfloat16}
    torch.testing.assert_close(mixed, alone, rtol=0, atol=2e-2)
    torch.autograd.backward(mixed, [torch.ones_like(result) for result in mixed])
    assert {band.grad.dtype for band in bands} == {torch.float32}


def test_every_band_has_its_attention_unless_they_share(make_mixer):
    own = make_mixer("wavspa", levels=3, attention="windowed", attention_window=20)
    assert [attention.config.attention_window for attention in own.attentions] == [2, 2, 5, 10]
    shared = make_mixer("wavspa", levels=3, attention="windowed", attention_window=20, share_bands=True)
    assert [attention.config.attention_window for attention in shared.attentions] == [10]
    assert make_mixer("wavspa", space="none", attention="windowed").attentions[0].config.attention_window == 8
    performers = make_mixer("wavspa", attention="performer").attentions
    assert not torch.equal(performers[0].directions, performers[1].directions)


@pytest.mark.parametrize(
    ("fields", "before", "after"),
    [
        ({"levels": 2}, [10, 10, 20], [21, 21, 42]),
        ({"levels": 2, "share_bands": True}, [20], [42]),
        ({"space": "fourier"}, [21], [42]),
        ({"space": "none"}, [40], [83]),
    ],
    ids=str,
)
def test_projections_grow_with_the_bands(fields, before, after, make_model):
    model = make_model("wavspa", attention="linformer", **fields)
    attentions = model.layers[1].mixer.attentions
    old = [attention.sequence_projection.detach().clone() for attention in attentions]
    assert [len(projection) for projection in old] == before
    model.resize_positions(83)
    assert [len(attention.sequence_projection) for attention in attentions] == after
    for attention, projection in zip(attentions, old, strict=True):
        assert torch.equal(attention.sequence_projection[: len(projection)], projection)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"space": "hilbert"}, "space is 'hilbert'; allowed: none, fourier, fourier_forward, fixed, adaptive"),
        ({"attention": "sparse"}, "attention is 'sparse'; allowed: softmax, linear, performer, linformer, windowed"),
        (
            {"wavelet": "bior2.2"},
            "wavelet is 'bior2.2'; allowed: orthogonal wavelets of PyWavelets: coif1, .*db38",
        ),
        ({"wavelet": "db39"}, "wavelet is 'db39'; allowed: orthogonal wavelets"),
        ({"space": "fixed", "wavelet": "dmey"}, "wavelet is 'dmey'; allowed: orthogonal wavelets"),
        ({"space": "lifting", "wavelet": "db2"}, "wavelet is 'db2'; allowed: null for space lifting"),
        ({"levels": 6}, r"levels is 6; allowed: 1 .. 5, so that 2\^levels is at most max_position_embeddings \(40\)"),
        ({"levels": 0}, "levels is 0; allowed: 1 .. 5"),
        ({"space": "fourier", "levels": 1}, "levels is 1; allowed: null for space fourier"),
        ({"space": "orthogonal", "filter_length": 5}, "filter_length is 5; allowed: even, at least 2"),
        (
            {"space": "orthogonal", "filter_length": 2, "dc_normalised": True},
            "filter_length is 2; allowed: even, at least 4",
        ),
        ({"space": "lifting", "learnable": True, "filter_length": 0}, "filter_length is 0; allowed: at least 1"),
        ({"filter_length": 16}, "filter_length is 16; allowed: null for space adaptive"),
        ({"space": "fourier", "share_bands": True}, "share_bands is True; allowed: false for space fourier"),
        ({"two_dimensional": True}, "two_dimensional is True; allowed: false for space adaptive; true for fixed"),
        (
            {"space": "fixed", "two_dimensional": True, "levels": 5},
            r"hidden_size is 16; allowed: multiples of 2\^levels \(32\)",
        ),
        ({"dc_normalised": True}, "dc_normalised is True; allowed: false for space adaptive; true for orthogonal"),
        ({"learnable": True}, "learnable is True; allowed: false for space adaptive; true for lifting"),
        ({"space": ["fixed"]}, r"space is \['fixed'\] \(list\); allowed: str"),
        (
            {"attention": "performer", "num_random_features": 0},
            "num_random_features is 0; allowed: null or at least 1",
        ),
        ({"num_random_features": 9}, "num_random_features is 9; allowed: null, unless for performer"),
        (
            {"attention": "performer", "performer_features": "relu", "num_random_features": 9},
            "num_random_features is 9; allowed: null, unless for performer with positive features",
        ),
        ({"performer_features": "relu"}, "performer_features is 'relu'; allowed: positive, unless for performer"),
        ({"linformer_rank": 0}, "linformer_rank is 0; allowed: at least 1"),
        ({"attention_window": 0}, "attention_window is 0; allowed: at least 1"),
        ({"attention_probs_dropout_prob": 1.0}, "attention_probs_dropout_prob is 1.0; allowed: 0 <= probability < 1"),
        ({"is_causal": True}, "is_causal is True; allowed: false for wavspa, because coefficients mix"),
        ({"is_causal": True, "space": "none"}, "false for wavspa, because its attention looks to both sides"),
        ({"is_causal": True, "space": "none", "attention": "linformer"}, "because its projections mix"),
        ({"is_causal": True, "attention": "linformer"}, "because coefficients mix"),
    ],
)
def test_configuration_mistakes(fields, message, make_config):
    with pytest.raises(ValueError, match=message):
        make_config("wavspa", **fields)


def test_defaults_are_those_of_the_paper(make_config):
    chosen = {}
    for name in ("none", "fourier", "fixed", "adaptive", "orthogonal", "lifting"):
        config = make_config("wavspa", space=name)
        chosen[name] = (config.wavelet, config.levels, config.filter_length)
    assert chosen == {
        "none": (None, None, None),
        "fourier": (None, None, None),
        "fixed": ("db2", 1, None),
        "adaptive": ("db8", 1, None),
        "orthogonal": (None, 1, 16),
        "lifting": (None, 3, None),
    }
    assert make_config("wavspa", space="lifting", learnable=True).filter_length == 16


def test_wavelets_on_offer_are_orthonormal():
    names = orthogonal_wavelets()
    assert {"haar", "db1", "db38", "sym20", "coif17"} <= set(names)
    for name in names:
        taps = torch.tensor(pywt.Wavelet(name).dec_lo, dtype=torch.float64)
        for step in range(0, len(taps), 2):
            assert abs((taps[: len(taps) - step] @ taps[step:]).item() - (step == 0)) < 1e-9, name
