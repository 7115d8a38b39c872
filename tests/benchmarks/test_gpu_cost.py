"""The model of GPUs counts what is known by hand, and leaves everything as it found it."""

import csv
import dataclasses
import json
import math
import os
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from longmix.kernels import ops, selection

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
TOKENS = 2048


@pytest.fixture
def count(script):
    """count(call, *tensors, **settings) -> the launches, in bf16 on meta tensors of given shapes."""
    counting = script("gpu_model.counting")

    def run(call, *shapes, dtype=torch.bfloat16, **settings):
        tensors = [torch.empty(shape, dtype=dtype, device="meta", requires_grad=True) for shape in shapes]
        with counting.counting(**{"triton": False, **settings}) as launches:
            call(*tensors)
        return launches

    return run


def only(launches):
    """The one launch that there is, made once."""
    [(launch, number)] = launches.items()
    assert number == 1
    return launch


def test_a_linear_layer_reads_and_writes_each_tensor_once(count):
    launch = only(count(functional.linear, (2, 8, 16), (32, 16), (32,)))
    assert (launch.launches, launch.unit) == (1, "tensor core")
    assert launch.operations == 2 * 16 * 16 * 32
    assert launch.bytes == 2 * (16 * 16 + 32 * 16 + 32 + 16 * 32)
    assert only(count(torch.mm, (4, 8), (8, 4), dtype=torch.float32)).unit == "fp32"  # no TF32


def test_backward_of_a_linear_layer_is_two_products(count):
    def step(x, weight):
        functional.linear(x, weight).backward(torch.empty(8, 32, dtype=x.dtype, device="meta"))

    launches = count(step, (8, 16), (32, 16))
    products = [launch for launch in launches if launch.unit == "tensor core"]
    assert sum(launches[launch] * launch.operations for launch in products) == 3 * 2 * 8 * 16 * 32
    assert sum(launches.values()) == 3


def test_a_gather_counts_the_rows_that_it_reads(count):
    index = torch.empty(3, 5, dtype=torch.int64, device="meta")
    launch = only(count(lambda table: functional.embedding(index, table), (10000, 16)))
    assert launch.bytes == 15 * 16 * 2 * 2 + 15 * 8  # read, written, indices; not the table
    bags = only(
        count(
            lambda table: torch.ops.aten._embedding_bag_forward_only(
                table.detach(), index.flatten(), index[:, 0], False, 0, False, None
            ),
            (10000, 16),
        )
    )
    assert 15 * 16 * 2 < bags.bytes < 10000 * 16


def test_layer_norm_reads_its_rows_again_for_the_weights(count):
    forward = only(count(lambda x, w, b: functional.layer_norm(x, (16,), w, b), (8, 16), (16,), (16,)))
    both = count(
        lambda x, w, b: functional.layer_norm(x, (16,), w, b).backward(torch.empty_like(x)), (8, 16), (16,), (16,)
    )
    assert forward.launches == 1 and sum(launch.launches for launch in both) == 3
    rows = 2 * 8 * 16
    backward = next(launch for launch in both if launch.name == "native_layer_norm_backward")
    assert 5 * rows <= backward.bytes < 6 * rows  # gradient and input twice, the result; and small ones


def test_softmax_attention_is_flash_attention(count):
    def step(query, key, value):
        functional.scaled_dot_product_attention(query, key, value).backward(torch.empty_like(query))

    shape = (2, 3, 128, 16)
    launches = count(step, *[shape] * 3)
    assert sum(launch.operations for launch in launches) == 14 * 2 * 3 * 128**2 * 16
    assert sum(launch.bytes for launch in launches if launch.operations) < 20 * math.prod(shape) * 2
    assert sum(launches.values()) == 4
    names = {launch.name for launch in count(step, *[shape] * 3, flash=False)}
    assert "memory-efficient attention" in names


def test_a_dense_mask_is_read_by_every_head(count):
    mask = torch.empty(2, 1, 128, 128, dtype=torch.bool, device="meta")
    launches = count(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask), *[(2, 3, 128, 16)] * 3
    )
    bias, attention = launches
    assert bias.bytes == 3 * 2 * 128**2
    assert attention.bytes > 2 * 3 * 128**2 * 2


def test_views_launch_nothing_and_library_calls_several(count):
    assert not count(lambda x: x.view(4, 16).transpose(0, 1)[2:].unflatten(0, (-1, 2)), (8, 8))
    assert only(count(lambda x: functional.pad(x, (0, 1)), (8, 8))).launches == 2
    assert only(count(lambda x: x.float(), (8, 8))).operations == 0
    summed = torch.empty(8, dtype=torch.float32, device="meta")
    into = only(count(lambda x: torch.sum(x.detach(), 0, out=summed), (64, 8), dtype=torch.float32))
    assert into.bytes == 4 * (64 * 8 + 8)
    halves = torch.empty(2, 8, dtype=torch.float32, device="meta")
    assert only(count(lambda x: torch.mul(x.detach(), halves[0], out=halves[1]), (8,))).launches == 1
    expanded = only(count(lambda x, y: x + y.expand(64, 8), (64, 8), (8,), dtype=torch.float32))
    assert expanded.bytes == 4 * (64 * 8 + 8 + 64 * 8)


def test_convolutions_change_the_layout_of_what_is_not_channels_last(count):
    def convolve(images, weight, bias):
        return torch.nn.functional.conv2d(images, weight, bias)

    def of_channels_last(*tensors):
        convolve(*(x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in tensors))

    shapes = ((2, 8, 1, 32), (4, 8, 1, 3), (4,))
    images, weight, bias, result = 2 * 8 * 32, 4 * 8 * 3, 4, 2 * 4 * 30
    other, last = ({each.name: each for each in count(call, *shapes)} for call in (convolve, of_channels_last))
    assert (other["convolution"].launches, last["convolution"].launches) == (5, 2)
    # The product, and a bias that is added to what it has written.
    assert last["convolution"].bytes == 2 * (images + weight + bias + 3 * result)


def test_transforms_are_copied_and_scaled(count):
    def both(x):
        return torch.fft.irfft(torch.fft.rfft(x), n=32)

    transforms = {launch.name: launch for launch in count(both, (2, 8, 32), dtype=torch.float32)}
    back = transforms["_fft_c2r"]
    assert back.operations == 2.5 * 2 * 8 * 32 * 5
    # A copy, the transform of 17 frequencies into 32 rows, and their scale.
    assert (back.launches, back.bytes) == (3, 3 * 2 * 8 * 17 * 8 + 3 * 2 * 8 * 32 * 4)


def test_transforms_inside_our_operators_are_copied(count):
    launches = count(lambda x, s: ops.spectral_filter(x, s, 32, segments=4), (2, 16, 8), (17, 8, 2))
    transforms = {launch.name: launch for launch in launches if "fft" in launch.name}
    assert set(transforms) == {"_fft_r2c", "_fft_c2r"}
    assert (transforms["_fft_r2c"].launches, transforms["_fft_c2r"].launches) == (1, 2)


def test_copies_inside_our_operators_count(count):
    pytest.importorskip("triton")
    offsets = torch.zeros(1, 2, dtype=torch.int64, device="meta")
    launches = count(lambda x, w: ops.link_mix(x, w, offsets), (2, 16, 8), (2, 16, 1, 2), triton=True)
    assert [launch.bytes for launch in launches if launch.name == "clone"] == [2 * 16 * 2 * 4]  # the weights, by links
    assert sum(launches.values()) == 2


def lift(x, predict, update):
    """Learned lifting of 3 levels and back, forward and backward."""
    bands = ops.lifting_analysis(x, predict, update, 3)
    ops.lifting_synthesis(bands, predict, update, 3, x.shape[1]).backward(torch.empty_like(x))


def test_lifting_in_plain_pytorch_scatters_nothing(count):
    """What scatters adds in an order that changes on GPUs."""
    names = {launch.name for launch in count(lift, (2, 64, 3), (4, 3), (5, 3))}
    assert "bmm" in names and not any(word in name for name in names for word in ("index_add", "scatter", "index_put"))


def test_lifting_in_triton_is_a_launch_for_each_step(count):
    pytest.importorskip("triton")
    launches = count(lift, (2, 64, 3), (4, 3), (5, 3), triton=True)
    numbers = {launch.name: 0 for launch in launches}
    for launch, number in launches.items():
        numbers[launch.name] += number
    # Two for each of 3 levels forward, 5 to find the rows of synthesis again, and one for each level of a derivative.
    assert numbers["triton _apply"] == 2 * 2 * 3 + 5 + 2 * 3
    assert numbers["triton _differentiate"] == 2 * 2 * 3
    assert not any("index_add" in name or "scatter" in name for name in numbers)


def test_lifting_in_triton_reads_rows_once_for_all_taps(count):
    pytest.importorskip("triton")
    from longmix.kernels.bands.gpu import CHANNELS, ROWS

    def analyse(x, predict, update):
        ops.lifting_analysis(x, predict, update, 1).backward(torch.empty_like(x))

    launches = count(analyse, (1, 2 * ROWS, CHANNELS), (4, CHANNELS), (7, CHANNELS), dtype=torch.float32, triton=True)
    moved = {name: [] for name in ("triton _apply", "triton _differentiate")}
    for launch, number in launches.items():
        if launch.name in moved:
            moved[launch.name] += [launch.bytes // (4 * CHANNELS)] * number
    # Rows, the rows of a sum, taps, and the result; last what the sum of the gradient of sums needs.
    predicted, updated = (2 * ROWS + (ROWS + taps - 1) + taps for taps in (4, 7))
    assert sorted(moved["triton _apply"]) == sorted([predicted, updated, predicted])
    # Gradient, of sums, a sum with its taps, those that are undone, and a part of the gradient of the taps.
    assert sorted(moved["triton _differentiate"]) == [
        2 * ROWS + (ROWS + 6) + 7 + 2 * ROWS + 7,
        2 * ROWS + (ROWS + 3) + 4 + (ROWS + 6) + 7 + ROWS + 4,
    ]


def test_rows_that_a_cache_holds_are_read_once_for_all_links(count, script, monkeypatch):
    pytest.importorskip("triton")
    offsets = torch.zeros(3, 5, dtype=torch.int64, device="meta")

    def moved(cache, documents):
        monkeypatch.setattr(script("gpu_model.triton_work"), "CACHE", cache)
        launches = count(
            lambda x, w: ops.link_mix(x, w, offsets), (2, 64, 64), (2, 64, 3, 5), triton=True, documents=documents
        )
        [launch] = (launch for launch in launches if launch.programs is not None)
        return launch.bytes

    row = 64 * 2
    for documents, fitting in ((None, 64 * row), ([30, 34, 10, 54], 54 * row)):
        least = moved(fitting, documents)
        # In three factors: copied, read, written, and five weights.
        assert least == 2 * 64 * (2 * row + 3 * 2 * row + 3 * 5 * 2)
        longest = 2 * 64 if documents is None else 54
        assert moved(fitting - 1, documents) == least + 3 * 5 * longest * row


def test_double_precision_is_a_unit_of_its_own(count):
    assert only(count(torch.sin, (8,), dtype=torch.float64)).unit == "fp64"


def test_a_triton_launch_has_programs_and_what_they_read(count):
    pytest.importorskip("triton")
    from longmix.kernels.attention import gpu_kernels

    shape = (2, 3, 128, 16)
    launches = count(lambda q, k, v: ops.feature_attention(q, k, v), *[shape] * 3, dtype=torch.float32, triton=True)
    (launch,) = (launch for launch in launches if launch.programs is not None)
    assert (launch.name, launch.programs, launches[launch]) == ("triton whole_forward", 6, 1)
    assert launch.bytes == 4 * math.prod(shape) * 4  # queries, keys, values and the result
    assert launch.operations == 2 * 3 * 128 * (4 * 16 * 16 + 16 * 16) and launch.unit == "fp32"
    rows = gpu_kernels.ROWS
    with_documents = count(
        lambda q, k, v: ops.feature_attention(
            q, k, v, document_ids=torch.zeros(2, 128, dtype=torch.int64, device="meta")
        ),
        *[shape] * 3,
        dtype=torch.float32,
        triton=True,
        documents=[1] * 256,
    )
    (ragged,) = (launch for launch in with_documents if launch.programs is not None)
    assert ragged.operations == rows * launch.operations  # each document takes a whole block


def test_attentions_of_half_precision_take_tensor_cores_from_a100_on(count, script, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr("longmix.kernels.common.tensor_cores.interpreted", lambda: False)

    def launched(**settings):
        rows, projection = [(2, 3, 128, 16)] * 3, (32, 16)
        call = lambda q, k, v, w: ops.random_feature_attention(q, k, v, w)  # noqa: E731
        launches = count(call, *rows, projection, triton=True, **settings)
        return {launch.name.removeprefix("triton "): launch for launch in launches if launch.programs is not None}

    a100, v100, fp32 = launched(), launched(dtype=torch.float16, flash=False), launched(dtype=torch.float32)
    assert (a100["whole_forward"].unit, fp32["whole_forward"].unit, v100["whole_forward"].unit) == (
        "tf32", "fp32", "fp32",
    )  # fmt: skip
    assert (a100["make_features"].unit, v100["make_features"].unit) == ("tf32", "fp32")
    assert a100["whole_forward"].operations == v100["whole_forward"].operations
    assert a100["make_features"].operations == 3 * v100["make_features"].operations  # in three products
    peaks = {card.name: card.peak for card in script("gpu_model.cards").CARDS}
    assert peaks["A100"]["tf32"] == 156e12 and peaks["V100"]["tf32"] == peaks["V100"]["fp32"]


def test_more_samples_than_a_grid_takes_are_refused(count):
    pytest.importorskip("triton")
    offsets = torch.zeros(1, 2, dtype=torch.int64, device="meta")
    calls = [
        (lambda value, weights: ops.link_mix(value, weights, offsets), lambda samples: (samples, 2, 1, 2)),
        (lambda value, filters: ops.wavelet_analysis(value, filters, 1), lambda samples: (2, 1)),
    ]
    for call, shape in calls:
        assert count(call, (65535, 2, 1), shape(65535), dtype=torch.float32, triton=True)
        with pytest.raises(ValueError, match="65536 programs along axis 2 of its grid, one for each sample"):
            count(call, (65536, 2, 1), shape(65536), dtype=torch.float32, triton=True)


LENGTHS = [20, 12, 32, 40, 24]
OFFSETS = torch.tensor([[0, 1, 2, 4], [0, 1, 2, 4], [0, 8, 16, 3]])
HEADS = [(1, 2, 128, 16)] * 3


def in_documents(query, key, value):
    ids = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))[None]
    return ops.feature_attention(query, key, value, document_ids=ids.to(query.device))


def there_and_back(x, filters):
    return ops.wavelet_synthesis(ops.wavelet_analysis(x, filters, 2), filters, 2, 64)


@pytest.mark.full
@pytest.mark.parametrize(
    ("call", "shapes", "cached"),
    [
        pytest.param(ops.linear_attention, HEADS, 0.0, id="whole"),
        pytest.param(ops.linear_attention, [*[(1, 1, 64, 128)] * 2, (1, 1, 64, 64)], 0.0, id="blocks of channels"),
        pytest.param(lambda q, k, v: ops.feature_attention(q, k, v, causal=True), HEADS, 0.0, id="causal"),
        pytest.param(in_documents, HEADS, 0.01, id="documents"),
        pytest.param(
            lambda value, weights: ops.link_mix(value, weights, OFFSETS.to(value.device)),
            [(1, 64, 32), (1, 64, 3, 4)],
            0.01,
            id="links",
        ),
        pytest.param(
            ops.givens_mix, [(1, 65, 2, 16, 2), (1, 2, 1, 64, 3), (1, 2, 1, 64, 3), (1, 2, 65)], 0.1, id="givens"
        ),
        pytest.param(
            lambda value, drawn, coefficients, *scales: ops.token_givens_mix(value, drawn, coefficients, *scales),
            [(1, 65, 2, 16, 2), (1, 65, 2, 7), (2, 3), (2, 7), (2, 7)],
            0.1,
            id="tokens",
        ),
        pytest.param(
            lambda *tensors: ops.near_attention(*tensors, 2), [*[(1, 2, 64, 16)] * 4, (2, 5), (2,)], 0.7, id="near"
        ),
        pytest.param(
            lambda *tensors: ops.random_feature_attention(*tensors),
            [*HEADS, (16, 16), (1, 1, 128, 8), (2, 2, 8, 16)],
            0.01,
            id="random features",
        ),
        pytest.param(there_and_back, [(1, 64, 32), (8, 32)], 0.5, id="wavelets"),
    ],
)
def test_kernels_do_no_more_than_the_model_says(count, script, monkeypatch, call, shapes, cached):
    """What Triton's interpreter loads, stores and multiplies; a share of it is what programs find in a cache."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("the kernels are compiled, not interpreted")
    builder, done = interpreter.InterpreterBuilder, {"bytes": 0, "operations": 0}
    load, store, dot = builder.create_masked_load, builder.create_masked_store, builder.create_dot

    def move(pointers, mask):
        done["bytes"] += int(mask.data.sum()) * pointers.get_element_ty().primitive_bitwidth // 8

    def counted_load(self, pointers, mask, *rest):
        move(pointers, mask)
        return load(self, pointers, mask, *rest)

    def counted_store(self, pointers, value, mask, *rest):
        move(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    def counted_dot(self, left, right, *rest):
        done["operations"] += 2 * left.data.size * right.data.shape[-1]
        return dot(self, left, right, *rest)

    for name, stand_in in (("masked_load", counted_load), ("masked_store", counted_store), ("dot", counted_dot)):
        monkeypatch.setattr(builder, f"create_{name}", stand_in)
    monkeypatch.setenv("LONGMIX_KERNELS", "triton")
    torch.manual_seed(0)
    call(*(torch.rand(shape, requires_grad=True) for shape in shapes)).sum().backward()
    documents = LENGTHS if call is in_documents else None
    monkeypatch.setattr(script("gpu_model.triton_work"), "CACHE", 0)
    launches = count(
        lambda *tensors: call(*tensors).sum().backward(),
        *shapes,
        dtype=torch.float32,
        triton=True,
        documents=documents,
    )
    of_triton = {launch: number for launch, number in launches.items() if launch.programs is not None}
    modelled = sum(number * launch.bytes for launch, number in of_triton.items())
    assert (1 - cached) * done["bytes"] <= modelled <= 1.15 * done["bytes"]
    assert done["operations"] <= sum(number * launch.operations for launch, number in of_triton.items())


def test_an_unknown_kernel_is_refused(script):
    with pytest.raises(ValueError, match="Triton kernel new: nobody has said what it reads"):
        script("gpu_model.triton_work").work_of("new", {}, (1,))


def test_nothing_stays_behind(count):
    before = selection.implementation, torch.autocast, functional.scaled_dot_product_attention
    with pytest.raises(RuntimeError):
        count(lambda x: x @ x, (2, 3))
    assert before == (selection.implementation, torch.autocast, functional.scaled_dot_product_attention)


def test_time_is_the_slowest_unit_and_the_launch(script):
    cards = script("gpu_model.cards")
    a100 = next(card for card in cards.CARDS if card.name == "A100")
    moving = cards.Launch("copy", 2, 1_555_000_000)
    assert a100.seconds(moving) == pytest.approx(1e-3 + 6e-6)
    computing = cards.Launch("mm", 1, 8, 312_000_000_000, "tensor core")
    assert a100.seconds(computing) == pytest.approx(1e-3 + 3e-6)
    serial = cards.Launch("triton", 1, 1_555_000_000, 0, "fp32", programs=27)
    assert a100.seconds(serial) == pytest.approx(1e-3 + 3e-6)
    assert a100.seconds(serial, only_its_programs=True) == pytest.approx(4e-3 + 3e-6)


def test_documents_fill_the_batch_and_end_with_samples(script):
    layers = script("gpu_model.layers")
    for positions in layers.LENGTHS:
        lengths = layers.document_lengths(positions)
        ends = {sum(lengths[: i + 1]) for i in range(len(lengths))}
        assert max(ends) == layers.TOKENS and set(range(positions, layers.TOKENS + 1, positions)) <= ends


def test_the_transformer_has_a_row_with_each_attention(script):
    layers = script("gpu_model.layers")
    cases = layers.cases(("transformer",), (TOKENS,))
    rows = script("gpu_cost").layer_rows(cases, TOKENS, **SMALL)
    assert [(row["layer"], row["documents"]) for row in rows] == [
        ("transformer", False),
        ("transformer", True),
        ("transformer, dense mask", True),
    ]
    for row in rows:
        assert set(row["milliseconds"]) == {"V100", "A100", "H100", "H200"}
        assert row["launches"] > 0 and row["bytes"] > 0 and row["operations"]["tensor core"] > 0
        assert row["milliseconds"] == row["milliseconds_of_programs"] and row["triton"] == []
    alone, packed, dense = rows
    assert packed["operations"]["tensor core"] < alone["operations"]["tensor core"]
    assert packed["launches"] < dense["launches"] and packed["bytes"] < dense["bytes"]


def test_a_layer_keeps_what_its_backward_pass_reads(script):
    """Of each token in 16 bit: inputs and results of both norms, queries, keys and values, which are one tensor, the
    first two once more, turned, what attention gives, and twice the feed-forward layer's inner width; in fp32 two
    statistics of each norm, the logarithm of each head's sum, and sine and cosine of each position's angles.
    """
    layers = script("gpu_model.layers")
    fields = {**layers.fields_of("transformer"), **SMALL, "num_hidden_layers": 1}
    width, inner, heads = (fields[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
    _, kept = layers._run(layers.Case("transformer", False, 16), fields, 1, torch.bfloat16, True, TOKENS)
    of_a_token = 2 * ((4 + 3 + 2 + 1) * width + 2 * inner) + 4 * (heads + 2 * 2)
    assert kept == TOKENS * of_a_token + 16 * 2 * 4 * width // heads


def test_faster_is_what_the_tables_show_as_faster(script):
    def row(layer, milliseconds):
        times = {"milliseconds": {"A100": milliseconds}, "milliseconds_of_programs": {"A100": milliseconds}}
        return {"layer": layer, "documents": False, "positions": 512, **times}

    verdict = script("gpu_model.report").verdict
    said = verdict([row("transformer", 4.0), row("flt", 3.9), row("wavspa", 3.7)])
    assert "wavspa at N = 512" in said and "flt" not in said


@dataclasses.dataclass(frozen=True)
class Kernel:
    """As gpu_model/compiling.py has them."""

    name: str = "whole_forward"
    target: str = "sm_80"
    dtype: str = "float32"
    registers: int = 255
    spilled_bytes: int = 1234
    shared_bytes: int = 4096
    fits: bool = True
    tensor_core_instructions: int = 0


def test_the_command_prints_writes_and_records(script, monkeypatch, tmp_path, capsys):
    cost, report, layers = (script(name) for name in ("gpu_cost", "gpu_model.report", "gpu_model.layers"))
    cases = layers.cases(("transformer",), (512,))
    monkeypatch.setattr(layers, "cases", lambda: cases)
    monkeypatch.setattr(script("record"), "RESULTS", tmp_path / "results.csv")
    monkeypatch.setattr(report, "DOCUMENT", tmp_path / "page.md")
    report.DOCUMENT.write_text("<!-- gpu model: begin -->\n<!-- gpu model: end -->\n", encoding="utf-8")
    stand_in = types.ModuleType("gpu_model.compiling")
    stand_in.compiled_kernels = lambda: [Kernel()]
    monkeypatch.setitem(sys.modules, "gpu_model.compiling", stand_in)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(sys, "argv", ["gpu_cost.py", "--record", "--json", str(tmp_path / "cost.json")])
    cost.main()
    found = json.loads((tmp_path / "cost.json").read_text(encoding="utf-8"))
    assert found["kernels"] == [dataclasses.asdict(Kernel())] and len(found["layers"]) == 3
    printed, page = capsys.readouterr().out, report.DOCUMENT.read_text(encoding="utf-8")
    for text in (printed, page):
        assert "1234" in text and "transformer, dense mask" in text and "With packed documents: none" in text
    assert "A model, not a measurement: nothing has run on a GPU" in printed and "Measured" not in page
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * (4 + 3) + 1 and {row["benchmark"] for row in rows} == {"gpu_cost"}
    assert all("model" in row["device"] for row in rows if not row["figure"].startswith("most spilled"))


def test_what_cannot_be_done_is_refused_before_counting(script, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(sys, "argv", ["gpu_cost.py"])
    with pytest.raises(SystemExit):
        script("gpu_cost").main()
    assert "TRITON_INTERPRET is 1" in capsys.readouterr().err
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(sys, "argv", ["gpu_cost.py", "--json", "nowhere/cost.json"])
    with pytest.raises(SystemExit):
        script("gpu_cost").main()
    assert "--json: nowhere is not a folder; make it first" in capsys.readouterr().err


def test_without_triton_plain_pytorch_is_counted(script, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "triton", None)
    cases = script("gpu_model.layers").cases(("s3attention",), (32,))
    rows = script("gpu_cost").layer_rows(cases, 64, **SMALL, row_landmarks=4, column_landmarks=4)
    assert [row["layer"] for row in rows] == ["s3attention, portable"]
    assert script("gpu_cost").kernel_rows() == []
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told] == [
        "triton is not installed",
        "s3attention does not keep packed documents apart",
        "triton is not installed",
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    "mixer", ["transformer", "flt", "paramixer", "converter", "s3attention", "wavspa", "wavspa-lifting"]
)
def test_every_further_layer_launches_what_the_second_does(script, mixer):
    layers = script("gpu_model.layers")
    for case in layers.cases((mixer,), (512,)):
        if not case.needs_triton:
            fields = {**layers.fields_of(mixer), "num_hidden_layers": 3}
            launches, kept = layers._run(case, fields, 3, torch.bfloat16, True, 1024)
            of_twelve = layers.count(case, torch.bfloat16, True, 1024, fields)
            each = {launch: number / 12 for launch, number in launches.items()}
            assert sums(each) == pytest.approx(sums(of_twelve.launches))
            assert kept / 12 == pytest.approx(of_twelve.kept)


def sums(counted):
    """{(what is launched, its unit, what is counted): sum}: what is launched once for all layers grows with them."""
    found = Counter()
    for launch, number in counted.items():
        for quantity in ("launches", "bytes", "operations"):
            found[launch.name, launch.unit, quantity] += number * getattr(launch, quantity)
    return {of: total for of, total in found.items() if total}


BOUNDS = json.loads((FOLDER / "gpu_model" / "layer_bounds.json").read_text(encoding="utf-8"))
PLACES = [(layer, kind, length) for layer in BOUNDS for kind in BOUNDS[layer] for length in BOUNDS[layer][kind]]


@pytest.fixture(scope="module")
def costs():
    """{place: costs} of all layers that have bounds, from a process of its own: Triton's interpreter, which other tests
    run, has other blocks.
    """
    pytest.importorskip("triton")
    counted = "[[place, costs(case)] for case, place in bounded()]"
    program = f"import json; from gpu_model.layer_bounds import bounded, costs; print(json.dumps({counted}))"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=True)
    return {tuple(place): found for place, found in json.loads(done.stdout)}


@pytest.mark.full
@pytest.mark.parametrize("place", PLACES, ids=", ".join)
def test_layers_cost_no_more_than_they_did(place, costs):
    layer, kind, length = place
    found, bound = dict(costs[place]), BOUNDS[layer][kind][length]
    assert found.pop("programs", 0) >= bound.get("programs", 0)
    assert all(value <= bound[name] for name, value in found.items()), (found, bound)


@pytest.mark.full
def test_the_command_writes_every_row(tmp_path):
    """In a process of its own: Triton's interpreter, which other tests run, has other blocks. Nothing is compiled."""
    pytest.importorskip("triton")
    program = "import gpu_cost; gpu_cost.kernel_rows = list; gpu_cost.main()"
    command = [sys.executable, "-c", program, "--json", str(tmp_path / "cost.json")]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=True)
    assert "A model, not a measurement" in done.stdout
    assert "s3attention does not keep packed documents apart: no rows for them" in done.stderr
    found = json.loads((tmp_path / "cost.json").read_text(encoding="utf-8"))
    places = [(row["layer"], row["documents"], row["positions"]) for row in found["layers"]]
    assert len(places) == len(set(places)) and {positions for *_, positions in places} == {512, 2048, 8192}
    assert {layer.partition(",")[0] for layer, *_ in places} == {
        "transformer",
        "flt",
        "paramixer",
        "converter",
        "s3attention",
        "wavspa",
        "wavspa-lifting",
    }


def test_a_kernel_that_does_not_compile_is_one_line(script, monkeypatch, tmp_path, capsys):
    command, path = script("gpu_cost"), tmp_path / "cost.json"

    def fails():
        raise RuntimeError("Traceback\n  File\ntriton.CompilationError: at 3:4")

    monkeypatch.setattr(command, "layer_rows", lambda cases: [])
    monkeypatch.setattr(command, "kernel_rows", fails)
    monkeypatch.setattr(command.report, "show", lambda found: None)
    monkeypatch.setattr(command.report, "layer_tables", lambda rows: [])
    monkeypatch.setattr(command.report, "verdict", lambda rows: "")
    monkeypatch.setattr("sys.argv", ["gpu_cost.py", "--json", str(path)])
    monkeypatch.setattr(command, "interpreted", lambda: False)
    with pytest.raises(SystemExit, match=r"^error: .*: triton.CompilationError: at 3:4$"):
        command.main()
    assert not path.exists()
