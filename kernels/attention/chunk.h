// Linear attention on a CPU, one chunk of rows: its queries, keys and values, and the sums over the keys before it.
//
// Exponentials are taken relative to a scale of each feature, the largest key that the chunk's last row sees (its
// peak), and to one of each query. A row must not see a scale far above its own keys, or they would all vanish beside
// it: a causal chunk ends before the first row with a feature LIMIT above what the chunk's first row sees of it. That
// keeps the weights of all rows within exp(-LIMIT) of the scale, far from the end of fp32, and costs nothing where
// features do not jump.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>

#include "common/vectors.h"

namespace attention {

using namespace vectors;

constexpr int64_t CHUNK = 32;  // rows, whole vectors
constexpr int LIMIT = 40;
constexpr double NOTHING = -1e30;  // the scale of no key at all; finite, so that differences of scales are never NaN

struct Shape {
    int64_t batch, heads, positions, features, width;
    bool causal;
};

// Pointers to one head's rows; those that a pass does not use are null.
template <class T>
struct Rows {
    const T *query, *key, *value, *gradient;
    T *output, *of_query, *of_key, *of_value;
};

// Features or channels with what is added to fill vectors and the rows of tiles.
template <class T>
int64_t whole(int64_t count) {
    return padded(count, std::max(LANES<T>, ROWS));
}

// Memory for matrices of whole vectors, aligned to cache lines.
template <class T>
class Memory {
public:
    explicit Memory(int64_t count) : start_(std::aligned_alloc(64, padded(count * sizeof(T), 64))) {
        if (!start_) throw std::bad_alloc();
        next_ = static_cast<T*>(start_);
    }
    Memory(const Memory&) = delete;
    ~Memory() { std::free(start_); }
    T* take(int64_t count) {
        T* place = next_;
        next_ += count;
        return place;
    }

private:
    void* start_;
    T* next_;
};

// Rows [row, row + count) of a tensor (N, width) to rows of `stride`, filled up; and back, stored or added.
template <class T>
ONCE void load(const T* rows, int64_t row, int64_t count, int64_t width, int64_t stride, T* target, T fill) {
    for (int64_t i = 0; i < count; ++i) {
        std::memcpy(target + i * stride, rows + (row + i) * width, width * sizeof(T));
        std::fill(target + i * stride + width, target + (i + 1) * stride, fill);
    }
}

template <class T>
ONCE void store(const T* source, int64_t row, int64_t count, int64_t width, int64_t stride, T* rows) {
    for (int64_t i = 0; i < count; ++i) std::memcpy(rows + (row + i) * width, source + i * stride, width * sizeof(T));
}

template <class T>
ONCE void add(const T* source, int64_t row, int64_t count, int64_t width, int64_t stride, T* rows) {
    for (int64_t i = 0; i < count; ++i)
        for (int64_t c = 0; c < width; ++c) rows[(row + i) * width + c] += source[i * stride + c];
}

// What rows of queries and keys hold: features, their logarithms, or what a feature map makes features of (see
// feature_maps.py).
enum class Kind { Given, Logarithms, Elu, Relu };

constexpr double RELU_SHIFT = 0.001;

// The state is features by channels in the forward pass, and channels by features in the backward pass, which multiplies
// it from the other side.
template <class T, Kind KIND>
class Chunk {
public:
    static constexpr bool LOGS = KIND == Kind::Logarithms;

    Chunk(const Shape& shape, const Rows<T>& rows, int64_t more)
        : shape_(shape),
          rows_(rows),
          features_(whole<T>(shape.features)),
          width_(whole<T>(shape.width)),
          scale_of_rows_(std::pow(T(shape.features), T(-0.25))),
          memory_(CHUNK * (3 * features_ + 2 * width_ + CHUNK) + features_ * (width_ + 3) + more),
          query_(memory_.take(CHUNK * features_)),
          key_(memory_.take(CHUNK * features_)),
          key_columns_(memory_.take(CHUNK * features_)),
          value_(memory_.take(CHUNK * width_)),
          sums_(memory_.take(CHUNK * width_)),
          scores_(memory_.take(CHUNK * CHUNK)),
          state_(memory_.take(features_ * width_)),
          total_(memory_.take(features_)),
          peak_(memory_.take(features_)),
          before_(memory_.take(features_)) {}

protected:
    // The state of no key.
    void forget() {
        std::fill(state_, state_ + features_ * width_, T(0));
        std::fill(total_, total_ + features_, T(0));
        std::fill(peak_, peak_ + features_, LOGS ? T(NOTHING) : T(0));
    }

    void add_keys(int64_t count, bool backward) {
        if (backward)
            add_product(width_, features_, count, value_, 1, width_, key_, features_, state_, features_);
        else
            add_product(features_, width_, count, key_, 1, features_, value_, width_, state_, width_);
        for (int64_t i = 0; i < count; ++i)
            for (int64_t m = 0; m < features_; m += LANES<T>) at(total_ + m) += at(key_ + i * features_ + m);
    }

    // Keys and values of the chunk from `row`, and the state on their scale. Returns the number of rows in the chunk.
    ONCE int64_t load_keys(int64_t row, int64_t end, bool causal, bool backward) {
        int64_t count = std::min(CHUNK, end - row);
        load_features(rows_.key, row, count, key_);
        if (LOGS) {
            std::copy(peak_, peak_ + features_, before_);
            raise_peak(0, 1);
            if (causal) count = rows_in_reach(count);
            raise_peak(1, count);
            exponentials_of_keys(count);
            for (int64_t m = 0; m < features_; m += LANES<T>)
                at(before_ + m) = exponential(at(before_ + m) - at(peak_ + m));
            scale_features(total_, 1);
            backward ? scale_features(state_, width_) : scale_rows(state_);
        }
        load(rows_.value, row, count, shape_.width, width_, value_, T(0));
        return count;
    }

    // The same for keys that the state holds already.
    ONCE void load_keys_again(int64_t row, int64_t count) {
        load_features(rows_.key, row, count, key_);
        if (LOGS) exponentials_of_keys(count);
        load(rows_.value, row, count, shape_.width, width_, value_, T(0));
    }

    // Queries of the chunk, relative to the logarithms of their largest features, which are kept if there is a place.
    ONCE void load_queries(int64_t row, int64_t count, T* scales) {
        load_features(rows_.query, row, count, query_);
        for (int64_t i = 0; LOGS && i < count; ++i) {
            T* query = query_ + i * features_;
            Vector<T> largest = at(query) + at(peak_);
            for (int64_t m = LANES<T>; m < features_; m += LANES<T>)
                largest = larger(largest, at(query + m) + at(peak_ + m));
            T scale = std::max(largest_of<T>(largest), T(NOTHING));
            exponentials_of_query(query, scale);
            if (scales) scales[row + i] = scale;
        }
    }

    ONCE void load_queries_again(int64_t row, int64_t count, const T* scales) {
        load_features(rows_.query, row, count, query_);
        for (int64_t i = 0; LOGS && i < count; ++i) exponentials_of_query(query_ + i * features_, scales[row + i]);
    }

    // scores[i, j]: the weight of key j for query i; zero for j > i.
    void score(int64_t count) {
        transpose(key_, padded(count, LANES<T>), features_, features_, key_columns_, CHUNK);
        std::fill(scores_, scores_ + CHUNK * CHUNK, T(0));
        add_product(padded(count, ROWS), padded(count, LANES<T>), features_, query_, features_, 1, key_columns_, CHUNK,
                    scores_, CHUNK);
        cut_triangle(scores_, count);
    }

    static void cut_triangle(T* square, int64_t count) {
        for (int64_t i = 0; i < count; ++i) std::fill(square + i * CHUNK + i + 1, square + (i + 1) * CHUNK, T(0));
    }

    // One over the sum of row i's weights, zero if that is zero.
    T inverse_weight(int64_t i, bool inside) const {
        Vector<T> sum = {};
        for (int64_t m = 0; m < features_; m += LANES<T>) sum += at(query_ + i * features_ + m) * at(total_ + m);
        for (int64_t j = 0; inside && j <= i; j += LANES<T>) sum += at(scores_ + i * CHUNK + j);
        T weight = sum_of<T>(sum);
        return weight <= 0 ? T(0) : 1 / weight;
    }

    // Columns of rows (count, features) times the factors in before_; rows of the state times them.
    void scale_features(T* matrix, int64_t count) const {
        if (std::all_of(before_, before_ + features_, [](T factor) { return factor == T(1); })) return;
        for (int64_t i = 0; i < count; ++i)
            for (int64_t m = 0; m < features_; m += LANES<T>) at(matrix + i * features_ + m) *= at(before_ + m);
    }

    void scale_rows(T* matrix) const {
        for (int64_t m = 0; m < features_; ++m) {
            if (before_[m] == T(1)) continue;
            for (int64_t c = 0; c < width_; c += LANES<T>) at(matrix + m * width_ + c) *= before_[m];
        }
    }

    Shape shape_;
    Rows<T> rows_;
    int64_t features_, width_;  // whole vectors
    T scale_of_rows_;           // of relu
    Memory<T> memory_;
    // Rows of a chunk, features or channels wide; key_columns_ is transposed; sums_ are for the caller.
    T *query_, *key_, *key_columns_, *value_, *sums_;
    T* scores_;           // CHUNK by CHUNK
    T *state_, *total_;   // sums over keys: of their products with values, and alone
    T *peak_, *before_;   // scale of each feature, and what it was before, or how far it fell

private:
    // Beyond the features stand the logarithm of zero or, without logarithms, zero.
    ONCE void load_features(const T* rows, int64_t row, int64_t count, T* target) const {
        T fill = LOGS ? -std::numeric_limits<T>::infinity() : T(0);
        load(rows, row, count, shape_.features, features_, target, fill);
        if (KIND != Kind::Elu && KIND != Kind::Relu) return;
        for (int64_t i = 0; i < count; ++i) {
            for (int64_t m = 0; m < features_; m += LANES<T>) map(target + i * features_ + m);
            std::fill(target + i * features_ + shape_.features, target + (i + 1) * features_, T(0));
        }
    }

    // By comparisons, which let NaN through.
    void map(T* place) const {
        Vector<T> x = at(place), zero = {};
        if (KIND == Kind::Elu)
            at(place) = x > 0 ? x + 1 : exponential(x > 0 ? zero : x);
        else
            at(place) = (x < 0 ? zero : x * scale_of_rows_) + T(RELU_SHIFT);
    }

    void raise_peak(int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            for (int64_t m = 0; m < features_; m += LANES<T>)
                at(peak_ + m) = larger(at(peak_ + m), at(key_ + i * features_ + m));
    }

    // Rows before the first one that rises too far above peak_, which is what the chunk's first row sees.
    int64_t rows_in_reach(int64_t count) const {
        if (rise(1, count) <= LIMIT) return count;
        for (int64_t i = 1; i < count; ++i)
            if (rise(i, i + 1) > LIMIT) return i;
        return count;
    }

    T rise(int64_t begin, int64_t end) const {
        Vector<T> largest = {};
        for (int64_t i = begin; i < end; ++i)
            for (int64_t m = 0; m < features_; m += LANES<T>)
                largest = larger(largest, at(key_ + i * features_ + m) - at(peak_ + m));
        return largest_of<T>(largest);
    }

    ONCE void exponentials_of_keys(int64_t count) {
        for (int64_t i = 0; i < count; ++i)
            for (int64_t m = 0; m < features_; m += LANES<T>) {
                T* place = key_ + i * features_ + m;
                at(place) = exponential(at(place) - at(peak_ + m));
            }
    }

    ONCE void exponentials_of_query(T* query, T scale) const {
        for (int64_t m = 0; m < features_; m += LANES<T>)
            at(query + m) = exponential(at(query + m) + at(peak_ + m) - scale);
    }
};

}  // namespace attention
