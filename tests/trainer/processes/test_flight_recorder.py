"""The last exchanges of a rank, beside its stacks when a run hangs."""

import json
import sys

import pytest
import torch

from longmix.trainer.processes import flight_recorder, watchdog
from longmix.trainer.processes.world import World


def entry(number, state="scheduled", **changes):
    return {
        "record_id": number,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[3, number]],
        "input_dtypes": ["Float"],
        "state": state,
        **changes,
    }


@pytest.fixture
def recorded(monkeypatch):
    def record(*entries):
        dump = lambda: json.dumps({"entries": entries}).encode()  # noqa: E731
        monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace_json", dump, raising=False)

    return record


def test_the_newest_comes_first_and_the_list_ends(recorded):
    recorded(*(entry(number) for number in range(100)))
    head, first, *rest = flight_recorder.last_exchanges().splitlines()
    assert head == "the last exchanges, of each library the newest first:"
    assert first == "  nccl:all_reduce number 99 of group 0, default_pg: [[3, 99]] Float, scheduled"
    assert len(rest) == flight_recorder.LONGEST_LIST - 1


def test_without_exchanges_or_a_recorder_nothing_is_told(recorded, monkeypatch):
    recorded()
    assert flight_recorder.last_exchanges() == ""
    for broken in (b"no json", b"[]"):
        monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace_json", lambda broken=broken: broken)
        assert flight_recorder.last_exchanges() == ""
    monkeypatch.delitem(sys.modules, "torch")
    assert flight_recorder.last_exchanges() == ""


def test_exchanges_of_nccl_are_told_beside_those_of_gloo(recorded, monkeypatch):
    recorded(entry(3))
    dump = lambda: json.dumps({"entries": [entry(7)]}).encode()  # noqa: E731
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", dump, raising=False)
    _, first, second = flight_recorder.last_exchanges().splitlines()
    assert "number 7 of" in first and "number 3 of" in second


def test_earlier_versions_of_torch_have_it_under_another_name(monkeypatch):
    monkeypatch.delattr(torch._C._distributed_c10d, "_dump_fr_trace_json", raising=False)
    dump = lambda: json.dumps({"entries": [entry(7)]}).encode()  # noqa: E731
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", dump, raising=False)
    assert "number 7 of" in flight_recorder.last_exchanges()


def test_a_rank_whose_run_hangs_writes_them_down_behind_its_stacks(recorded, tmp_path, monkeypatch):
    class Ended(Exception):
        pass

    def leave(code):
        raise Ended

    recorded(entry(3, "started"))
    monkeypatch.setattr(watchdog.os, "_exit", leave)
    with watchdog.Watchdog(World(0, 1, torch.device("cpu"), None), tmp_path, 0.001) as watching:
        watching._is_over.set()  # the thread is not needed: what it does at the end is called here
        watching.share()
        watching._is_over.clear()
        with pytest.raises(Ended):
            watching._end()
    stacks = (tmp_path / "stacks" / "rank-00000.txt").read_text()
    assert stacks.startswith("longmix: stacks of rank 0") and "thread MainThread:" in stacks
    assert stacks.splitlines()[-1] == "  nccl:all_reduce number 3 of group 0, default_pg: [[3, 3]] Float, started"
