"""One rank of a pretended run under a watchdog: `python watched_rank.py RUN RANK SIZE HANG_MINUTES BEHAVIOUR`.

It makes progress until the file RUN/go is there. Then, by BEHAVIOUR, it `waits` as in an exchange, or for one that was
begun before (`waits-later`), is `busy` elsewhere, `ends`, or goes on, be it at a `crawl` after a slow start. `start`:
it hangs before its run folder is shared.
"""

import functools
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from longmix.trainer.processes import watchdog
from longmix.trainer.processes.progress import Progress
from longmix.trainer.processes.world import LaterSum

WAIT = "def all_reduce(seconds):\n    import time\n    time.sleep(seconds)\n"


def read_a_shard():
    time.sleep(60)


def main():
    run, rank, size, minutes, behaviour = Path(sys.argv[1]), *map(float, sys.argv[2:5]), sys.argv[5]
    rank, size = int(rank), int(size)
    socket.gethostname = lambda: f"host-{'ab'[rank % 2]}"
    exchange = {}
    exec(compile(WAIT, "/site-packages/torch/distributed/distributed_c10d.py", "exec"), exchange)
    watchdog.START_MINUTES = minutes if behaviour == "start" else 1.0
    progress = Progress()

    def barrier():
        (run / f"here-{rank}").touch()
        while len(list(run.glob("here-*"))) < size:
            time.sleep(0.01)

    world = SimpleNamespace(rank=rank, size=size, is_first=rank == 0, progress=progress, barrier=barrier)
    with watchdog.Watchdog(world, run, minutes) as watched:
        if behaviour == "start":
            read_a_shard()
        if behaviour == "crawl":
            time.sleep(1.5 * 60 * minutes)
        watched.share()
        while not (run / "go").exists() or behaviour in ("on", "crawl"):
            progress.begin_step(progress.step + 1)
            progress.exchanges += 2
            # In pieces: a pause of the whole process lengthens one.
            for _ in range(20 if behaviour == "crawl" else 1):
                time.sleep(0.01)
        progress.step = 41
        if behaviour == "waits":
            exchange["all_reduce"](60)
        if behaviour == "waits-later":
            LaterSum(None, SimpleNamespace(wait=functools.partial(time.sleep, 60)), progress).wait()
        if behaviour == "busy":
            read_a_shard()
    print("ended")


if __name__ == "__main__":
    main()
