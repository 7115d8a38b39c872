// One row of a block of complex channels: a few vectors, real parts and imaginary parts apart.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

// Values of one sample and head: N rows of `width` complex channels, each one as pairs (part 1), or as a line of real
// parts and one of imaginary parts.
template <class T>
struct Matrix {
    T* data;
    int64_t row, part, width;   // elements from a row to the next, and from a real part to its imaginary part

    bool pairs() const { return part == 1; }
    T* at(int64_t index, int64_t channel) const { return data + index * row + channel * (pairs() ? 2 : 1); }
};

// KINDS is 1 for a row of states, 2 for one of states and their gradients.
template <class T, int VECTORS, int KINDS>
struct Row {
    static constexpr bool GRADIENT = KINDS == 2;
    static constexpr int64_t SIZE = 64;   // bytes of a vector
    static constexpr int64_t LANES = SIZE / sizeof(T), CHANNELS = LANES * VECTORS;
    typedef T Lanes __attribute__((vector_size(SIZE)));
    using Numbers = std::make_index_sequence<LANES>;

    Lanes real[KINDS * VECTORS], imaginary[KINDS * VECTORS];

    void read(int kind, const Matrix<T>& matrix, int64_t index, int64_t channel) {
        const T* from = matrix.at(index, channel);
        int64_t count = std::min(CHANNELS, matrix.width - channel);
        if (count == CHANNELS) {
            load(kind, from, from + matrix.part, matrix.pairs());
            return;
        }
        T rest[2 * CHANNELS] = {};
        std::memcpy(rest, from, (matrix.pairs() ? 2 : 1) * count * sizeof(T));
        if (!matrix.pairs()) std::memcpy(rest + CHANNELS, from + matrix.part, count * sizeof(T));
        load(kind, rest, rest + CHANNELS, matrix.pairs());
    }

    void write(int kind, const Matrix<T>& matrix, int64_t index, int64_t channel) const {
        T* to = matrix.at(index, channel);
        int64_t count = std::min(CHANNELS, matrix.width - channel);
        if (count == CHANNELS) {
            store(kind, to, to + matrix.part, matrix.pairs());
            return;
        }
        T rest[2 * CHANNELS];
        store(kind, rest, rest + CHANNELS, matrix.pairs());
        std::memcpy(to, rest, (matrix.pairs() ? 2 : 1) * count * sizeof(T));
        if (!matrix.pairs()) std::memcpy(to + matrix.part, rest + CHANNELS, count * sizeof(T));
    }

    // Multiply by cosine + i sine.
    void turn(T cosine, T sine) {
        for (int v = 0; v < KINDS * VECTORS; ++v) {
            Lanes before = real[v];
            real[v] = before * cosine - imaginary[v] * sine;
            imaginary[v] = before * sine + imaginary[v] * cosine;
        }
    }

    // The row that a rotation completes; `carried` becomes what it hands on.
    Row rotate(Row& carried, T cosine, T sine) const {
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
    T by_turn() const {
        Lanes total{};
        for (int v = 0, g = VECTORS; v < VECTORS; ++v, ++g) total += imaginary[g] * real[v] - real[g] * imaginary[v];
        return sum<LANES>(reinterpret_cast<const T*>(&total));
    }

    T by_rotation(const Row& carried) const {
        Lanes total{};
        for (int v = 0, g = VECTORS; v < VECTORS; ++v, ++g) {
            total += real[g] * carried.real[v] - carried.real[g] * real[v];
            total += imaginary[g] * carried.imaginary[v] - carried.imaginary[g] * imaginary[v];
        }
        return sum<LANES>(reinterpret_cast<const T*>(&total));
    }

private:
    void load(int kind, const T* first, const T* second, bool pairs) {
        Lanes a, b;
        for (int v = kind * VECTORS; v < (kind + 1) * VECTORS; ++v) {
            if (pairs) {
                std::memcpy(&a, first, SIZE);
                std::memcpy(&b, first + LANES, SIZE);
                split(a, b, real[v], imaginary[v], Numbers());
                first += 2 * LANES;
            } else {
                std::memcpy(&real[v], first, SIZE);
                std::memcpy(&imaginary[v], second, SIZE);
                first += LANES;
                second += LANES;
            }
        }
    }

    void store(int kind, T* first, T* second, bool pairs) const {
        Lanes a, b;
        for (int v = kind * VECTORS; v < (kind + 1) * VECTORS; ++v) {
            if (pairs) {
                join(real[v], imaginary[v], a, b, Numbers());
                std::memcpy(first, &a, SIZE);
                std::memcpy(first + LANES, &b, SIZE);
                first += 2 * LANES;
            } else {
                std::memcpy(first, &real[v], SIZE);
                std::memcpy(second, &imaginary[v], SIZE);
                first += LANES;
                second += LANES;
            }
        }
    }

    template <std::size_t... I>
    static void split(Lanes a, Lanes b, Lanes& even, Lanes& odd, std::index_sequence<I...>) {
        even = Lanes{(2 * I < LANES ? a[2 * I % LANES] : b[2 * I % LANES])...};
        odd = Lanes{(2 * I < LANES ? a[(2 * I + 1) % LANES] : b[(2 * I + 1) % LANES])...};
    }

    template <std::size_t... I>
    static void join(Lanes even, Lanes odd, Lanes& a, Lanes& b, std::index_sequence<I...>) {
        a = Lanes{(I % 2 ? odd[I / 2] : even[I / 2])...};
        b = Lanes{(I % 2 ? odd[(LANES + I) / 2] : even[(LANES + I) / 2])...};
    }

    // By halves, so that additions run side by side.
    template <int64_t COUNT>
    static T sum(const T* values) {
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
