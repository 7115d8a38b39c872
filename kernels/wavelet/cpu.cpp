// Periodised wavelet transforms on a CPU.
//
// A task takes one sample and one block of channels through all levels, so that approximations stay in cache. Sums run
// over rows in place; only rows at a sample's ends, where indices leave the period, are copied before.

#include "bands/bands.h"
#include "common/parallel.h"

namespace {

constexpr int GROUP = 4;  // coefficients of a band whose sums are held in registers

// Low-pass h and high-pass (-1)^l h[T - 1 - l], (T, BLOCK) each.
template <class T>
struct Filters {
    int64_t count;
    std::vector<T> low, high;

    Filters(const Place& place, const T* values, int64_t count)
        : count(count), low(place.taps(values, count)), high(low.size()) {
        for (int64_t tap = 0; tap < count; ++tap)
            for (int64_t c = 0; c < BLOCK; ++c)
                high[tap * BLOCK + c] = (tap % 2 ? -1 : 1) * low[(count - 1 - tap) * BLOCK + c];
    }
};

// low[t] = sum_l h[l] rows[2 t + l] and high[t] likewise, for COUNT rows t.
template <int COUNT, class T>
inline void split_group(const Filters<T>& filters, Window<T> rows, T* low, int64_t low_stride, T* high,
                        int64_t high_stride) {
    using V = Vector<T>;
    for (int64_t c = 0; c < BLOCK; c += LANES<T>) {
        V lows[COUNT] = {}, highs[COUNT] = {};
        for (int64_t tap = 0; tap < filters.count; ++tap) {
            V of_low = at(&filters.low[tap * BLOCK + c]), of_high = at(&filters.high[tap * BLOCK + c]);
            for (int t = 0; t < COUNT; ++t) {
                V row = at(rows.base + (2 * t + tap) * rows.stride + c);
                lows[t] += of_low * row;
                highs[t] += of_high * row;
            }
        }
        for (int t = 0; t < COUNT; ++t) {
            at(low + t * low_stride + c) = lows[t];
            at(high + t * high_stride + c) = highs[t];
        }
    }
}

// One level: rows -> approximation and detail.
template <class T>
void split(const Filters<T>& filters, Rows<const T> rows, Rows<T> low, Rows<T> high) {
    std::vector<T> edge((2 * TILE + filters.count) * BLOCK), low_edge(TILE * BLOCK), high_edge(TILE * BLOCK);
    for (int64_t first = 0; first < low.period; first += TILE) {
        int64_t count = std::min(TILE, low.period - first), t = 0;
        auto from = window(rows, 2 * first, 2 * count + filters.count - 2, edge.data());
        auto to_low = target(low, first, count, low_edge.data());
        auto to_high = target(high, first, count, high_edge.data());
        auto group = [&](auto size) {
            split_group<size.value>(filters, {from.base + 2 * t * from.stride, from.stride},
                                    to_low.base + t * to_low.stride, to_low.stride,
                                    to_high.base + t * to_high.stride, to_high.stride);
            t += size.value;
        };
        while (t + GROUP <= count) group(std::integral_constant<int, GROUP>());
        while (t < count) group(std::integral_constant<int, 1>());
        drain(to_low, low, first, count);
        drain(to_high, high, first, count);
    }
}

// rows[2 t + phase] = sum_k low[t - k] h[2 k + phase] + high[t - k] .., for COUNT rows t; both windows start T / 2 - 1
// rows before t.
template <int COUNT, class T>
inline void merge_group(const Filters<T>& filters, Window<T> low, Window<T> high, T* rows, int64_t stride) {
    using V = Vector<T>;
    for (int64_t c = 0; c < BLOCK; c += LANES<T>) {
        V even[COUNT] = {}, odd[COUNT] = {};
        for (int64_t tap = 0; tap < filters.count; tap += 2) {
            const T *of_low = &filters.low[tap * BLOCK + c], *of_high = &filters.high[tap * BLOCK + c];
            V low_even = at(of_low), low_odd = at(of_low + BLOCK);
            V high_even = at(of_high), high_odd = at(of_high + BLOCK);
            int64_t start = (filters.count - 2 - tap) / 2;
            for (int t = 0; t < COUNT; ++t) {
                V from_low = at(low.base + (start + t) * low.stride + c);
                V from_high = at(high.base + (start + t) * high.stride + c);
                even[t] += low_even * from_low;
                odd[t] += low_odd * from_low;
                even[t] += high_even * from_high;
                odd[t] += high_odd * from_high;
            }
        }
        for (int t = 0; t < COUNT; ++t) {
            at(rows + 2 * t * stride + c) = even[t];
            at(rows + (2 * t + 1) * stride + c) = odd[t];
        }
    }
}

// The adjoint of split.
template <class T>
void merge(const Filters<T>& filters, Rows<const T> low, Rows<const T> high, Rows<T> rows) {
    int64_t reach = filters.count / 2 - 1;
    std::vector<T> low_edge((TILE + reach) * BLOCK), high_edge((TILE + reach) * BLOCK), edge(2 * TILE * BLOCK);
    for (int64_t first = 0; first < low.period; first += TILE) {
        int64_t count = std::min(TILE, low.period - first), t = 0;
        auto from_low = window(low, first - reach, count + reach, low_edge.data());
        auto from_high = window(high, first - reach, count + reach, high_edge.data());
        auto to = target(rows, 2 * first, 2 * count, edge.data());
        auto group = [&](auto size) {
            merge_group<size.value>(filters, {from_low.base + t * from_low.stride, from_low.stride},
                                    {from_high.base + t * from_high.stride, from_high.stride},
                                    to.base + 2 * t * to.stride, to.stride);
            t += size.value;
        };
        while (t + GROUP <= count) group(std::integral_constant<int, GROUP>());
        while (t < count) group(std::integral_constant<int, 1>());
        drain(to, rows, 2 * first, 2 * count);
    }
}

// The gradient of the taps from one level: sums over t of low[t] rows[2 t + l] and of high[t] rows[2 t + l].
template <class T>
void correlate_level(Rows<const T> rows, Rows<const T> low, Rows<const T> high, int64_t taps, T* of_low, T* of_high) {
    std::vector<T> edge((2 * TILE + taps) * BLOCK), low_edge(TILE * BLOCK), high_edge(TILE * BLOCK);
    for (int64_t first = 0; first < low.period; first += TILE) {
        int64_t count = std::min(TILE, low.period - first);
        auto from = window(rows, 2 * first, 2 * count + taps - 2, edge.data());
        correlate<2>(window(low, first, count, low_edge.data()), from, count, taps, of_low);
        correlate<2>(window(high, first, count, high_edge.data()), from, count, taps, of_high);
    }
}

template <class T>
void analysis(const Shape& shape, const T* x, const T* filters, int64_t count, T* bands, int threads) {
    parallel_for(threads, shape.tasks(), [&](int64_t task) {
        Place place(shape, task);
        Filters<T> taps(place, filters, count);
        std::vector<Scratch<T>> memory(shape.levels);
        Rows<const T> rows = place.rows(x);
        for (int64_t level = 1; level <= shape.levels; ++level) {
            Rows<T> low = level == shape.levels ? place.band(bands, 0) : memory[level].rows(place.period >> level);
            split(taps, rows, low, place.band(bands, level));
            rows = readable(low);
        }
        place.clear_bands(bands);
    });
}

template <class T>
void synthesis(const Shape& shape, const T* bands, const T* filters, int64_t count, T* x, int threads) {
    parallel_for(threads, shape.tasks(), [&](int64_t task) {
        Place place(shape, task);
        Filters<T> taps(place, filters, count);
        std::vector<Scratch<T>> memory(shape.levels);
        Rows<const T> low = place.band(bands, 0);
        for (int64_t level = shape.levels; level > 0; --level) {
            Rows<T> rows = level == 1 ? place.rows(x) : memory[level - 1].rows(place.period >> (level - 1));
            merge(taps, low, place.band(bands, level), rows);
            low = readable(rows);
        }
        place.clear_rows(x);
    });
}

// The derivative of <bands, analysis(x)> = <synthesis(bands), x> by the taps, from approximations on both sides.
template <class T>
void derivative(const Shape& shape, const T* x, const T* bands, const T* filters, int64_t count,
                T* of_filters, int threads) {
    std::vector<T> of_samples(shape.batch * count * shape.width);
    parallel_for(threads, shape.tasks(), [&](int64_t task) {
        Place place(shape, task);
        Filters<T> taps(place, filters, count);
        std::vector<T> of_low(count * BLOCK), of_high(count * BLOCK);
        std::vector<Scratch<T>> approximations(shape.levels), merged(shape.levels);
        std::vector<Rows<const T>> rows{place.rows(x)};
        // Nobody asks for these details: all are written to one row.
        std::vector<T> details(BLOCK);
        for (int64_t level = 1; level < shape.levels; ++level) {
            int64_t half = place.period >> level;
            Rows<T> low = approximations[level].rows(half);
            split(taps, rows.back(), low, {details.data(), 0, half, half});
            rows.push_back(readable(low));
        }
        Rows<const T> low = place.band(bands, 0);
        for (int64_t level = shape.levels; level > 0; --level) {
            Rows<const T> high = place.band(bands, level);
            correlate_level(rows[level - 1], low, high, count, of_low.data(), of_high.data());
            if (level == 1) break;
            Rows<T> next = merged[level - 1].rows(place.period >> (level - 1));
            merge(taps, low, high, next);
            low = readable(next);
        }
        for (int64_t tap = 0; tap < count; ++tap) {
            int64_t mirrored = count - 1 - tap;
            for (int64_t c = 0; c < BLOCK; ++c)
                of_low[tap * BLOCK + c] += (mirrored % 2 ? -1 : 1) * of_high[mirrored * BLOCK + c];
        }
        place.store_taps(of_low, of_samples.data());
    });
    sum_samples(shape.batch, count * shape.width, of_samples.data(), of_filters);
}

}  // namespace

#ifdef ANALYSIS
extern "C" void longmix_analysis(const REAL* x, const REAL* filters, const int64_t* lengths, REAL* bands, int64_t batch,
                                 int64_t positions, int64_t width, int64_t taps, int64_t levels, int64_t threads) {
    analysis(Shape{batch, positions, width, levels, lengths}, x, filters, taps, bands, threads);
}
#endif

#ifdef SYNTHESIS
extern "C" void longmix_synthesis(const REAL* bands, const REAL* filters, const int64_t* lengths, REAL* x,
                                  int64_t batch, int64_t positions, int64_t width, int64_t taps, int64_t levels,
                                  int64_t threads) {
    synthesis(Shape{batch, positions, width, levels, lengths}, bands, filters, taps, x, threads);
}
#endif

#ifdef DERIVATIVE
extern "C" void longmix_derivative(const REAL* x, const REAL* bands, const REAL* filters, const int64_t* lengths,
                                   REAL* of_filters, int64_t batch, int64_t positions, int64_t width, int64_t taps,
                                   int64_t levels, int64_t threads) {
    derivative(Shape{batch, positions, width, levels, lengths}, x, bands, filters, taps, of_filters, threads);
}
#endif
