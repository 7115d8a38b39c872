"""The last exchanges of this process, as torch's flight recorder has them: what a hanging collective belongs to.

torch keeps the last 2,000 (TORCH_FR_BUFFER_SIZE); a wait that hangs on a GPU shows in no stack of Python's.
"""

import contextlib
import json
import sys

LONGEST_LIST = 32
# torch's functions for them: NCCL's, and from torch 2.9 on gloo's.
RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


def last_exchanges() -> str:
    """A line for each, the last one first; empty if there is nothing to tell, or this torch has no recorder."""
    lines = dict.fromkeys(line for name in RECORDERS for line in _lines(name))
    return "".join(["the last exchanges, of each library the newest first:\n", *lines]) if lines else ""


def _lines(name: str) -> list[str]:
    with contextlib.suppress(Exception):  # whatever state the process is in: this must not keep it from ending
        entries = json.loads(getattr(sys.modules["torch"]._C._distributed_c10d, name)())["entries"]
        return [_line(entry) for entry in sorted(entries, key=lambda one: one["record_id"])[: -LONGEST_LIST - 1 : -1]]
    return []


def _line(entry: dict) -> str:
    group = ", ".join(map(str, entry["process_group"]))
    sizes = f"{entry['input_sizes']} {', '.join(entry['input_dtypes'])}"
    number = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
    return f"  {entry['profiling_name']} number {number} of group {group}: {sizes}, {entry['state']}\n"
