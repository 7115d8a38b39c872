"""The model of GPUs counts what is known by hand, and leaves everything as it found it."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from longmix.kernels import ops, selection

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
    expanded = only(count(lambda x, y: x + y.expand(64, 8), (64, 8), (8,), dtype=torch.float32))
    assert expanded.bytes == 4 * (64 * 8 + 8 + 64 * 8)


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


@pytest.mark.full
@pytest.mark.parametrize("mixer", ["transformer", "flt", "paramixer", "converter", "s3attention", "wavspa"])
def test_every_further_layer_launches_what_the_second_does(script, mixer):
    layers = script("gpu_model.layers")
    for case in layers.cases((mixer,), (512,)):
        if not case.needs_triton:
            fields = {**layers.fields_of(mixer), "num_hidden_layers": 3}
            counted = layers._run(case, fields, 3, torch.bfloat16, True, 1024)
            of_twelve = layers.count(case, torch.bfloat16, True, 1024, fields)
            assert {launch: number / 12 for launch, number in counted.items()} == pytest.approx(of_twelve)


@pytest.mark.full
def test_the_command_writes_every_row(tmp_path):
    """In a process of its own: Triton's interpreter, which other tests run, has other blocks."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "benchmarks/gpu_cost.py", "--json", str(tmp_path / "cost.json")]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
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
    }
