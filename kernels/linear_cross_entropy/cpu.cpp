// Cross entropies of rows of logits, and their gradients in the logits' place, on a CPU.
//
// A row is walked over a few times, while a cache has it: to add the bias and find the largest logit, for the sum of
// exponentials, which take the logits' place, to divide by the sum, and for the gradient of the bias.

#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>

#include "common/bfloat16.h"
#include "common/parallel.h"
#include "common/vectors.h"

namespace {

using namespace vectors;

constexpr int64_t SUMS = 4;        // vectors at a time: each waits for its last sum
constexpr int64_t TASK_ROWS = 16;  // a task has a sum of its own for the gradient of the bias

// Adds the bias, unless it is null, and returns the largest logit.
template <bool ADD, class T>
T largest(T* row, const T* bias, int64_t count) {
    Vector<T> found[SUMS];
    for (int64_t i = 0; i < SUMS; ++i) found[i] = Vector<T>{} - T(INFINITY);
    int64_t c = 0;
    for (; c + SUMS * LANES<T> <= count; c += SUMS * LANES<T>)
        for (int64_t i = 0; i < SUMS; ++i) {
            Vector<T>& logits = at(row + c + i * LANES<T>);
            if (ADD) logits += at(bias + c + i * LANES<T>);
            found[i] = larger(logits, found[i]);
        }
    for (int64_t i = 1; i < SUMS; ++i) found[0] = larger(found[0], found[i]);
    T result = largest_of<T>(found[0]);
    for (; c < count; ++c) {
        if (ADD) row[c] += bias[c];
        result = larger(row[c], result);
    }
    return result;
}

// exp(row - largest) and its sum; KEEP puts it in the row's place. NaN, and an infinite largest one, make the sum NaN.
template <bool KEEP, class T>
T sum_of_exponentials(T* row, int64_t count, T largest) {
    Vector<T> sums[SUMS] = {};
    int64_t c = 0;
    for (; c + SUMS * LANES<T> <= count; c += SUMS * LANES<T>)
        for (int64_t i = 0; i < SUMS; ++i) {
            Vector<T> value = exponential(at(row + c + i * LANES<T>) - largest);
            sums[i] += value;
            if (KEEP) at(row + c + i * LANES<T>) = value;
        }
    for (int64_t i = 1; i < SUMS; ++i) sums[0] += sums[i];
    T sum = sum_of<T>(sums[0]);
    for (; c < count; ++c) {
        T value = std::exp(row[c] - largest);
        sum += value;
        if (KEEP) row[c] = value;
    }
    return sum;
}

// Loss of a row, and whether its label has the first of the largest logits, if the loss is a number; `differentiates`:
// the row becomes the gradient by it.
template <class T>
void one_row(T* row, const T* bias, int64_t count, int64_t label, bool differentiates, T& loss, int64_t& is_right) {
    T top = bias ? largest<true>(row, bias, count) : largest<false>(row, bias, count), own = row[label];
    int64_t first = 0;
    // Seldom walked over.
    while (own == top && row[first] != top) ++first;
    T sum = differentiates ? sum_of_exponentials<true>(row, count, top) : sum_of_exponentials<false>(row, count, top);
    is_right = own == top && first == label && sum == sum;
    loss = std::log(sum) + (top - own);
    if (!differentiates) return;
    T share = 1 / sum;
    for (int64_t c = 0; c < count; ++c) row[c] *= share;
    row[label] -= 1;
}

// `count` numbers as they are computed: where they stand, or in `room`.
template <class T>
Wide<T>* widened(T* row, Wide<T>* room, int64_t count) {
    if constexpr (std::is_same<T, Wide<T>>::value) return row;
    for (int64_t c = 0; c < count; ++c) room[c] = wide(row[c]);
    return room;
}

}  // namespace

typedef Wide<REAL> WIDE_REAL;

#ifdef FORWARD
// Without `of_bias` nobody asks for the gradient of the bias, to which it is added.
extern "C" void longmix_forward(REAL* logits, const int64_t* labels, const WIDE_REAL* bias, WIDE_REAL* losses,
                                WIDE_REAL* of_bias, int64_t* is_right, int64_t rows, int64_t count, int64_t ignored,
                                int64_t differentiates, int64_t threads) {
    constexpr bool IS_WIDE = std::is_same<REAL, WIDE_REAL>::value;
    int64_t tasks = (rows + TASK_ROWS - 1) / TASK_ROWS;
    std::unique_ptr<WIDE_REAL[]> sums(of_bias ? new WIDE_REAL[tasks * count]() : nullptr);
    parallel_for(threads, tasks, [&](int64_t task) {
        std::unique_ptr<WIDE_REAL[]> room(IS_WIDE ? nullptr : new WIDE_REAL[count]);
        for (int64_t number = task * TASK_ROWS; number < std::min(rows, (task + 1) * TASK_ROWS); ++number) {
            REAL* row = logits + number * count;
            if (labels[number] == ignored) {
                losses[number] = is_right[number] = 0;
                if (differentiates)
                    for (int64_t c = 0; c < count; ++c) store(WIDE_REAL(0), row[c]);
                continue;
            }
            WIDE_REAL* wide_row = widened(row, room.get(), count);
            one_row(wide_row, bias, count, labels[number], differentiates != 0, losses[number], is_right[number]);
            if (of_bias)
                for (int64_t c = 0; c < count; ++c) sums[task * count + c] += wide_row[c];
            if (differentiates && !IS_WIDE)
                for (int64_t c = 0; c < count; ++c) store(wide_row[c], row[c]);
        }
    });
    for (int64_t task = 0; of_bias && task < tasks; ++task)
        for (int64_t c = 0; c < count; ++c) of_bias[c] += sums[task * count + c];
}
#endif
