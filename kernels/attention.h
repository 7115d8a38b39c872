// Linear attention on a CPU: from non-negative features, or from the logarithms of positive ones.
//
// A task takes one head of one sample and walks over its documents in chunks of rows. What lies before a chunk is one
// matrix of sums, features by channels, that stays in cache; pairs inside the chunk are taken one by one.
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
#include <cstring>
#include <limits>
#include <new>

#include "parallel.h"

namespace attention {

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int COLUMNS = 4;  // vectors of a tile's row; with ROWS of them the sums fill half of the registers
#else
constexpr int COLUMNS = 2;
#endif
constexpr int64_t ROWS = 4;
constexpr int64_t CHUNK = 32;
constexpr int LIMIT = 40;
constexpr double NOTHING = -1e30;  // the scale of no key at all; finite, so that differences of scales are never NaN

template <class T>
struct Lanes;
template <>
struct Lanes<float> {
    typedef float Vector __attribute__((vector_size(BYTES), aligned(alignof(float)), may_alias));
    typedef int32_t Integers __attribute__((vector_size(BYTES), aligned(alignof(float)), may_alias));
};
template <>
struct Lanes<double> {
    typedef double Vector __attribute__((vector_size(BYTES), aligned(alignof(double)), may_alias));
};
template <class T>
using Vector = typename Lanes<T>::Vector;
template <class T>
constexpr int64_t LANES = BYTES / sizeof(T);

template <class T>
inline Vector<T>& at(T* place) { return *reinterpret_cast<Vector<T>*>(place); }
template <class T>
inline const Vector<T>& at(const T* place) { return *reinterpret_cast<const Vector<T>*>(place); }

inline int64_t padded(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// ---- vectors ----

template <class V>
inline V larger(V a, V b) { return a > b ? a : b; }

template <class T>
inline T sum_of(Vector<T> x) {
    T lanes[LANES<T>];
    std::memcpy(lanes, &x, sizeof(lanes));
    for (int64_t half = LANES<T> / 2; half; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

template <class T>
inline T largest_of(Vector<T> x) {
    T lanes[LANES<T>];
    std::memcpy(lanes, &x, sizeof(lanes));
    for (int64_t half = LANES<T> / 2; half; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane) lanes[lane] = larger(lanes[lane], lanes[lane + half]);
    return lanes[0];
}

template <class T>
inline T dot(const T* a, const T* b, int64_t count) {
    Vector<T> sum = {};
    for (int64_t i = 0; i < count; i += LANES<T>) sum += at(a + i) * at(b + i);
    return sum_of<T>(sum);
}

// exp for arguments up to 88, within an ulp; what would be denormal is zero.
inline Vector<float> exponential(Vector<float> x) {
    typedef Lanes<float>::Integers Integers;
    constexpr float ROUNDING = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the lowest bits
    Vector<float> shifted = x * 1.44269504f + ROUNDING;
    Vector<float> whole = shifted - ROUNDING;
    Vector<float> rest = x - whole * 0.693145752f;  // ln 2 in two parts, the first with zeros at its end
    rest = rest - whole * 1.42860677e-6f;
    Vector<float> sum = rest * (1.0f / 5040) + 1.0f / 720;
    sum = sum * rest + 1.0f / 120;
    sum = sum * rest + 1.0f / 24;
    sum = sum * rest + 1.0f / 6;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    Integers power = reinterpret_cast<Integers&>(shifted) - 0x4b400000;
    Integers bits = reinterpret_cast<Integers&>(sum) + (power << 23);
    bits &= ~(x < -87.3365f);
    return reinterpret_cast<Vector<float>&>(bits);
}

inline Vector<double> exponential(Vector<double> x) {
    Vector<double> result;
    for (int64_t lane = 0; lane < LANES<double>; ++lane) result[lane] = std::exp(x[lane]);
    return result;
}

// ---- small matrix products ----

// ROWS rows by WIDTH vectors: c += a b, where a[r, k] stands at r * a_row + k * a_step.
template <int WIDTH, class T>
inline void add_tile(int64_t depth, const T* a, int64_t a_row, int64_t a_step, const T* b, int64_t b_row, T* c,
                     int64_t c_row) {
    Vector<T> sum[ROWS][WIDTH];
    for (int64_t r = 0; r < ROWS; ++r)
        for (int64_t v = 0; v < WIDTH; ++v) sum[r][v] = at(c + r * c_row + v * LANES<T>);
    for (int64_t k = 0; k < depth; ++k) {
        Vector<T> right[WIDTH];
        for (int64_t v = 0; v < WIDTH; ++v) right[v] = at(b + k * b_row + v * LANES<T>);
        for (int64_t r = 0; r < ROWS; ++r) {
            T left = a[r * a_row + k * a_step];
            for (int64_t v = 0; v < WIDTH; ++v) sum[r][v] += left * right[v];
        }
    }
    for (int64_t r = 0; r < ROWS; ++r)
        for (int64_t v = 0; v < WIDTH; ++v) at(c + r * c_row + v * LANES<T>) = sum[r][v];
}

// c (rows, columns) += a (rows, depth) b (depth, columns); whole ROWS and whole vectors of columns.
template <class T>
void add_product(int64_t rows, int64_t columns, int64_t depth, const T* a, int64_t a_row, int64_t a_step, const T* b,
                 int64_t b_row, T* c, int64_t c_row) {
    constexpr int64_t WIDE = COLUMNS * LANES<T>;
    int64_t column = 0;
    for (; column + WIDE <= columns; column += WIDE)
        for (int64_t r = 0; r < rows; r += ROWS)
            add_tile<COLUMNS>(depth, a + r * a_row, a_row, a_step, b + column, b_row, c + r * c_row + column, c_row);
    for (; column < columns; column += LANES<T>)
        for (int64_t r = 0; r < rows; r += ROWS)
            add_tile<1>(depth, a + r * a_row, a_row, a_step, b + column, b_row, c + r * c_row + column, c_row);
}

// ---- one head ----

struct Shape {
    int64_t batch, heads, positions, features, width;
    bool causal;
};

// Memory for a head's matrices, aligned to cache lines.
template <class T>
class Memory {
public:
    explicit Memory(int64_t count) : start_(std::aligned_alloc(64, padded(count * sizeof(T), 64))) {
        if (!start_) throw std::bad_alloc();
        next_ = static_cast<T*>(start_);
    }
    Memory(const Memory&) = delete;
    ~Memory() { std::free(start_); }
    // `count` numbers, a whole number of vectors.
    T* take(int64_t count) {
        T* place = next_;
        next_ += count;
        return place;
    }

private:
    void* start_;
    T* next_;
};

// Pointers to one head's rows; those that a pass does not use are null.
template <class T>
struct Rows {
    const T *query, *key, *value, *result, *gradient;
    T *output, *of_query, *of_key, *of_value;
};

// Attention of one head, of features (LOGS false) or of their logarithms.
template <class T, bool LOGS>
class Head {
public:
    Head(const Shape& shape, const Rows<T>& rows, bool backward)
        : shape_(shape),
          rows_(rows),
          features_(padded(shape.features, LANES<T>)),
          width_(padded(shape.width, LANES<T>)),
          memory_(size(backward)) {
        query_ = memory_.take(CHUNK * features_);
        key_ = memory_.take(CHUNK * features_);
        key_columns_ = memory_.take(CHUNK * features_);
        value_ = memory_.take(CHUNK * width_);
        sums_ = memory_.take(CHUNK * width_);
        state_ = memory_.take(features_ * width_);
        total_ = memory_.take(features_);
        peak_ = memory_.take(features_);
        before_ = memory_.take(features_);
        scores_ = memory_.take(CHUNK * CHUNK);
        if (!backward) return;
        value_columns_ = memory_.take(CHUNK * width_);
        gradient_ = memory_.take(CHUNK * width_);
        inside_ = memory_.take(CHUNK * CHUNK);
        mixed_ = memory_.take(CHUNK * features_);
        later_ = memory_.take(features_ * width_);
        later_columns_ = memory_.take(features_ * width_);
        later_total_ = memory_.take(features_);
        inverse_.resize(shape.positions);
        offset_.resize(shape.positions);
        if (LOGS) scale_.resize(shape.positions);
    }

    // Rows [begin, end), one document.
    void forward(int64_t begin, int64_t end) {
        forget();
        if (!shape_.causal) {
            for (int64_t row = begin, count; row < end; row += count) {
                count = load_keys(row, end, false);
                load(rows_.value, row, count, shape_.width, width_, value_, T(0));
                add_product(features_, width_, count, key_, 1, features_, value_, width_, state_, width_);
                add_rows(total_, key_, count);
            }
            for (int64_t row = begin, count; row < end; row += count) {
                count = std::min(CHUNK, end - row);
                load_queries(row, count);
                read(row, count, false);
            }
            return;
        }
        for (int64_t row = begin, count; row < end; row += count) {
            count = load_keys(row, end, true);
            load(rows_.value, row, count, shape_.width, width_, value_, T(0));
            load_queries(row, count);
            score(count);
            read(row, count, true);
            add_product(features_, width_, count, key_, 1, features_, value_, width_, state_, width_);
            add_rows(total_, key_, count);
        }
    }

    void backward(int64_t begin, int64_t end) {
        forget();
        std::fill(later_, later_ + features_ * width_, T(0));
        std::fill(later_columns_, later_columns_ + features_ * width_, T(0));
        std::fill(later_total_, later_total_ + features_, T(0));
        shape_.causal ? backward_causal(begin, end) : backward_whole(begin, end);
    }

private:
    int64_t size(bool backward) const {
        int64_t count = CHUNK * (3 * features_ + 2 * width_ + CHUNK) + features_ * (width_ + 3);
        if (backward) count += CHUNK * (features_ + 2 * width_ + CHUNK) + features_ * (2 * width_ + 1);
        return count;
    }

    void backward_whole(int64_t begin, int64_t end) {
        for (int64_t row = begin, count; row < end; row += count) {
            count = load_keys(row, end, false);
            load(rows_.value, row, count, shape_.width, width_, value_, T(0));
            add_values_of_keys(count);
        }
        for (int64_t row = begin, count; row < end; row += count) {
            count = std::min(CHUNK, end - row);
            load_queries(row, count);
            load_gradient(row, count, false);
            of_queries(row, count, false);
            add_gradients_of_queries(row, count);
        }
        for (int64_t row = begin, count; row < end; row += count) {
            count = std::min(CHUNK, end - row);
            load_keys_at_peak(row, count);
            of_keys(row, count, false);
        }
    }

    // Forward through the chunks for the queries' gradients and what pairs inside a chunk add to the others; backward
    // for what keys get from later chunks.
    void backward_causal(int64_t begin, int64_t end) {
        chunks_.clear();
        peaks_.clear();
        for (int64_t row = begin, count; row < end; row += count) {
            count = load_keys(row, end, true);
            chunks_.push_back(row);
            if (LOGS) peaks_.insert(peaks_.end(), peak_, peak_ + features_);
            load(rows_.value, row, count, shape_.width, width_, value_, T(0));
            load_queries(row, count);
            score(count);
            load_gradient(row, count, true);
            score_gradients(row, count);
            of_queries(row, count, true);
            of_keys_inside(row, count);
            add_values_of_keys(count);
        }
        for (int64_t number = static_cast<int64_t>(chunks_.size()) - 1; number >= 0; --number) {
            int64_t row = chunks_[number], count = end - row;
            end = row;
            if (LOGS) {
                std::copy(peak_, peak_ + features_, before_);
                std::copy_n(peaks_.data() + number * features_, features_, peak_);
                rescale_later();
            }
            load_keys_at_peak(row, count);
            of_keys(row, count, true);
            load_queries_at_scale(row, count);
            load_gradient_again(row, count);
            add_gradients_of_queries(row, count);
        }
    }

    // -- state --

    void forget() {
        std::fill(state_, state_ + features_ * width_, T(0));
        std::fill(total_, total_ + features_, T(0));
        std::fill(peak_, peak_ + features_, LOGS ? T(NOTHING) : T(0));
    }

    void add_rows(T* sum, const T* rows, int64_t count) const {
        for (int64_t i = 0; i < count; ++i)
            for (int64_t m = 0; m < features_; m += LANES<T>) at(sum + m) += at(rows + i * features_ + m);
    }

    // state, channels by features, += values times keys.
    void add_values_of_keys(int64_t count) {
        add_product(width_, features_, count, value_, 1, width_, key_, features_, state_, features_);
        add_rows(total_, key_, count);
    }

    void add_gradients_of_queries(int64_t row, int64_t count) {
        add_product(features_, width_, count, query_, 1, features_, gradient_, width_, later_, width_);
        add_product(width_, features_, count, gradient_, 1, width_, query_, features_, later_columns_, features_);
        for (int64_t i = 0; i < count; ++i)
            for (int64_t m = 0; m < features_; m += LANES<T>)
                at(later_total_ + m) -= offset_[row + i] * at(query_ + i * features_ + m);
    }

    // The state on the scale of peak_, from that of before_.
    void rescale(bool columns) {
        for (int64_t m = 0; m < features_; m += LANES<T>)
            at(before_ + m) = exponential(at(before_ + m) - at(peak_ + m));
        scale_matrix(state_, total_, columns);
    }

    // The same for what comes later; going back, peaks fall.
    void rescale_later() {
        for (int64_t m = 0; m < features_; m += LANES<T>)
            at(before_ + m) = exponential(at(peak_ + m) - at(before_ + m));
        scale_matrix(later_, later_total_, false);
        scale_columns(later_columns_);
    }

    void scale_matrix(T* matrix, T* total, bool columns) {
        for (int64_t m = 0; m < features_; m += LANES<T>) at(total + m) *= at(before_ + m);
        if (columns) return scale_columns(matrix);
        for (int64_t m = 0; m < features_; ++m) {
            if (before_[m] == T(1)) continue;
            for (int64_t c = 0; c < width_; c += LANES<T>) at(matrix + m * width_ + c) *= before_[m];
        }
    }

    void scale_columns(T* matrix) {
        if (std::all_of(before_, before_ + features_, [](T factor) { return factor == T(1); })) return;
        for (int64_t c = 0; c < width_; ++c)
            for (int64_t m = 0; m < features_; m += LANES<T>) at(matrix + c * features_ + m) *= at(before_ + m);
    }

    // -- rows of a chunk --

    static void load(const T* rows, int64_t row, int64_t count, int64_t width, int64_t stride, T* target, T fill) {
        for (int64_t i = 0; i < count; ++i) {
            std::memcpy(target + i * stride, rows + (row + i) * width, width * sizeof(T));
            std::fill(target + i * stride + width, target + (i + 1) * stride, fill);
        }
    }

    static void store(const T* source, int64_t row, int64_t count, int64_t width, int64_t stride, T* rows) {
        for (int64_t i = 0; i < count; ++i) std::memcpy(rows + (row + i) * width, source + i * stride, width * sizeof(T));
    }

    static void add(const T* source, int64_t row, int64_t count, int64_t width, int64_t stride, T* rows) {
        for (int64_t i = 0; i < count; ++i)
            for (int64_t c = 0; c < width; ++c) rows[(row + i) * width + c] += source[i * stride + c];
    }

    // What stands beyond the features: their logarithm, minus infinity.
    static constexpr T beyond() { return LOGS ? -std::numeric_limits<T>::infinity() : T(0); }

    void load_features(const T* rows, int64_t row, int64_t count, T* target) const {
        load(rows, row, count, shape_.features, features_, target, beyond());
    }

    // The chunk's keys from `row`, and the state on their scale. Returns the number of rows in the chunk.
    int64_t load_keys(int64_t row, int64_t end, bool causal) {
        int64_t count = std::min(CHUNK, end - row);
        load_features(rows_.key, row, count, key_);
        if (!LOGS) return count;
        std::copy(peak_, peak_ + features_, before_);
        for (int64_t m = 0; m < features_; m += LANES<T>) at(peak_ + m) = larger(at(peak_ + m), at(key_ + m));
        if (causal) count = rows_in_reach(count);
        for (int64_t i = 1; i < count; ++i)
            for (int64_t m = 0; m < features_; m += LANES<T>)
                at(peak_ + m) = larger(at(peak_ + m), at(key_ + i * features_ + m));
        rescale(rows_.gradient != nullptr);
        exponentials_of_keys(count);
        return count;
    }

    // Rows before the first one that rises too far above peak_, which is what the chunk's first row sees.
    int64_t rows_in_reach(int64_t count) const {
        for (int64_t i = 1; i < count; ++i) {
            Vector<T> rise = at(key_ + i * features_) - at(peak_);
            for (int64_t m = LANES<T>; m < features_; m += LANES<T>)
                rise = larger(rise, at(key_ + i * features_ + m) - at(peak_ + m));
            if (largest_of<T>(rise) > LIMIT) return i;
        }
        return count;
    }

    void load_keys_at_peak(int64_t row, int64_t count) {
        load_features(rows_.key, row, count, key_);
        if (LOGS) exponentials_of_keys(count);
        load(rows_.value, row, count, shape_.width, width_, value_, T(0));
    }

    void exponentials_of_keys(int64_t count) {
        for (int64_t i = 0; i < count; ++i)
            for (int64_t m = 0; m < features_; m += LANES<T>) {
                T* place = key_ + i * features_ + m;
                at(place) = exponential(at(place) - at(peak_ + m));
            }
    }

    void load_queries(int64_t row, int64_t count) {
        load_features(rows_.query, row, count, query_);
        if (!LOGS) return;
        for (int64_t i = 0; i < count; ++i) {
            T* query = query_ + i * features_;
            Vector<T> largest = at(query) + at(peak_);
            for (int64_t m = LANES<T>; m < features_; m += LANES<T>)
                largest = larger(largest, at(query + m) + at(peak_ + m));
            T scale = std::max(largest_of<T>(largest), T(NOTHING));
            exponentials_of_query(query, scale);
            if (!scale_.empty()) scale_[row + i] = scale;
        }
    }

    void load_queries_at_scale(int64_t row, int64_t count) {
        load_features(rows_.query, row, count, query_);
        if (!LOGS) return;
        for (int64_t i = 0; i < count; ++i) exponentials_of_query(query_ + i * features_, scale_[row + i]);
    }

    void exponentials_of_query(T* query, T scale) const {
        for (int64_t m = 0; m < features_; m += LANES<T>)
            at(query + m) = exponential(at(query + m) + at(peak_ + m) - scale);
    }

    // scores[i, j], j <= i: the weight of key j for query i, and zeros in the rest of the square of ROWS at the diagonal.
    void score(int64_t count) {
        transpose(key_, count, features_, key_columns_);
        for (int64_t i = 0; i < count; i += ROWS) {
            int64_t columns = padded(i + ROWS, LANES<T>);
            clear(scores_ + i * CHUNK, columns);
            add_product(ROWS, columns, features_, query_ + i * features_, features_, int64_t(1), key_columns_, CHUNK,
                        scores_ + i * CHUNK, CHUNK);
            cut_triangle(scores_, i);
        }
    }

    static void clear(T* scores, int64_t columns) {
        for (int64_t r = 0; r < ROWS; ++r) std::fill(scores + r * CHUNK, scores + r * CHUNK + columns, T(0));
    }

    static void cut_triangle(T* scores, int64_t i) {
        for (int64_t r = 0; r < ROWS; ++r)
            for (int64_t j = i + r + 1; j < i + ROWS; ++j) scores[(i + r) * CHUNK + j] = T(0);
    }

    // rows (count, stride) -> (stride, CHUNK)
    static void transpose(const T* rows, int64_t count, int64_t stride, T* columns) {
        for (int64_t c = 0; c < stride; ++c)
            for (int64_t i = 0; i < count; ++i) columns[c * CHUNK + i] = rows[i * stride + c];
    }

    // Sum of all weights of row i of the chunk, or zero if none is above.
    T weight(int64_t i, bool inside) const {
        T sum = dot(query_ + i * features_, total_, features_);
        for (int64_t j = 0; inside && j <= i; ++j) sum += scores_[i * CHUNK + j];
        return sum;
    }

    // -- forward --

    void read(int64_t row, int64_t count, bool inside) {
        for (int64_t i = 0; i < count; i += ROWS) {
            T* sums = sums_ + i * width_;
            std::fill(sums, sums + ROWS * width_, T(0));
            add_product(ROWS, width_, features_, query_ + i * features_, features_, int64_t(1), state_, width_, sums, width_);
            if (inside)
                add_product(ROWS, width_, std::min(i + ROWS, count), scores_ + i * CHUNK, CHUNK, int64_t(1), value_, width_,
                            sums, width_);
        }
        for (int64_t i = 0; i < count; ++i) {
            T sum = weight(i, inside), inverse = sum > 0 ? 1 / sum : T(0);
            T* target = rows_.output + (row + i) * shape_.width;
            for (int64_t c = 0; c < shape_.width; ++c) target[c] = sum > 0 ? sums_[i * width_ + c] * inverse : T(0);
        }
    }

    // -- backward: with o the result, G its gradient, n a row's weight: a pair's weight has the gradient
    //    (G_i . v_j - G_i . o_i) / n_i; gradient_ is G / n, offset_ is G . o / n --

    void load_gradient(int64_t row, int64_t count, bool inside) {
        for (int64_t i = 0; i < count; ++i) {
            T sum = weight(i, inside);
            inverse_[row + i] = sum > 0 ? 1 / sum : T(0);
        }
        load_gradient_again(row, count);
        for (int64_t i = 0; i < count; ++i) {
            const T* result = rows_.result + (row + i) * shape_.width;
            T sum = 0;
            for (int64_t c = 0; c < shape_.width; ++c) sum += gradient_[i * width_ + c] * result[c];
            offset_[row + i] = sum;
        }
    }

    void load_gradient_again(int64_t row, int64_t count) {
        load(rows_.gradient, row, count, shape_.width, width_, gradient_, T(0));
        for (int64_t i = 0; i < count; ++i)
            for (int64_t c = 0; c < width_; c += LANES<T>) at(gradient_ + i * width_ + c) *= inverse_[row + i];
    }

    // inside[i, j], j <= i: the gradient of scores[i, j].
    void score_gradients(int64_t row, int64_t count) {
        transpose(value_, count, width_, value_columns_);
        for (int64_t i = 0; i < count; i += ROWS) {
            int64_t columns = padded(i + ROWS, LANES<T>);
            for (int64_t r = 0; r < ROWS && i + r < count; ++r)
                std::fill_n(inside_ + (i + r) * CHUNK, columns, -offset_[row + i + r]);
            add_product(ROWS, columns, width_, gradient_ + i * width_, width_, int64_t(1), value_columns_, CHUNK,
                        inside_ + i * CHUNK, CHUNK);
            cut_triangle(inside_, i);
        }
    }

    void of_queries(int64_t row, int64_t count, bool inside) {
        for (int64_t i = 0; i < count; ++i)
            for (int64_t m = 0; m < features_; m += LANES<T>)
                at(mixed_ + i * features_ + m) = -offset_[row + i] * at(total_ + m);
        for (int64_t i = 0; i < count; i += ROWS) {
            add_product(ROWS, features_, width_, gradient_ + i * width_, width_, int64_t(1), state_, features_,
                        mixed_ + i * features_, features_);
            if (inside)
                add_product(ROWS, features_, std::min(i + ROWS, count), inside_ + i * CHUNK, CHUNK, int64_t(1), key_, features_,
                            mixed_ + i * features_, features_);
        }
        finish_features(query_, count);
        store(mixed_, row, count, shape_.features, features_, rows_.of_query);
    }

    // What keys and values get from the queries of their own chunk.
    void of_keys_inside(int64_t row, int64_t count) {
        std::fill(mixed_, mixed_ + padded(count, ROWS) * features_, T(0));
        std::fill(sums_, sums_ + padded(count, ROWS) * width_, T(0));
        for (int64_t j = 0; j < count; j += ROWS) {  // from row j on, the zeros of the square at the diagonal included
            int64_t place = j * CHUNK + j;
            add_product(ROWS, features_, count - j, inside_ + place, int64_t(1), CHUNK, query_ + j * features_, features_,
                        mixed_ + j * features_, features_);
            add_product(ROWS, width_, count - j, scores_ + place, int64_t(1), CHUNK, gradient_ + j * width_, width_,
                        sums_ + j * width_, width_);
        }
        finish_features(key_, count);
        store(mixed_, row, count, shape_.features, features_, rows_.of_key);
        store(sums_, row, count, shape_.width, width_, rows_.of_value);
    }

    // What keys and values get from the queries that later_ holds; added to what they have, or stored.
    void of_keys(int64_t row, int64_t count, bool added) {
        for (int64_t i = 0; i < count; ++i) std::copy(later_total_, later_total_ + features_, mixed_ + i * features_);
        std::fill(sums_, sums_ + padded(count, ROWS) * width_, T(0));
        int64_t rows = padded(count, ROWS);
        add_product(rows, features_, width_, value_, width_, int64_t(1), later_columns_, features_, mixed_, features_);
        add_product(rows, width_, features_, key_, features_, int64_t(1), later_, width_, sums_, width_);
        finish_features(key_, count);
        auto* put = added ? add : store;
        put(mixed_, row, count, shape_.features, features_, rows_.of_key);
        put(sums_, row, count, shape_.width, width_, rows_.of_value);
    }

    // Gradients of features to those of their logarithms.
    void finish_features(const T* features, int64_t count) {
        if (!LOGS) return;
        for (int64_t i = 0; i < count * features_; i += LANES<T>) at(mixed_ + i) *= at(features + i);
    }

    Shape shape_;
    Rows<T> rows_;
    int64_t features_, width_;  // whole vectors
    Memory<T> memory_;
    // Rows of a chunk, features or channels wide; columns_: transposed.
    T *query_, *key_, *key_columns_, *value_, *value_columns_, *sums_, *gradient_, *mixed_;
    // Weights of the pairs inside a chunk and their gradients, CHUNK by CHUNK.
    T *scores_, *inside_;
    // Sums over keys: with values (features by channels; in the backward pass channels by features), and alone.
    T *state_, *total_;
    // Sums over later queries with gradients, features by channels, and transposed, and with offsets.
    T *later_, *later_columns_, *later_total_;
    T *peak_, *before_;  // scales of the features, now and before
    // Of each row: the inverse of its weight, its offset, its scale.
    std::vector<T> inverse_, offset_, scale_;
    std::vector<int64_t> chunks_;  // first row of each chunk of a document
    std::vector<T> peaks_;         // and its peaks
};

// run(head, begin, end) on every document of every head; padding is set to zero.
template <class T, bool LOGS>
void for_each_document(const Shape& shape, const Rows<T>& all, const int64_t* lengths, const int64_t* document_ids,
                       int64_t threads) {
    bool backward = all.gradient != nullptr;
    parallel_for(static_cast<int>(threads), shape.batch * shape.heads, [&](int64_t task) {
        int64_t sample = task / shape.heads, first = task * shape.positions;
        auto from = [&](auto* rows, int64_t width) { return rows ? rows + first * width : nullptr; };
        Rows<T> rows{from(all.query, shape.features),    from(all.key, shape.features),
                     from(all.value, shape.width),       from(all.result, shape.width),
                     from(all.gradient, shape.width),    from(all.output, shape.width),
                     from(all.of_query, shape.features), from(all.of_key, shape.features),
                     from(all.of_value, shape.width)};
        Head<T, LOGS> head(shape, rows, backward);
        int64_t length = shape.positions;
        if (lengths) length = std::max<int64_t>(0, std::min(length, lengths[sample]));
        const int64_t* ids = document_ids ? document_ids + sample * shape.positions : nullptr;
        for (int64_t begin = 0, end; begin < length; begin = end) {
            end = ids ? begin + 1 : length;
            while (end < length && ids[end] == ids[begin]) ++end;
            backward ? head.backward(begin, end) : head.forward(begin, end);
        }
        auto clear = [&](T* target, int64_t width) {
            if (target) std::fill(target + length * width, target + shape.positions * width, T(0));
        };
        clear(rows.output, shape.width);
        clear(rows.of_query, shape.features);
        clear(rows.of_key, shape.features);
        clear(rows.of_value, shape.width);
    });
}

}  // namespace attention

#define EXPORT_ATTENTION(NAME, LOGS, T, TYPE)                                                                         \
    extern "C" void longmix_##NAME##_##TYPE(const T* query, const T* key, const T* value, const int64_t* lengths,     \
                                            const int64_t* document_ids, T* output, int64_t batch, int64_t heads,     \
                                            int64_t positions, int64_t features, int64_t width, int64_t causal,       \
                                            int64_t threads) {                                                        \
        attention::for_each_document<T, LOGS>({batch, heads, positions, features, width, causal != 0},                \
                                              {query, key, value, nullptr, nullptr, output}, lengths, document_ids,   \
                                              threads);                                                               \
    }                                                                                                                 \
    extern "C" void longmix_##NAME##_backward_##TYPE(                                                                 \
        const T* gradient, const T* query, const T* key, const T* value, const T* result, const int64_t* lengths,     \
        const int64_t* document_ids, T* of_query, T* of_key, T* of_value, int64_t batch, int64_t heads,               \
        int64_t positions, int64_t features, int64_t width, int64_t causal, int64_t threads) {                        \
        attention::for_each_document<T, LOGS>(                                                                        \
            {batch, heads, positions, features, width, causal != 0},                                                  \
            {query, key, value, result, gradient, nullptr, of_query, of_key, of_value}, lengths, document_ids,        \
            threads);                                                                                                 \
    }
