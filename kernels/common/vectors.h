// Vectors of numbers as wide as the CPU's registers, and products of small matrices made of whole vectors.

#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace vectors {

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

template <class T>
struct Lanes;
template <>
struct Lanes<float> {
    typedef float Vector __attribute__((vector_size(BYTES), aligned(alignof(float)), may_alias));
    typedef uint32_t Integers __attribute__((vector_size(BYTES), aligned(alignof(float)), may_alias));
};
template <>
struct Lanes<double> {
    typedef double Vector __attribute__((vector_size(BYTES), aligned(alignof(double)), may_alias));
    typedef uint64_t Integers __attribute__((vector_size(BYTES), aligned(alignof(double)), may_alias));
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

// Functions with many callers, which would otherwise be compiled again in each.
#define ONCE __attribute__((noinline))

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

// exp for arguments up to 88, with an error below 1.2 ulp; what would be denormal is zero, and NaN stays NaN.
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
    Integers power = reinterpret_cast<Integers&>(shifted) - 0x4b400000u;
    Integers bits = reinterpret_cast<Integers&>(sum) + (power << 23);
    bits &= ~(Integers)(x < -87.3365f);
    // The power would be added to a payload of NaN, and may carry it into a number.
    return x == x ? reinterpret_cast<Vector<float>&>(bits) : x;
}

inline Vector<double> exponential(Vector<double> x) {
    Vector<double> result = x;
    for (int64_t lane = 0; lane < LANES<double>; ++lane) result[lane] = __builtin_exp(x[lane]);
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
    int64_t k = 0;
    do {  // at least once: the sums then stay in registers
        Vector<T> right[WIDTH];
        for (int64_t v = 0; v < WIDTH; ++v) right[v] = at(b + k * b_row + v * LANES<T>);
        for (int64_t r = 0; r < ROWS; ++r) {
            T left = a[r * a_row + k * a_step];
            for (int64_t v = 0; v < WIDTH; ++v) sum[r][v] += left * right[v];
        }
    } while (++k < depth);
    for (int64_t r = 0; r < ROWS; ++r)
        for (int64_t v = 0; v < WIDTH; ++v) at(c + r * c_row + v * LANES<T>) = sum[r][v];
}

// c (rows, columns) += a (rows, depth) b (depth, columns); whole ROWS and whole vectors of columns.
template <class T>
ONCE void add_product(int64_t rows, int64_t columns, int64_t depth, const T* a, int64_t a_row, int64_t a_step,
                      const T* b, int64_t b_row, T* c, int64_t c_row) {
    constexpr int64_t WIDE = COLUMNS * LANES<T>;
    int64_t column = depth > 0 ? 0 : columns;
    for (; column + WIDE <= columns; column += WIDE)
        for (int64_t r = 0; r < rows; r += ROWS)
            add_tile<COLUMNS>(depth, a + r * a_row, a_row, a_step, b + column, b_row, c + r * c_row + column,
                              c_row);
    for (; column + 2 * LANES<T> <= columns; column += 2 * LANES<T>)
        for (int64_t r = 0; r < rows; r += ROWS)
            add_tile<2>(depth, a + r * a_row, a_row, a_step, b + column, b_row, c + r * c_row + column, c_row);
    for (; column < columns; column += LANES<T>)
        for (int64_t r = 0; r < rows; r += ROWS)
            add_tile<1>(depth, a + r * a_row, a_row, a_step, b + column, b_row, c + r * c_row + column, c_row);
}

// ---- transposition ----

template <class T, int64_t... I>
inline void interleave(Vector<T> a, Vector<T> b, Vector<T>& low, Vector<T>& high,
                       std::integer_sequence<int64_t, I...>) {
    constexpr int64_t COUNT = sizeof...(I);
#if defined(__clang__)
    low = __builtin_shufflevector(a, b, (I / 2 + I % 2 * COUNT)...);
    high = __builtin_shufflevector(a, b, (I / 2 + COUNT / 2 + I % 2 * COUNT)...);
#else
    typedef typename Lanes<T>::Integers Integers;
    low = __builtin_shuffle(a, b, Integers{(I / 2 + I % 2 * COUNT)...});
    high = __builtin_shuffle(a, b, Integers{(I / 2 + COUNT / 2 + I % 2 * COUNT)...});
#endif
}

// A square of LANES: every round interleaves the first half of the rows with the second one.
template <class T>
inline void transpose_square(const T* rows, int64_t stride, T* columns, int64_t column_stride) {
    constexpr int64_t COUNT = LANES<T>;
    Vector<T> parts[COUNT], next[COUNT];
    for (int64_t i = 0; i < COUNT; ++i) parts[i] = at(rows + i * stride);
    for (int64_t round = 1; round < COUNT; round *= 2) {
        for (int64_t i = 0; i < COUNT / 2; ++i)
            interleave<T>(parts[i], parts[i + COUNT / 2], next[2 * i], next[2 * i + 1],
                          std::make_integer_sequence<int64_t, COUNT>());
        for (int64_t i = 0; i < COUNT; ++i) parts[i] = next[i];
    }
    for (int64_t i = 0; i < COUNT; ++i) at(columns + i * column_stride) = parts[i];
}

// (height, width) -> (width, height), both whole vectors.
template <class T>
ONCE void transpose(const T* rows, int64_t height, int64_t width, int64_t stride, T* columns, int64_t column_stride) {
    for (int64_t i = 0; i < height; i += LANES<T>)
        for (int64_t c = 0; c < width; c += LANES<T>)
            transpose_square(rows + i * stride + c, stride, columns + c * column_stride + i, column_stride);
}

}  // namespace vectors
