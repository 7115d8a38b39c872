"""Attention in segments, the way of GPUs, against the mask: stand-ins play the kernels on this machine's CPU."""

import itertools

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from longmix.modeling.attention import softmax
from longmix.modeling.attention.variable_length import FLASH, MEMORY_EFFICIENT, kernel_for, variable_length_attention
from longmix.modeling.context import BatchContext, Segments
from longmix.trainer.samples.collate import collate

KERNELS = (FLASH, MEMORY_EFFICIENT)
LENGTHS = (13, 4, 1, 13)
STARTS = ([0, 1, 2, 9], [0], [0], [0, 12])


def play(query, key, value, offsets, longest, dropout, causal, scale):
    """What both kernels do with (T, H, d) tensors, refusing what they would refuse."""
    cuts = offsets.tolist()
    assert offsets.dtype == torch.int32 and offsets.is_contiguous() and cuts[0] == 0 and cuts[-1] == len(query)
    assert min(np.diff(cuts)) >= 0 and max(np.diff(cuts)) <= longest <= len(query) and dropout == 0
    assert all(tensor.stride(-1) == 1 and tensor.shape[-1] % 8 == 0 for tensor in (query, key, value))
    pieces = []
    for start, end in itertools.pairwise(cuts):
        rows = (tensor[start:end].transpose(0, 1) for tensor in (query, key, value))
        pieces.append(functional.scaled_dot_product_attention(*rows, is_causal=causal, scale=scale).transpose(0, 1))
    return torch.cat(pieces)


def play_flash(query, key, value, offsets, key_offsets, longest, key_longest, dropout, causal, debug, *, scale):
    assert key_offsets is offsets and key_longest == longest and not debug
    return play(query, key, value, offsets, longest, dropout, causal, scale), None


def play_memory_efficient(
    query, key, value, bias, offsets, key_offsets, longest, key_longest, dropout, mask_type, keeps, *, scale
):
    assert key_offsets is offsets and key_longest == longest and bias is None
    assert keeps == (torch.is_grad_enabled() and query.requires_grad) and len(query) == len(key) == len(value) == 1
    return play(query[0], key[0], value[0], offsets, longest, dropout, mask_type == 1, scale)[None], None


@pytest.fixture
def on_gpu(monkeypatch):
    """on_gpu(kernel): softmax attention now computes as on a GPU; returns the list of the segments that it is given."""

    def turn(kernel):
        seen = []

        def recorded(query, key, value, segments, *rest, **options):
            seen.append(segments)
            return variable_length_attention(query, key, value, segments, *rest, **options)

        monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", play_flash)
        monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", play_memory_efficient)
        monkeypatch.setattr(softmax, "kernel_for", lambda query, dropout: kernel)
        monkeypatch.setattr(softmax, "variable_length_attention", recorded)
        return seen

    return turn


def packed_batch():
    """Rows of LENGTHS tokens with documents, as runs collate them; the last token of each document has no label."""
    generator = np.random.default_rng(0)
    samples = [
        {
            "input_ids": ids,
            "document_starts": np.asarray(starts),
            "labels": np.where(generator.random(n) < 0.5, ids, -100),
        }
        for n, starts in zip(LENGTHS, STARTS, strict=True)
        for ids in [generator.integers(5, 60, n)]
    ]
    return collate(samples, 0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("given", ["mask", "documents", "both"])
def test_equals_the_mask(given, dtype, is_causal, kernel, make_mixer, on_gpu):
    mixer = make_mixer("transformer", is_causal=is_causal, hidden_size=20).to(dtype)
    batch = packed_batch()
    mask = torch.arange(13) < torch.tensor([13, 0, 5, 1])[:, None] if given == "mask" else batch["attention_mask"] != 0
    rows = slice(None)
    documents = None if given == "mask" else batch["document_ids"]
    segments = None if given == "mask" else Segments(batch["segment_offsets"], batch["longest_segment"])
    if given == "documents":  # without padding
        rows, mask, segments = slice(0, 1), None, Segments(torch.tensor([0, 1, 2, 9, 13], dtype=torch.int32), 7)
        documents = documents[:1]
    x = torch.randn(4, 13, 20, dtype=dtype)[rows]
    if mask is not None:
        x = torch.where(mask[:, :, None], x, float("nan"))
    context = BatchContext(mask, documents, documents=segments)
    upstream = torch.randn(x.shape, dtype=dtype)

    def run():
        own = x.clone().requires_grad_()
        result = mixer(own, context)
        gradients = torch.autograd.grad((result * upstream).sum(), [own, *mixer.parameters()])
        return [result, *gradients]

    expected = run()
    seen = on_gpu(kernel)
    found = run()
    assert len(seen) == 1
    bound = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 4e-2}[dtype]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype and torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=bound, atol=bound * max(1, other.abs().max().item()))


@pytest.mark.parametrize(
    ("model_type", "auto_class", "fields"),
    [
        ("transformer", AutoModelForMaskedLM, {}),
        ("transformer", AutoModelForCausalLM, {}),
        ("wavspa", AutoModelForMaskedLM, {"attention": "softmax"}),
        pytest.param(
            "wavspa", AutoModelForMaskedLM, {"attention": "softmax", "space": "fourier"}, marks=pytest.mark.full
        ),
    ],
)
def test_whole_models_give_the_same_losses_and_gradients(model_type, auto_class, fields, make_model, on_gpu):
    model = make_model(model_type, auto_class, **fields).double()
    batch = packed_batch()

    def run():
        model.zero_grad()
        output = model(**batch)
        output.loss.backward()
        return [
            output.loss.detach(),
            output.logits.detach(),
            *(p.grad for p in model.parameters() if p.grad is not None),
        ]

    expected = run()
    seen = on_gpu(FLASH)
    found = run()
    assert seen
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    if model_type == "transformer":
        # Made once in a forward pass, also when blocks are computed again.
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        seen.clear()
        again = run()
        assert len(seen) == 4 and all(one is seen[0] for one in seen)
        torch.testing.assert_close(again[0], expected[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("has_padding", [False, True])
def test_documents_without_segments_are_found_once(has_padding, make_model, on_gpu):
    """Ids of any kind, padding anywhere, also documents that would run on through it."""
    model = make_model("transformer", AutoModelForMaskedLM).double()
    generator = torch.Generator().manual_seed(0)
    batch = {
        "input_ids": torch.randint(5, 60, (5, 13), generator=generator),
        "document_ids": torch.randint(-1, 2, (5, 13), generator=generator),
    }
    batch["document_ids"][3] = 7
    if has_padding:
        batch["attention_mask"] = (
            torch.rand(5, 13, generator=generator) < torch.tensor([1, 0, 0.5, 0.5, 0.9])[:, None]
        ).int()
    expected = model(**batch).logits
    seen = on_gpu(FLASH)
    found = model(**batch).logits
    assert len(seen) == 2 and seen[0] is seen[1]
    assert seen[0].offsets.diff().max() == seen[0].longest and seen[0].offsets.diff().min() > 0
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_segments_that_cannot_be_found():
    ids = torch.zeros(2, 13, dtype=torch.int64)
    assert BatchContext(document_ids=ids).segments.offsets.tolist() == [0, 13, 26]
    compiled = torch.compile(lambda ids: BatchContext(document_ids=ids).segments is None, backend="eager")
    assert compiled(ids) and BatchContext(document_ids=ids.to("meta")).segments is None


def test_segments_of_a_mask_are_made_once_and_without_waiting(make_model, on_gpu):
    seen = on_gpu(FLASH)
    mask = torch.arange(13) < torch.tensor([13, 0, 5, 1])[:, None]
    make_model("transformer")(input_ids=torch.ones(4, 13, dtype=torch.int64), attention_mask=mask)
    assert len(seen) == 2 and seen[0] is seen[1]
    assert seen[0].offsets.tolist() == [0, 13, 13, 13, 26, 31, 39, 40, 52] and seen[0].longest == 13


class Largest(TorchDispatchMode):
    """Most elements of a tensor that any operation gives, and the names of the operations."""

    def __init__(self):
        super().__init__()
        self.elements, self.names = 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.names.add(function._schema.name)
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


@pytest.mark.parametrize("is_causal", [False, True])
def test_no_square_is_made_on_a_gpu(is_causal, make_mixer):
    """On fake CUDA tensors, which say what would run."""
    batch, positions, width = 2, 512, 16
    mixer = make_mixer("transformer", max_position_embeddings=positions, is_causal=is_causal).requires_grad_(False)
    with FakeTensorMode(), torch.device("cuda"):
        tensors = {name: torch.empty(tensor.shape).bfloat16() for name, tensor in mixer.named_parameters()}
        x, ids = torch.empty(batch, positions, width).bfloat16(), torch.empty(batch, positions, dtype=torch.int64)
        documents = Segments(torch.empty(9, dtype=torch.int32), 300)
        mask = torch.empty(batch, positions, dtype=torch.bool)
        for context in (BatchContext(None, ids, documents=documents), BatchContext(mask)):
            with Largest() as largest:
                torch.func.functional_call(mixer, tensors, (x, context))
            assert "aten::_flash_attention_forward" in largest.names
            assert not any("item" in name or "local_scalar" in name or "nonzero" in name for name in largest.names)
            assert largest.elements <= batch * positions * 3 * width
        assert BatchContext(None, ids).segments is None  # where documents end is not known: the mask


def test_which_kernel_runs_where(monkeypatch):
    with FakeTensorMode():
        half, full, double = (
            torch.empty(1, 2, 4, 64, device="cuda", dtype=dtype)
            for dtype in (torch.float16, torch.float32, torch.float64)
        )
        wide, none = (
            torch.empty(size, device="cuda", dtype=torch.bfloat16) for size in ((1, 2, 4, 256), (1, 2, 0, 64))
        )
    # Without a GPU: fake tensors, for which the backward pass of memory-efficient attention is not known.
    assert kernel_for(half, 0.1) == FLASH and kernel_for(full, 0.0) is None
    for major, expected in ((7, MEMORY_EFFICIENT), (8, FLASH), (9, FLASH)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        properties = type("Properties", (), {"major": major})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, properties=properties: properties)
        assert kernel_for(half, 0.0) == expected
        assert kernel_for(half, 0.1) == (FLASH if expected == FLASH else None)
        assert kernel_for(full, 0.0) == kernel_for(wide, 0.0) == MEMORY_EFFICIENT
        assert kernel_for(full, 0.1) is kernel_for(double, 0.0) is kernel_for(none, 0.0) is None
        assert kernel_for(torch.empty(1, 2, 4, 64), 0.0) is None
    monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: False)
    assert kernel_for(half, 0.0) == MEMORY_EFFICIENT
    monkeypatch.setattr(torch.backends.cuda, "mem_efficient_sdp_enabled", lambda: False)
    assert kernel_for(half, 0.0) is kernel_for(full, 0.0) is None


def test_the_choice_of_a_kernel_compiles_without_breaks():
    """On a fake CUDA tensor: a break in every layer would cut the model to pieces."""
    with FakeTensorMode():
        half = torch.empty(1, 2, 4, 64, device="cuda", dtype=torch.float16)
        compiled = torch.compile(
            lambda x: x + 1 if kernel_for(x, 0.1) == FLASH else x.sum(), fullgraph=True, backend="eager"
        )
        assert compiled(half).shape == half.shape


@pytest.mark.full
@pytest.mark.parametrize("is_causal", [False, True])
def test_flash_attention_compiles_without_breaks(is_causal, make_mixer, monkeypatch):
    """Tensors without values stand for a GPU's: traced forward and backward, for lengths that change."""
    monkeypatch.setattr(softmax, "kernel_for", lambda query, dropout: FLASH)
    mixer = make_mixer("transformer", is_causal=is_causal).bfloat16().to("meta")
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    for count, longest in ((5, 7), (9, 6), (4, 8)):
        x = torch.empty(2, 13, 16, device="meta", dtype=torch.bfloat16, requires_grad=True)
        ids = torch.empty(2, 13, device="meta", dtype=torch.int64)
        segments = Segments(torch.empty(count, device="meta", dtype=torch.int32), longest)
        compiled(x, BatchContext(None, ids, documents=segments)).sum().backward()
        assert x.grad.shape == x.shape
    # Forward alone: torch loses the gradient of `where` with such a mask.
    assert compiled(x, BatchContext(torch.empty(2, 13, device="meta", dtype=torch.bool))).shape == x.shape


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"longest_segment": None}, "given is only a part of document_ids, segment_offsets and longest_segment"),
        ({"segment_offsets": None}, "given is only a part"),
        ({"document_ids": None}, "given is only a part"),
        ({"segment_offsets": torch.tensor([0, 13])}, r"segment_offsets has shape \(2,\) and torch.int64; allowed"),
        ({"longest_segment": 14}, "longest_segment is 14; allowed: 1 to the 13 positions"),
    ],
)
def test_wrong_segments_are_refused(changed, told, make_model):
    batch = {name: value for name, value in packed_batch().items() if name != "labels"}
    with pytest.raises(ValueError, match=told):
        make_model("transformer")(**{**batch, **changed})
