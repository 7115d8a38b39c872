// Queries, keys and values of heads with rotary positions, on a CPU: taken apart and turned in one pass, and put together
// and turned back in one.

#include <algorithm>
#include <cstring>

#include "common/bfloat16.h"
#include "common/parallel.h"

namespace {

constexpr int64_t ROWS = 64;  // of a task: small enough for all threads to be busy

// Turns the pairs (i, half + i) of each head by angles, or back; `sine` is that of the second half of the features.
template <bool BACK, class T>
void turn(const T* from, T* to, const Wide<T>* cosine, const Wide<T>* sine, int64_t heads, int64_t half) {
    for (int64_t head = 0; head < heads; ++head, from += 2 * half, to += 2 * half)
        for (int64_t i = 0; i < half; ++i) {
            Wide<T> first = wide(from[i]), second = wide(from[half + i]), across = BACK ? -sine[i] : sine[i];
            store(first * cosine[i] - second * across, to[i]);
            store(second * cosine[i] + first * across, to[half + i]);
        }
}

// Calls task(token, where its angles begin) for each token of the batch.
template <class Task>
void for_each_token(int64_t batch, int64_t positions, int64_t features, bool samples_differ, int64_t threads,
                    Task task) {
    int64_t tokens = batch * positions;
    parallel_for(threads, (tokens + ROWS - 1) / ROWS, [&](int64_t number) {
        for (int64_t token = number * ROWS; token < std::min(tokens, (number + 1) * ROWS); ++token)
            task(token, (samples_differ ? token : token % positions) * features);
    });
}

}  // namespace

typedef Wide<REAL> WIDE_REAL;

#ifdef FORWARD
extern "C" void longmix_forward(const REAL* projected, REAL* query, REAL* key, REAL* value, int64_t batch,
                                int64_t positions, int64_t heads, int64_t features, const WIDE_REAL* cosine,
                                const WIDE_REAL* sine, int64_t samples_differ, int64_t threads) {
    int64_t width = heads * features, half = features / 2;
    for_each_token(batch, positions, features, samples_differ != 0, threads, [&](int64_t token, int64_t angle) {
        const REAL* from = projected + token * 3 * width;
        turn<false>(from, query + token * width, cosine + angle, sine + angle + half, heads, half);
        turn<false>(from + width, key + token * width, cosine + angle, sine + angle + half, heads, half);
        std::memcpy(value + token * width, from + 2 * width, width * sizeof(REAL));
    });
}
#endif

#ifdef BACKWARD
extern "C" void longmix_backward(REAL* projected, const REAL* query, const REAL* key, const REAL* value, int64_t batch,
                                 int64_t positions, int64_t heads, int64_t features, const WIDE_REAL* cosine,
                                 const WIDE_REAL* sine, int64_t samples_differ, int64_t threads) {
    int64_t width = heads * features, half = features / 2;
    for_each_token(batch, positions, features, samples_differ != 0, threads, [&](int64_t token, int64_t angle) {
        REAL* to = projected + token * 3 * width;
        turn<true>(query + token * width, to, cosine + angle, sine + angle + half, heads, half);
        turn<true>(key + token * width, to + width, cosine + angle, sine + angle + half, heads, half);
        std::memcpy(to + 2 * width, value + token * width, width * sizeof(REAL));
    });
}
#endif
