"""A run of `longmix train` that notes the CPU time of its steps: `python step_worker.py FILE WORDS...`.

It uses nothing of this folder, so that an environment with an earlier version of longmix can run it.
"""

import itertools
import json
import sys
import time
from pathlib import Path

from longmix.trainer import cli
from longmix.trainer.run import loop


def main() -> int:
    target, words = Path(sys.argv[1]), sys.argv[2:]
    seconds: list[float] = []
    make_engine = loop.make_engine

    def with_clock(*arguments):
        engine = make_engine(*arguments)
        take_step = engine.step

        def step(learning_rate: float):
            result = take_step(learning_rate)
            # Of all threads of this process: also of those that read and mask the next batches.
            seconds.append(time.process_time())
            return result

        engine.step = step
        return engine

    loop.make_engine = with_clock
    code = cli.main(["train", *words])
    # The first step is the dry run's.
    target.write_text(json.dumps([now - before for before, now in itertools.pairwise(seconds[1:])]))
    return code


if __name__ == "__main__":
    sys.exit(main())
