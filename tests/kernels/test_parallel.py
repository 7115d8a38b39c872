"""Tasks of the C++ kernels on threads: each runs once, whatever threads can be started."""

import ctypes
import shutil

import pytest
import torch

from longmix.kernels import build

SOURCE = """
#include <pthread.h>
#include <cstdint>

static int64_t allowed;

static int start(pthread_t* thread, const pthread_attr_t* how, void* (*work)(void*), void* what) {
    return allowed-- > 0 ? (pthread_create)(thread, how, work, what) : 11;
}
#define pthread_create start
#include "common/parallel.h"

extern "C" void longmix_count(int64_t threads, int64_t tasks, int64_t startable, int64_t* runs) {
    allowed = startable;
    parallel_for(threads, tasks, [&](int64_t task) { ++runs[task]; });
    runs[tasks] = startable - allowed;
}
"""


@pytest.fixture(scope="module")
def count(tmp_path_factory):
    """(threads, tasks, threads that can be started) -> how often each task ran, and how often a start was tried."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "count").mkdir()
    (folder / "count" / "cpu.cpp").write_text(SOURCE)
    shutil.copytree(build.FOLDER / "common", folder / "common")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FOLDER", folder)
        patch.setenv("XDG_CACHE_HOME", str(folder))
        function = build.library("count/cpu.cpp", "count", torch.float32).longmix_count
        function.argtypes = (*[build.SIZE] * 3, ctypes.c_void_p)

    def run(threads, tasks, startable):
        runs = torch.zeros(tasks + 1, dtype=torch.int64)
        function(threads, tasks, startable, runs.data_ptr())
        *tasks, tried = runs.tolist()
        return tasks, tried

    return run


@pytest.mark.parametrize("threads, tasks, others", [(1, 5, 0), (3, 5, 2), (8, 5, 4), (3, 1, 0), (3, 0, 0)])
def test_every_task_runs_once_on_no_more_threads_than_tasks(threads, tasks, others, count):
    assert count(threads, tasks, 100) == ([1] * tasks, others)


@pytest.mark.parametrize("startable", [0, 1, 2])
def test_threads_that_cannot_be_started_are_done_without(startable, count):
    assert count(8, 1000, startable) == ([1] * 1000, startable + 1)
