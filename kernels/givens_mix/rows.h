// One row of a block of complex channels: a few vectors, real parts and imaginary parts apart.

#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

// Rows live in registers, which a call would empty.
#define ALWAYS_INLINE inline __attribute__((always_inline))

// Values of one sample and head: N rows of `width` complex channels, each one as pairs (part 1), or as a line of real
// parts and one of imaginary parts.
template <class T>
struct Matrix {
    T* data;
    int64_t row, part, width;   // elements from a row to the next, and from a real part to its imaginary part

    bool pairs() const { return part == 1; }
    T* at(int64_t index, int64_t channel) const { return data + index * row + channel * (pairs() ? 2 : 1); }

    // Between the last `count` channels of a row and a buffer for `size`, in which the others are zero.
    __attribute__((noinline)) void read_rest(const T* from, T* rest, int64_t size, int64_t count) const {
        std::memset(rest, 0, 2 * size * sizeof(T));
        std::memcpy(rest, from, (pairs() ? 2 : 1) * count * sizeof(T));
        if (!pairs()) std::memcpy(rest + size, from + part, count * sizeof(T));
    }

    __attribute__((noinline)) void write_rest(const T* rest, T* to, int64_t size, int64_t count) const {
        std::memcpy(to, rest, (pairs() ? 2 : 1) * count * sizeof(T));
        if (!pairs()) std::memcpy(to + part, rest + size, count * sizeof(T));
    }
};

// KINDS is 1 for a row of states, 2 for one of states and their gradients.
template <class T, int VECTORS, int KINDS>
struct Row {
    static constexpr bool GRADIENT = KINDS == 2;
    static constexpr int64_t SIZE = 64;   // bytes of a vector
    static constexpr int64_t LANES = SIZE / sizeof(T), CHANNELS = LANES * VECTORS;
    typedef T Lanes __attribute__((vector_size(SIZE)));
    typedef T Anywhere __attribute__((vector_size(SIZE), aligned(alignof(T)), may_alias));
    using Numbers = std::make_index_sequence<LANES>;

    Lanes real[KINDS * VECTORS], imaginary[KINDS * VECTORS];

    ALWAYS_INLINE void read(int kind, const Matrix<T>& matrix, int64_t index, int64_t channel) {
        const T *first = matrix.at(index, channel), *second = first + (matrix.pairs() ? LANES : matrix.part);
        T rest[2 * CHANNELS];
        if (matrix.width - channel < CHANNELS) {
            matrix.read_rest(first, rest, CHANNELS, matrix.width - channel);
            first = rest;
            second = rest + (matrix.pairs() ? LANES : CHANNELS);
        }
        for (int v = kind * VECTORS; v < (kind + 1) * VECTORS; ++v) {
            Lanes one = *reinterpret_cast<const Anywhere*>(first), other = *reinterpret_cast<const Anywhere*>(second);
            if (matrix.pairs()) split(one, other, Numbers());
            real[v] = one;
            imaginary[v] = other;
            first += matrix.pairs() ? 2 * LANES : LANES;
            second += matrix.pairs() ? 2 * LANES : LANES;
        }
    }

    ALWAYS_INLINE void write(int kind, const Matrix<T>& matrix, int64_t index, int64_t channel) const {
        T rest[2 * CHANNELS];
        bool whole = matrix.width - channel >= CHANNELS;
        T* first = whole ? matrix.at(index, channel) : rest;
        T* second = first + (matrix.pairs() ? LANES : whole ? matrix.part : CHANNELS);
        for (int v = kind * VECTORS; v < (kind + 1) * VECTORS; ++v) {
            Lanes one = real[v], other = imaginary[v];
            if (matrix.pairs()) join(one, other, Numbers());
            *reinterpret_cast<Anywhere*>(first) = one;
            *reinterpret_cast<Anywhere*>(second) = other;
            first += matrix.pairs() ? 2 * LANES : LANES;
            second += matrix.pairs() ? 2 * LANES : LANES;
        }
        if (!whole) matrix.write_rest(rest, matrix.at(index, channel), CHANNELS, matrix.width - channel);
    }

    // Row `index` will be read or written before long.
    template <bool WRITTEN>
    ALWAYS_INLINE static void announce(const Matrix<T>& matrix, int64_t index, int64_t channel) {
        const T* first = matrix.at(index, channel);
        int64_t size = matrix.pairs() ? 2 * CHANNELS : CHANNELS, line = SIZE / sizeof(T);
        for (int64_t i = 0; i < size; i += line) __builtin_prefetch(first + i, WRITTEN);
        if (matrix.pairs()) return;
        for (int64_t i = 0; i < size; i += line) __builtin_prefetch(first + matrix.part + i, WRITTEN);
    }

    // Multiply by cosine + i sine.
    ALWAYS_INLINE void turn(T cosine, T sine) {
        for (int v = 0; v < KINDS * VECTORS; ++v) {
            Lanes before = real[v];
            real[v] = before * cosine - imaginary[v] * sine;
            imaginary[v] = before * sine + imaginary[v] * cosine;
        }
    }

    // The row that a rotation completes; `carried` becomes what it hands on.
    ALWAYS_INLINE Row rotate(Row& carried, T cosine, T sine) const {
        Row done;
        for (int v = 0; v < KINDS * VECTORS; ++v) {
            done.real[v] = real[v] * sine + carried.real[v] * cosine;
            done.imaginary[v] = imaginary[v] * sine + carried.imaginary[v] * cosine;
            carried.real[v] = real[v] * cosine - carried.real[v] * sine;
            carried.imaginary[v] = imaginary[v] * cosine - carried.imaginary[v] * sine;
        }
        return done;
    }

    // Derivatives by the angle of a turn of this row, and of its rotation with `carried`: the same before and after.
    ALWAYS_INLINE T by_turn() const {
        Lanes total{};
        for (int v = 0, g = VECTORS; v < VECTORS; ++v, ++g) total += imaginary[g] * real[v] - real[g] * imaginary[v];
        return sum<LANES>(reinterpret_cast<const T*>(&total));
    }

    ALWAYS_INLINE T by_rotation(const Row& carried) const {
        Lanes total{};
        for (int v = 0, g = VECTORS; v < VECTORS; ++v, ++g) {
            total += real[g] * carried.real[v] - carried.real[g] * real[v];
            total += imaginary[g] * carried.imaginary[v] - carried.imaginary[g] * imaginary[v];
        }
        return sum<LANES>(reinterpret_cast<const T*>(&total));
    }

private:
    template <std::size_t... I>
    ALWAYS_INLINE static void split(Lanes& a, Lanes& b, std::index_sequence<I...>) {
        Lanes even = {(2 * I < LANES ? a[2 * I % LANES] : b[2 * I % LANES])...};
        b = Lanes{(2 * I < LANES ? a[(2 * I + 1) % LANES] : b[(2 * I + 1) % LANES])...};
        a = even;
    }

    template <std::size_t... I>
    ALWAYS_INLINE static void join(Lanes& a, Lanes& b, std::index_sequence<I...>) {
        Lanes low = {(I % 2 ? b[I / 2] : a[I / 2])...};
        b = Lanes{(I % 2 ? b[(LANES + I) / 2] : a[(LANES + I) / 2])...};
        a = low;
    }

    // By halves, so that additions run side by side.
    template <int64_t COUNT>
    ALWAYS_INLINE static T sum(const T* values) {
        if constexpr (COUNT == 1) {
            return values[0];
        } else {
            typedef T Half __attribute__((vector_size(COUNT / 2 * sizeof(T))));
            Half low, high;
            std::memcpy(&low, values, sizeof(Half));
            std::memcpy(&high, values + COUNT / 2, sizeof(Half));
            low += high;
            return sum<COUNT / 2>(reinterpret_cast<const T*>(&low));
        }
    }
};
