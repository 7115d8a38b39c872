// Rows of a block of channels as the periodised transforms see them: every second one, zeros behind the valid ones,
// and their periodic continuation at both ends.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/vectors.h"

constexpr int64_t BLOCK = 32;  // channels

using vectors::at;
using vectors::LANES;
using vectors::Vector;

// `period` rows from `base`, `stride` apart. Those from `valid` on are zero when read and dropped when written, and so
// are the channels from `channels` on.
template <class T>
struct Rows {
    T* base;
    int64_t stride, valid, period, channels = BLOCK;

    bool complete() const { return valid == period; }
    bool direct(int64_t first, int64_t count) const {
        return channels == BLOCK && first >= 0 && first + count <= valid;
    }
    Rows every_second(int64_t phase) const {
        return {base + phase * stride, 2 * stride, (valid + 1 - phase) / 2, period / 2, channels};
    }
};

// Rows that can be read one behind the other, `stride` apart.
template <class T>
struct Window {
    const T* base;
    int64_t stride;
};

// Rows first .. first + count - 1 of the periodic continuation: in place, or else copied to `edge` (count, BLOCK).
template <class T>
Window<T> window(const Rows<const T>& rows, int64_t first, int64_t count, T* edge) {
    if (rows.direct(first, count)) return {rows.base + first * rows.stride, rows.stride};
    int64_t row = first % rows.period;
    if (row < 0) row += rows.period;
    for (int64_t i = 0; i < count; ++i) {
        T* to = edge + i * BLOCK;
        int64_t present = row < rows.valid ? rows.channels : 0;
        if (present > 0) std::memcpy(to, rows.base + row * rows.stride, present * sizeof(T));
        std::fill(to + present, to + BLOCK, T(0));
        if (++row == rows.period) row = 0;
    }
    return {edge, BLOCK};
}

// Where rows first .. first + count - 1 can be written, `stride` apart: in place, or else `edge`, which `drain` copies.
template <class T>
struct Target {
    T* base;
    int64_t stride;
};

template <class T>
Target<T> target(const Rows<T>& rows, int64_t first, int64_t count, T* edge) {
    if (rows.direct(first, count)) return {rows.base + first * rows.stride, rows.stride};
    return {edge, BLOCK};
}

template <class T>
void drain(const Target<T>& from, const Rows<T>& rows, int64_t first, int64_t count) {
    if (rows.direct(first, count)) return;
    for (int64_t i = 0; i < std::min(count, rows.valid - first); ++i)
        std::memcpy(rows.base + (first + i) * rows.stride, from.base + i * from.stride, rows.channels * sizeof(T));
}

template <class T>
Rows<const T> readable(const Rows<T>& rows) {
    return {rows.base, rows.stride, rows.valid, rows.period, rows.channels};
}

struct Shape {
    int64_t batch, positions, width, levels;
    const int64_t* lengths;  // (batch), or null: all positions

    int64_t blocks() const { return (width + BLOCK - 1) / BLOCK; }
    int64_t tasks() const { return batch * blocks(); }
    int64_t padded(int64_t length) const { return ((length + (int64_t(1) << levels) - 1) >> levels) << levels; }
    // Rows of a sample in a level's band; level 0: the last one's approximation.
    int64_t in_band(int64_t level) const { return padded(positions) >> (level ? level : levels); }
};

// The sample and block of channels of one task, and where its rows and bands lie.
struct Place {
    const Shape& shape;
    int64_t sample, first, channels, valid, period;

    Place(const Shape& shape, int64_t task)
        : shape(shape),
          sample(task / shape.blocks()),
          first(task % shape.blocks() * BLOCK),
          channels(std::min(BLOCK, shape.width - first)),
          valid(shape.lengths ? std::clamp<int64_t>(shape.lengths[sample], 0, shape.positions) : shape.positions),
          period(shape.padded(valid)) {}

    // Rows of (B, N, D).
    template <class T>
    Rows<T> rows(T* x) const {
        return {x + sample * shape.positions * shape.width + first, shape.width, valid, period, channels};
    }

    // Details of a level; level 0: the approximation of the last one.
    template <class T>
    Rows<T> band(T* bands, int64_t level) const {
        // As many rows as a level's details have lie before them: all coarser bands of all samples.
        int64_t rows = shape.in_band(level), before = level ? shape.batch * rows : 0;
        int64_t count = period >> (level ? level : shape.levels);
        return {bands + (before + sample * rows) * shape.width + first, shape.width, count, count, channels};
    }

    // Zeros in the rows of (B, N, D), and of bands, that are not valid.
    template <class T>
    void clear_rows(T* x) const {
        clear(rows(x).base, valid, shape.positions);
    }
    template <class T>
    void clear_bands(T* bands) const {
        for (int64_t level = 0; level <= shape.levels; ++level) {
            auto rows = band(bands, level);
            clear(rows.base, rows.valid, shape.in_band(level));
        }
    }

    // Taps (count, D) of this block's channels -> (count, BLOCK), zeros behind.
    template <class T>
    std::vector<T> taps(const T* values, int64_t count) const {
        std::vector<T> block(count * BLOCK);
        for (int64_t tap = 0; tap < count; ++tap)
            std::memcpy(block.data() + tap * BLOCK, values + tap * shape.width + first, channels * sizeof(T));
        return block;
    }

    // What this task adds to the gradient of the taps, (count, BLOCK), into (B, count, D).
    template <class T>
    void store_taps(const std::vector<T>& block, T* of_samples) const {
        int64_t count = block.size() / BLOCK;
        T* of_sample = of_samples + sample * count * shape.width + first;
        for (int64_t tap = 0; tap < count; ++tap)
            std::memcpy(of_sample + tap * shape.width, block.data() + tap * BLOCK, channels * sizeof(T));
    }

private:
    template <class T>
    void clear(T* base, int64_t from, int64_t to) const {
        for (int64_t row = from; row < to; ++row)
            std::fill(base + row * shape.width, base + row * shape.width + channels, T(0));
    }
};

// Rows in memory of one's own.
template <class T>
struct Scratch {
    std::vector<T> memory;

    Rows<T> rows(int64_t count) {
        memory.resize(count * BLOCK);
        return {memory.data(), BLOCK, count, count};
    }
};

// Rows of a band that are treated together, so that their window stays in the nearest cache.
constexpr int64_t TILE = 32;

template <int STEP, int TAPS, class T>
inline void correlate_taps(Window<T> signal, Window<T> rows, int64_t count, T* sums) {
    using V = Vector<T>;
    for (int64_t c = 0; c < BLOCK; c += LANES<T>) {
        V sum[TAPS];
        for (int tap = 0; tap < TAPS; ++tap) sum[tap] = at(sums + tap * BLOCK + c);
        for (int64_t t = 0; t < count; ++t) {
            V value = at(signal.base + t * signal.stride + c);
            for (int tap = 0; tap < TAPS; ++tap)
                sum[tap] += value * at(rows.base + (STEP * t + tap) * rows.stride + c);
        }
        for (int tap = 0; tap < TAPS; ++tap) at(sums + tap * BLOCK + c) = sum[tap];
    }
}

// sums[tap] += over t < count: signal[t] rows[STEP t + tap]; sums is (taps, BLOCK).
template <int STEP, class T>
void correlate(Window<T> signal, Window<T> rows, int64_t count, int64_t taps, T* sums) {
    int64_t tap = 0;
    auto later = [&] { return Window<T>{rows.base + tap * rows.stride, rows.stride}; };
    for (; tap + 8 <= taps; tap += 8) correlate_taps<STEP, 8>(signal, later(), count, sums + tap * BLOCK);
    for (; tap + 2 <= taps; tap += 2) correlate_taps<STEP, 2>(signal, later(), count, sums + tap * BLOCK);
    for (; tap < taps; ++tap) correlate_taps<STEP, 1>(signal, later(), count, sums + tap * BLOCK);
}

// The sum over samples of their (size), in the samples' order.
template <class T>
void sum_samples(int64_t batch, int64_t size, const T* of_samples, T* sum) {
    std::copy(of_samples, of_samples + size, sum);
    for (int64_t sample = 1; sample < batch; ++sample)
        for (int64_t i = 0; i < size; ++i) sum[i] += of_samples[sample * size + i];
}
