"""Runs of `longmix train` that note the CPU time of their steps: one for each line of standard input, and an answer.

A line is a JSON list of the words of the command; the answer a JSON list of CPU-seconds, of each step but the first
two. It uses nothing of this folder, so that an environment with an earlier version of longmix can run it.
"""

import contextlib
import itertools
import json
import os
import sys
import time

from accelerate.state import AcceleratorState

from longmix.trainer import cli
from longmix.trainer.run import loop


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    make_engine = loop.make_engine
    for line in sys.stdin:
        ends: list[float] = []

        def with_clock(*arguments, ends=ends):
            engine = make_engine(*arguments)
            take_step = engine.step

            def step(learning_rate: float):
                result = take_step(learning_rate)
                # Of all threads of this process: also of those that read and mask the next batches.
                ends.append(time.process_time())
                return result

            engine.step = step
            return engine

        loop.make_engine = with_clock
        AcceleratorState._reset_state(reset_partial_state=True)  # which refuses another precision
        with contextlib.redirect_stdout(sys.stderr):
            code = cli.main(["train", *json.loads(line)])
        if code != 0:
            sys.exit(code)
        # The first step is the dry run's.
        print(json.dumps([now - before for before, now in itertools.pairwise(ends[1:])]), file=answers, flush=True)


if __name__ == "__main__":
    main()
