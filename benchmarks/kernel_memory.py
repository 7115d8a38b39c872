"""Peak memory of calls in a process of its own, where freed memory is returned and nothing else allocates.

Timing and memory want different processes: memory that goes back to the system with every call must be fetched again by
the next one, which takes time.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from kernel.cases import LAYERS, OPERATIONS
from kernel.kinds import using
from measuring import Competitor, limit_memory, peak_memory, return_memory

# Calls that need more are left out.
BOUND = 8 << 30
WARM_UP = 128


class MemoryMeter:
    """Asks the measuring process; starts another one where it has died."""

    def __init__(self, threads: int, dtype: torch.dtype):
        self.arguments = [str(threads), str(dtype).removeprefix("torch.")]
        self.process = None

    def __enter__(self) -> "MemoryMeter":
        return self

    def __exit__(self, *_) -> None:
        if self.process is not None:
            self.process.communicate()

    def measure(self, name: str, implementation: str, length: int, direction: str) -> int | None:
        """Bytes beyond the arguments at the peak of a call; None: more than BOUND.

        Args:
            direction: "forward" or "gradients", the method of Prepared to call.
        """
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), *self.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "MKL_DISABLE_FAST_MM": "1"},
            )
        self.process.stdin.write(json.dumps([name, implementation, length, direction]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if answer:
            return json.loads(answer)
        code = self.process.wait()
        if code > 0:
            raise RuntimeError(f"{name}, {implementation}, N={length}: measuring memory failed with exit code {code}")
        return None  # ended by a signal, for want of memory


def serve(threads: int, dtype: torch.dtype) -> None:
    """Answer requests, one a line, until there is no more."""
    torch.set_num_threads(threads)
    return_memory()
    device = torch.device("cpu")
    warm = set()
    for line in sys.stdin:
        name, implementation, length, direction = json.loads(line)
        case = {**OPERATIONS, **LAYERS}[name]
        with using(implementation):
            if (name, implementation) not in warm:
                # What happens once, like compiling a kernel or starting threads.
                case.prepare(WARM_UP, device, dtype).gradients()
                warm.add((name, implementation))
            prepared = case.prepare(length, device, dtype)
        limit_memory(BOUND)
        competitor = Competitor(name, getattr(prepared, direction), lambda choice=implementation: using(choice))
        try:
            answer = peak_memory(competitor, device)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
                raise
            answer = None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), getattr(torch, sys.argv[2]))
