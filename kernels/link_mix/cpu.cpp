// Paramixer's product of sparse factors on a CPU.
//
// A task takes one sample and some blocks of channels. A block of all rows stays in cache while the factors pass over it.
// Offsets are reduced modulo a document's length once for each document and factor, so that a link costs one comparison.

#include <algorithm>
#include <cstring>

#include "parallel.h"

namespace {

constexpr int64_t BLOCK = 32;   // channels
constexpr int64_t GROUPS = 8;   // tasks that share the gradient of a sample's weights, at most

struct Shape {
    int64_t batch, positions, width, factors, links;
    bool wrap;
    int64_t blocks() const { return (width + BLOCK - 1) / BLOCK; }
    int64_t groups() const { return std::max<int64_t>(1, std::min(blocks(), GROUPS / std::max<int64_t>(batch, 1))); }
};

// Where the links of one factor lead within a document of `length` rows.
struct Steps {
    std::vector<int64_t> step;    // 0 .. length - 1 if the link wraps, else the offset
    std::vector<bool> inside;     // some row has this link

    Steps(const int64_t* offsets, int64_t links, int64_t length, bool wrap) : step(links), inside(links) {
        for (int64_t k = 0; k < links; ++k) {
            int64_t reduced = offsets[k] % length;
            step[k] = wrap ? (reduced < 0 ? reduced + length : reduced) : offsets[k];
            inside[k] = wrap || (offsets[k] > -length && offsets[k] < length);
        }
    }

    // Row that link k of row i leads to, both counted from the document's start; -1: it is dropped.
    int64_t target(int64_t k, int64_t i, int64_t length, bool wrap) const {
        int64_t row = i + step[k];
        if (wrap) return row >= length ? row - length : row;
        return inside[k] && row >= 0 && row < length ? row : -1;
    }
};

template <class T>
inline void add_scaled(T* __restrict target, const T* __restrict source, T weight) {
    for (int64_t c = 0; c < BLOCK; ++c) target[c] += weight * source[c];
}

template <class T>
inline T dot(const T* __restrict a, const T* __restrict b) {
    T lanes[8] = {};
    for (int64_t c = 0; c < BLOCK; c += 8)
        for (int64_t lane = 0; lane < 8; ++lane) lanes[lane] += a[c + lane] * b[c + lane];
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Rows (N, width) -> (N, BLOCK) from channel `first`, channels that do not exist zero; and back.
template <class T>
void load(const Shape& shape, const T* rows, int64_t first, T* block) {
    int64_t count = std::min(BLOCK, shape.width - first);
    for (int64_t i = 0; i < shape.positions; ++i) {
        std::memcpy(block + i * BLOCK, rows + i * shape.width + first, count * sizeof(T));
        std::fill(block + i * BLOCK + count, block + (i + 1) * BLOCK, T(0));
    }
}

template <class T>
void store(const Shape& shape, const T* block, int64_t first, T* rows) {
    int64_t count = std::min(BLOCK, shape.width - first);
    for (int64_t i = 0; i < shape.positions; ++i)
        std::memcpy(rows + i * shape.width + first, block + i * BLOCK, count * sizeof(T));
}

// output = (I + W_m) input, all documents of a sample; `starts` (N) and `lengths` (N) are those of each row's document.
template <class T>
void apply(const Shape& shape, int64_t factor, const T* weights, const int64_t* offsets, const int64_t* starts,
           const int64_t* lengths, const T* input, T* output) {
    int64_t begin = 0;
    // Padding has the span of its sample, which ends before it.
    for (int64_t end; begin < shape.positions && (end = starts[begin] + lengths[begin]) > begin; begin = end) {
        int64_t length = lengths[begin];
        Steps steps(offsets + factor * shape.links, shape.links, length, shape.wrap);
        const T* from = input + begin * BLOCK;
        for (int64_t i = 0; i < length; ++i) {
            const T* weight = weights + ((begin + i) * shape.factors + factor) * shape.links;
            T sum[BLOCK];
            std::memcpy(sum, from + i * BLOCK, sizeof(sum));
            for (int64_t k = 0; k < shape.links; ++k) {
                int64_t row = steps.target(k, i, length, shape.wrap);
                if (row >= 0) add_scaled(sum, from + row * BLOCK, weight[k]);
            }
            std::memcpy(output + (begin + i) * BLOCK, sum, sizeof(sum));
        }
    }
    std::memcpy(output + begin * BLOCK, input + begin * BLOCK, (shape.positions - begin) * BLOCK * sizeof(T));
}

// The transposed factor on gradients, and the gradient of its weights, added to `of_weights`.
template <class T>
void apply_transposed(const Shape& shape, int64_t factor, const T* weights, const int64_t* offsets,
                      const int64_t* starts, const int64_t* lengths, const T* input, const T* gradient, T* result,
                      T* of_weights) {
    std::memcpy(result, gradient, shape.positions * BLOCK * sizeof(T));
    for (int64_t begin = 0, end; begin < shape.positions && (end = starts[begin] + lengths[begin]) > begin; begin = end) {
        int64_t length = lengths[begin];
        Steps steps(offsets + factor * shape.links, shape.links, length, shape.wrap);
        for (int64_t i = 0; i < length; ++i) {
            int64_t place = ((begin + i) * shape.factors + factor) * shape.links;
            const T* own = gradient + (begin + i) * BLOCK;
            for (int64_t k = 0; k < shape.links; ++k) {
                int64_t row = steps.target(k, i, length, shape.wrap);
                if (row < 0) continue;
                of_weights[place + k] += dot(own, input + (begin + row) * BLOCK);
                add_scaled(result + (begin + row) * BLOCK, own, weights[place + k]);
            }
        }
    }
}

template <class T>
void forward(const Shape& shape, const T* value, const T* weights, const int64_t* offsets, const int64_t* starts,
             const int64_t* lengths, T* result, int threads) {
    int64_t plane = shape.positions * shape.width;
    parallel_for(threads, shape.batch * shape.blocks(), [&](int64_t task) {
        int64_t sample = task / shape.blocks(), first = task % shape.blocks() * BLOCK;
        const T* own = weights + sample * shape.positions * shape.factors * shape.links;
        const int64_t *start = starts + sample * shape.positions, *length = lengths + sample * shape.positions;
        std::vector<T> input(shape.positions * BLOCK), output(shape.positions * BLOCK);
        load(shape, value + sample * plane, first, input.data());
        for (int64_t factor = 0; factor < shape.factors; ++factor) {
            apply(shape, factor, own, offsets, start, length, input.data(), output.data());
            input.swap(output);
        }
        store(shape, input.data(), first, result + sample * plane);
    });
}

template <class T>
void backward(const Shape& shape, const T* gradient, const T* value, const T* weights, const int64_t* offsets,
              const int64_t* starts, const int64_t* lengths, T* of_value, T* of_weights, int threads) {
    int64_t plane = shape.positions * shape.width, groups = shape.groups();
    int64_t count = shape.positions * shape.factors * shape.links;
    // One sum of the weights' gradient for each group of channels, added up in their order afterwards.
    std::vector<T> sums(groups > 1 ? shape.batch * (groups - 1) * count : 0);
    std::fill(of_weights, of_weights + shape.batch * count, T(0));
    parallel_for(threads, shape.batch * groups, [&](int64_t task) {
        int64_t sample = task / groups, group = task % groups;
        const T* own = weights + sample * count;
        const int64_t *start = starts + sample * shape.positions, *length = lengths + sample * shape.positions;
        T* sum = group == 0 ? of_weights + sample * count : sums.data() + (sample * (groups - 1) + group - 1) * count;
        int64_t size = shape.positions * BLOCK;
        std::vector<T> inputs(std::max<int64_t>(shape.factors, 1) * size), above(size), below(size);
        for (int64_t block = group; block < shape.blocks(); block += groups) {
            load(shape, value + sample * plane, block * BLOCK, inputs.data());
            for (int64_t factor = 0; factor + 1 < shape.factors; ++factor)
                apply(shape, factor, own, offsets, start, length, inputs.data() + factor * size,
                      inputs.data() + (factor + 1) * size);
            load(shape, gradient + sample * plane, block * BLOCK, above.data());
            for (int64_t factor = shape.factors - 1; factor >= 0; --factor) {
                apply_transposed(shape, factor, own, offsets, start, length, inputs.data() + factor * size,
                                 above.data(), below.data(), sum);
                above.swap(below);
            }
            store(shape, above.data(), block * BLOCK, of_value + sample * plane);
        }
    });
    constexpr int64_t PIECE = 4096;
    int64_t pieces = groups > 1 ? (count + PIECE - 1) / PIECE : 0;
    parallel_for(threads, shape.batch * pieces, [&](int64_t task) {
        int64_t sample = task / pieces, first = task % pieces * PIECE;
        int64_t last = std::min(first + PIECE, count);
        for (int64_t group = 1; group < groups; ++group) {
            const T* sum = sums.data() + (sample * (groups - 1) + group - 1) * count;
            for (int64_t i = first; i < last; ++i) of_weights[sample * count + i] += sum[i];
        }
    });
}

}  // namespace

#define EXPORT(T, name)                                                                                               \
    extern "C" void longmix_link_mix_##name(const T* value, const T* weights, const int64_t* offsets,                 \
                                            const int64_t* starts, const int64_t* lengths, T* result, int64_t batch,  \
                                            int64_t positions, int64_t width, int64_t factors, int64_t links,         \
                                            int64_t wrap, int64_t threads) {                                                  \
        Shape shape{batch, positions, width, factors, links, wrap != 0};                                              \
        forward(shape, value, weights, offsets, starts, lengths, result, threads);                                    \
    }                                                                                                                 \
    extern "C" void longmix_link_mix_backward_##name(                                                                 \
        const T* gradient, const T* value, const T* weights, const int64_t* offsets, const int64_t* starts,           \
        const int64_t* lengths, T* of_value, T* of_weights, int64_t batch, int64_t positions, int64_t width,          \
        int64_t factors, int64_t links, int64_t wrap, int64_t threads) {                                                      \
        Shape shape{batch, positions, width, factors, links, wrap != 0};                                              \
        backward(shape, gradient, value, weights, offsets, starts, lengths, of_value, of_weights, threads);           \
    }

EXPORT(float, float32)
EXPORT(double, float64)
