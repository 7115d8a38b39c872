"""What only a GPU runs of the GPU kit, with stand-ins: its events, its graphs, its attentions, what waits for it."""

import contextlib
import importlib
from types import SimpleNamespace

import pytest
import torch


def test_a_gpus_time_is_that_between_its_events(script, monkeypatch):
    timers, said = script("gpu_kit.timers"), []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            said.append("event")
            self.number = len(said)

        def elapsed_time(self, end):
            return 1000.0 * (end.number - self.number)

    class Rubbish:
        def zero_(self):
            said.append("flush")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("wait"))
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: Rubbish())
    found = timers.timed(lambda: said.append("call"), timers.make_timer("cuda"), budget=0.0)
    assert found == {"median": 2000.0, "p20": 2000.0, "p80": 2000.0, "runs": timers.FEWEST}
    assert said == [*["call", "wait"] * 3, *["flush", "event", "call", "event"] * 5, "wait"]


def test_launches_are_added_up_by_name(script, monkeypatch):
    timers = script("gpu_kit.timers")
    kinds = torch.autograd.DeviceType

    def event(name, kind, microseconds):
        return SimpleNamespace(name=name, device_type=kind, time_range=SimpleNamespace(elapsed_us=lambda: microseconds))

    told = [("a", kinds.CUDA, 2.0), ("b", kinds.CUDA, 5.0), ("a", kinds.CUDA, 4.0), ("launch", kinds.CPU, 9.0)]
    profile = SimpleNamespace(events=lambda: [event(*one) for one in told])
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: contextlib.nullcontext(profile))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert timers.launched(lambda: None) == [("a", 2, 6.0), ("b", 1, 5.0)]


def test_a_graph_holds_what_a_call_launches_after_a_first_one(script, monkeypatch):
    timers, said = script("gpu_kit.timers"), []

    class Stream:
        def wait_stream(self, other):
            said.append("wait")

    class Graph:
        def replay(self):
            said.append("replay")

    @contextlib.contextmanager
    def inside(what):
        said.append(f"into {type(what).__name__}")
        yield
        said.append(f"out of {type(what).__name__}")

    for name, value in {"Stream": Stream, "current_stream": Stream, "CUDAGraph": Graph}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, inside)
    timers.captured(lambda: said.append("call"))()
    first = ["wait", "into Stream", "call", "out of Stream", "wait"]
    assert said == [*first, "into Graph", "call", "out of Graph", "replay"]


@pytest.mark.full
def test_the_ways_of_attention_agree_on_packed_documents(script, monkeypatch):
    contestants, gate = script("gpu_kit.contestants"), script("kernel.gate")
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)

    def variable_length(query, key, value, segments, kernel, causal, dropout):
        offsets, longest = segments
        assert offsets.dtype == torch.int32 and longest == offsets.diff().max() and not causal and not dropout
        flat = [x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)]
        parts = [slice(*pair) for pair in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
        attend = torch.nn.functional.scaled_dot_product_attention
        pieces = [attend(*(x[part].transpose(0, 1) for x in flat)).transpose(0, 1) for part in parts]
        return torch.cat(pieces).unflatten(0, (query.shape[0], query.shape[2])).transpose(1, 2)

    monkeypatch.setattr(contestants, "kernel_for", lambda query, dropout: "flash")
    monkeypatch.setattr(contestants, "variable_length_attention", variable_length)
    for documents in (False, True):
        ways = (contestants.PLAIN, "sdpa flash", "flex", "variable-length")
        found = []
        for way in ways:
            case = contestants.attention(way, 2, 3, 64, documents)
            inputs = case.make(64, torch.Generator().manual_seed(0))  # flex attention has no gradients on CPUs
            found.append(case.apply(*inputs))
        assert all(gate.relative_error(tensor, found[0]) < 1e-5 for tensor in found)
    assert len(contestants.document_ids(2, 64).unique()) > 2


def test_a_block_with_documents_takes_them_as_segments_where_a_gpu_can(script, monkeypatch):
    softmax, taken = importlib.import_module("longmix.modeling.attention.softmax"), []
    monkeypatch.setattr(softmax, "kernel_for", lambda query, dropout: "flash")

    def variable_length(query, key, value, segments, kernel, **more):
        taken.append(segments)
        return value

    monkeypatch.setattr(softmax, "variable_length_attention", variable_length)
    # They come with the batch: to search them would wait for the GPU in every call that is timed.
    context = importlib.import_module("longmix.modeling.context")
    monkeypatch.delattr(context.BatchContext, "_segments_of_documents")
    block = script("gpu_kit.contestants").Block("transformer", "transformer_tiny", 2, documents=True)
    block.prepare(64, torch.device("cpu"), torch.float32).forward()
    ((offsets, longest),) = taken
    assert offsets[0] == 0 and offsets[-1] == 128 and 64 in offsets and len(offsets) > 3
    assert longest == offsets.diff().max() < 64


@pytest.mark.full
def test_waits_for_the_gpu_are_counted_in_the_steps_behind_those_that_are_timed(script, monkeypatch):
    modes = ["default"]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    watch = script("gpu_kit.training").Watch("cuda", first=2, steps=2, trace=None)

    def step(run, batch):
        if modes[-1] == "warn":
            for _ in range(3):
                script("warnings").warn("called a synchronizing CUDA operation", stacklevel=1)
        return batch

    assert [watch.wrapped(step)(None, number) for number in range(6)] == list(range(6))
    assert watch.waits == 3 and modes == ["default", "warn", "default", "warn", "default"]


@pytest.mark.full
def test_a_wrong_kernel_is_told_and_not_timed(script, setting, monkeypatch):
    speeds, gate = script("gpu_kit.speeds"), script("kernel.gate")
    right = script("kernel.kinds").Prepared.gradients
    case = script("kernel.cases").operations_of(script("kernel.cases").Size(2, 16, 2))["lifting"]
    cpu = torch.device("cpu")
    speeds._check(case, case, "portable", 64, cpu, torch.float32)
    calls = iter(range(9))
    # The second of truth, contestant and plain PyTorch is the contestant.

    def gradients(prepared):
        factor = 1 + (next(calls) == 1)
        return [factor * x for x in right(prepared)]

    monkeypatch.setattr(script("kernel.kinds").Prepared, "gradients", gradients)
    with pytest.raises(gate.WrongResultError, match="lifting, portable: the result is off by 1"):
        speeds._check(case, case, "portable", 64, cpu, torch.float32)
