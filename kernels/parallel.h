// Runs independent tasks on several threads.
//
// Which thread runs a task must not matter: tasks are cut by the problem's shape, never by the number of threads, and
// sums over tasks are taken in the tasks' order, so that results are equal to the last bit whatever the number.

#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

template <class Task>
void parallel_for(int threads, int64_t tasks, const Task& task) {
    if (threads > tasks) threads = static_cast<int>(tasks);
    if (threads <= 1) {
        for (int64_t number = 0; number < tasks; ++number) task(number);
        return;
    }
    std::atomic<int64_t> next{0};
    auto work = [&] {
        for (int64_t number; (number = next++) < tasks;) task(number);
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(work);
    work();
    for (auto& other : others) other.join();
}
