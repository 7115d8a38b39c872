"""What a process frees on a CPU and takes again, by the pages that the system has to give it meanwhile."""

import os
import subprocess
import sys

import pytest

from longmix.trainer.run import dry_run
from longmix.trainer.samples.freed_memory import VARIABLES

ROUNDS = 10
# The first blocks leave pieces between them: glibc before 2.38 takes new memory for some of an aligned block's size.
PROGRAM = f"""
import resource
import sys

import torch

from longmix.trainer.samples.freed_memory import keep_freed_memory


def pages(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        torch.ones(1 << 24)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


keep_freed_memory(int(sys.argv[1]))
pages(20)
print(pages({ROUNDS}))
"""


def pages_of(memory, **variables):
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(memory)],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return int(result.stdout)


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="glibc's malloc")
def test_what_is_freed_is_there_for_the_next_one_where_there_is_room():
    # With huge pages of 2 MiB, too, a tensor has 32 of them.
    assert pages_of(2**40) < 10 * ROUNDS
    assert pages_of(2**28) > 30 * ROUNDS
    assert pages_of(2**40, MALLOC_TRIM_THRESHOLD_="1000000") > 30 * ROUNDS  # the user has decided


def test_a_run_on_a_cpu_asks_for_it_with_its_share_of_the_memory(train, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(dry_run, "keep_freed_memory", asked.append)
    monkeypatch.setattr(dry_run, "free_memory", lambda: 64 * 2**30)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert train(tmp_path / "run", deepspeed=None).code == 0
    assert asked == [64 * 2**30]
