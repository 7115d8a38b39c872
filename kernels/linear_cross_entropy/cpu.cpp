// Cross entropies of rows of logits, and their gradients in the logits' place, on a CPU.
//
// A row is walked over a few times, while a cache has it: to add the bias and find the largest logit, for the sum of
// exponentials, which take the logits' place, and to divide by the sum.

#include <cmath>

#include "common/parallel.h"
#include "common/vectors.h"

namespace {

using namespace vectors;

constexpr int64_t SUMS = 4;  // vectors at a time: each waits for its last sum

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

}  // namespace

#ifdef FORWARD
extern "C" void longmix_forward(REAL* logits, const REAL* bias, const int64_t* labels, REAL* losses, int64_t* is_right,
                                int64_t rows, int64_t count, int64_t ignored, int64_t differentiates,
                                int64_t threads) {
    parallel_for(threads, rows, [&](int64_t number) {
        REAL* row = logits + number * count;
        if (labels[number] != ignored) {
            one_row<REAL>(row, bias, count, labels[number], differentiates != 0, losses[number], is_right[number]);
            return;
        }
        losses[number] = is_right[number] = 0;
        if (differentiates)
            for (int64_t c = 0; c < count; ++c) row[c] = 0;
    });
}
#endif
