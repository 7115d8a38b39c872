"""The last exchanges of this process, as torch's flight recorder has them: what a hanging collective belongs to.

torch keeps the last 2,000 (TORCH_FR_BUFFER_SIZE); a wait that hangs on a GPU shows in no stack of Python's.
"""

import contextlib
import json
import sys

LONGEST_LIST = 32


def last_exchanges() -> str:
    """A line for each, the last one first; empty if there is nothing to tell, or this torch has no recorder."""
    with contextlib.suppress(Exception):  # whatever state the process is in: this must not keep it from ending
        entries = json.loads(_dump())["entries"]
        newest = sorted(entries, key=lambda entry: entry["record_id"], reverse=True)[:LONGEST_LIST]
        if newest:
            return "".join(["the last exchanges, the newest first:\n", *map(_line, newest)])
    return ""


def _dump() -> bytes:
    backend = sys.modules["torch"]._C._distributed_c10d
    # Its name before torch 2.9, of NCCL alone.
    dump = getattr(backend, "_dump_fr_trace_json", None) or backend._dump_nccl_trace_json
    return dump()


def _line(entry: dict) -> str:
    group = ", ".join(map(str, entry["process_group"]))
    sizes = f"{entry['input_sizes']} {', '.join(entry['input_dtypes'])}"
    number = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
    return f"  {entry['profiling_name']} number {number} of group {group}: {sizes}, {entry['state']}\n"
