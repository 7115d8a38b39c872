"""What the GPU model counts of each operator and Triton kernel: launches, bytes, operations."""

import importlib
import math
import os
from collections import Counter

import pytest
import torch
from torch.nn import functional

from longmix.kernels import ops, selection


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


def test_copies_inside_our_operators_count(count, triton):
    offsets = torch.zeros(1, 2, dtype=torch.int64, device="meta")
    launches = count(lambda x, w: ops.link_mix(x, w, offsets), (2, 16, 8), (2, 16, 1, 2), triton=True)
    assert [launch.bytes for launch in launches if launch.name == "clone"] == [2 * 16 * 2 * 4]  # the weights, by links
    assert sum(launches.values()) == 3  # with the links' steps, which are remainders


def lift(x, predict, update):
    """Learned lifting of 3 levels and back, forward and backward."""
    bands = ops.lifting_analysis(x, predict, update, 3)
    ops.lifting_synthesis(bands, predict, update, 3, *x.shape[:2]).backward(torch.empty_like(x))


def test_lifting_in_plain_pytorch_scatters_nothing(count):
    """What scatters adds in an order that changes on GPUs."""
    names = {launch.name for launch in count(lift, (2, 64, 3), (4, 3), (5, 3))}
    assert "bmm" in names and not any(word in name for name in names for word in ("index_add", "scatter", "index_put"))


def test_lifting_in_triton_is_a_launch_for_each_level(count, triton):
    launches = count(lift, (2, 64, 3), (4, 3), (5, 3), triton=True)
    numbers = {launch.name: 0 for launch in launches}
    for launch, number in launches.items():
        numbers[launch.name] += number
    # Each of 3 levels, there and back; and again to find the rows of synthesis.
    assert numbers["triton lift"] == 3 + 3 + 3
    assert numbers["triton unlift"] == 3 + 3
    assert not any(word in name for name in numbers for word in ("index_add", "scatter", "cat"))


def test_lifting_in_triton_reads_the_rows_of_a_strip_once(count, triton):
    from longmix.kernels.lifting.gpu_kernels import CHANNELS, ROWS

    def analyse(x, predict, update):
        ops.lifting_analysis(x, predict, update, 1).backward(torch.empty_like(x[0]))

    launches = count(analyse, (1, 2 * ROWS, CHANNELS), (4, CHANNELS), (7, CHANNELS), dtype=torch.float32, triton=True)
    moved = {launch.name: launch.bytes / (4 * CHANNELS) for launch in launches if launch.programs == 1}
    # With details beside the strip: odd rows, the even ones of their sums, and details; then even rows and the result.
    assert moved["triton lift"] == 2 * (ROWS + 6) + (ROWS + 6 + 3) + 2 * ROWS + 4 + 7
    # Both gradients, those of sums, the details that the update reads, rows that are undone, and gradients; at the end
    # taps and parts of their gradients.
    middle, most = ROWS + 3, ROWS + 3 + 6
    assert moved["triton unlift"] == 4 * most + (most + 6) + 3 * middle + ROWS + 2 * (4 + 7)


def test_rows_that_a_cache_holds_are_read_once_for_all_links(count, triton, script, monkeypatch):
    offsets = torch.zeros(3, 5, dtype=torch.int64, device="meta")

    def moved(cache, documents):
        monkeypatch.setitem(script("gpu_model.triton_work").CACHES, 80, cache)
        launches = count(
            lambda x, w: ops.link_mix(x, w, offsets), (2, 64, 32), (2, 64, 3, 5), triton=True, documents=documents
        )
        [launch] = (launch for launch in launches if launch.programs is not None)
        return launch.bytes

    row, of_a_slab = 32 * 2, 16 * 2
    for documents, fitting in ((None, 64 * of_a_slab), ([30, 34, 10, 54], 54 * of_a_slab)):
        least = moved(fitting, documents)
        # In three factors: copied, read, written, and five weights for each of two slabs.
        assert least == 2 * 64 * (2 * row + 3 * 2 * row + 2 * 3 * 5 * 2)
        longest = 2 * 64 if documents is None else 54
        assert moved(fitting - 1, documents) == least + 3 * 5 * longest * row


def test_double_precision_is_a_unit_of_its_own(count):
    assert only(count(torch.sin, (8,), dtype=torch.float64)).unit == "fp64"


def test_a_triton_launch_has_programs_and_what_they_read(count, triton):
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


def test_attentions_of_half_precision_take_tensor_cores_from_a100_on(count, triton, script, monkeypatch):
    monkeypatch.setattr("longmix.kernels.common.tensor_cores.interpreted", lambda: False)

    def launched(**settings):
        rows, projection = [(2, 3, 128, 16)] * 3, (32, 16)
        launches = Counter()
        for causal in (False, True):
            call = lambda q, k, v, w: ops.random_feature_attention(q, k, v, w, causal=causal)  # noqa: B023, E731
            launches |= count(call, *rows, projection, triton=True, **settings)
        return {launch.name.removeprefix("triton "): launch for launch in launches if launch.programs is not None}

    a100, v100, fp32 = launched(), launched(dtype=torch.float16, flash=False), launched(dtype=torch.float32)
    assert (a100["whole_forward"].unit, fp32["whole_forward"].unit, v100["whole_forward"].unit) == (
        "tf32", "fp32", "fp32",
    )  # fmt: skip
    assert (a100["make_features"].unit, v100["make_features"].unit) == ("tf32", "fp32")
    assert a100["make_features"].operations == 3 * v100["make_features"].operations  # in three products
    for launches, products in ((a100, 3), (v100, 1)):
        # Of each row of 32 features by 16 channels: two states, exponentials, and features of queries and of keys.
        each = 4 * 32 * 16 + 8 * 2 * 32 + products * 2 * 2 * 32 * 16
        assert launches["whole_forward"].operations == 2 * 3 * 128 * each
        # Queries, keys, values and the result, and the projection, for queries and keys of each program.
        assert launches["whole_forward"].bytes == 4 * 2 * 3 * 128 * 16 * 2 + 6 * 2 * 32 * 16 * 4


def test_biases_are_read_wherever_features_are_made(count, triton):
    rows, projection, waves, columns = [(2, 3, 128, 16)] * 3, (32, 16), (1, 1, 128, 8), (2, 3, 8, 32)
    places = torch.zeros(2, 128, dtype=torch.int64, device="meta")

    def launched(*biases, **keywords):
        def call(*tensors):
            ops.random_feature_attention(*tensors, **keywords).backward(torch.empty(2, 3, 128, 16, device="meta"))

        launches = count(call, *rows, projection, *biases, dtype=torch.float32, triton=True)
        found = {launch.name.removeprefix("triton "): launch.bytes for launch in launches if launch.programs}
        return found["whole_forward"], found["whole_backward"]

    without, at_rows, at_places = launched(), launched(waves, columns), launched(waves, columns, positions=places)
    of_bias = 2 * 3 * 128 * 32 * 4
    assert [b - a for a, b in zip(without, at_rows, strict=True)] == [2 * of_bias, 3 * of_bias]  # keys twice backward
    assert [b - a for a, b in zip(at_rows, at_places, strict=True)] == [2 * 8 * 2 * 3 * 128, 3 * 8 * 2 * 3 * 128]


def test_channels_that_no_program_takes_are_refused_before_the_forward_pass(count, triton, monkeypatch):
    monkeypatch.setattr("longmix.kernels.random_attention.gpu_kernels.interpreted", lambda: False)
    with pytest.raises(ValueError, match=r"has queries of 257 channels in torch.float32; allowed: at most"):
        count(ops.random_feature_attention, *[(2, 3, 128, 257)] * 3, (32, 257), dtype=torch.float32, triton=True)


def test_features_that_several_programs_would_make_lie_in_memory(count, triton):
    def launched(features, channels):
        shapes = *[(2, 3, 64, 16)] * 2, (2, 3, 64, channels), (features, 16)
        launches = count(ops.random_feature_attention, *shapes, dtype=torch.float32, triton=True)
        return {launch.name.removeprefix("triton "): launch.programs for launch in launches if launch.programs}

    assert "make_features" not in launched(64, 64)
    # Two blocks of channels, of two samples and three heads in 16 pieces; five of features, in four pieces each.
    assert launched(64, 128)["make_features"] == launched(64, 65)["make_features"] == 96
    assert launched(266, 64)["make_features"] == 120


def test_tf32_has_half_of_the_rate_of_half_precision(script):
    peaks = {card.name: card.peak for card in script("gpu_model.cards").CARDS}
    assert peaks["A100"]["tf32"] == 156e12 and peaks["V100"]["tf32"] == peaks["V100"]["fp32"]


def test_more_samples_than_a_grid_takes_are_refused(count, triton):
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
    return ops.wavelet_synthesis(ops.wavelet_analysis(x, filters, 2), filters, 2, *x.shape[:2])


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
            0.1,  # the projection, of all blocks but the first
            id="random features",
        ),
        pytest.param(
            lambda *tensors: ops.random_feature_attention(*tensors, causal=True),
            [*HEADS, (80, 16), (1, 1, 128, 8), (2, 2, 8, 80)],
            0.3,  # the same: a block has four rows here
            id="random features in memory",
        ),
        # Rows that several taps read, and a band's rows, which the threads of each tap read for themselves.
        pytest.param(there_and_back, [(1, 64, 32), (8, 32)], 0.6, id="wavelets"),
    ],
)
def test_kernels_do_no_more_than_the_model_says(count, triton, script, monkeypatch, call, shapes, cached):
    """What Triton's interpreter loads, stores and multiplies; a share of it is what programs find in a cache."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
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
    monkeypatch.setitem(script("gpu_model.triton_work").CACHES, 80, 0)
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
