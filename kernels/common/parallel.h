// Runs independent tasks on several threads.
//
// Which thread runs a task must not matter: tasks are cut by the problem's shape, never by the number of threads, and
// sums over tasks are taken in the tasks' order, so that results are equal to the last bit whatever the number.

#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/callback.h"

struct Tasks {
    Callback<int64_t> task;
    int64_t count;
    std::atomic<int64_t> next{0};

    void work() {
        for (int64_t number; (number = next++) < count;) task(number);
    }
    static void* work_on(void* tasks) {
        static_cast<Tasks*>(tasks)->work();
        return nullptr;
    }
};

// Calls task(number) for all numbers below `count`, on up to `threads` threads: on fewer if no more can be started.
__attribute__((noinline)) inline void parallel_for(int64_t threads, int64_t count, Callback<int64_t> task) {
    Tasks tasks{task, count};
    std::vector<pthread_t> others;
    for (pthread_t other; static_cast<int64_t>(others.size()) + 1 < std::min(threads, count); others.push_back(other))
        if (pthread_create(&other, nullptr, Tasks::work_on, &tasks)) break;
    tasks.work();
    for (pthread_t other : others) pthread_join(other, nullptr);
}
