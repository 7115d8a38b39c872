// Periodised lifting on a CPU.
//
// A task takes one sample and one block of channels through all levels. Rows and bands are read and written where they
// are, even and odd rows by their stride; only rows at a sample's ends are copied.

#include <type_traits>

#include "bands/bands.h"
#include "common/parallel.h"

namespace {

constexpr int GROUP = 8;  // rows whose sums are held in registers

template <class T, class V = Vector<T>>
inline V sigmoid(V x) {
    V most = V{} + T(87);  // the exponential of more leaves the range of a float
    V opposite = -x;
    return T(1) / (T(1) + vectors::exponential(opposite > most ? most : opposite));
}

// What is made of a sum over rows: it is added, or its silu, or the slope of its silu is a factor.
enum Use { SUM, SILU, SLOPE };

template <Use USE, class T, class V = Vector<T>>
inline V use(V input, V sum, T scale) {
    if (USE == SUM) return input + scale * sum;
    V share = sigmoid<T>(sum);
    if (USE == SILU) return input + scale * (sum * share);
    return scale * input * (share * (T(1) + sum * (T(1) - share)));
}

// Taps (count, BLOCK) in the opposite order.
template <class T>
std::vector<T> mirrored(const std::vector<T>& taps) {
    std::vector<T> result(taps.size());
    for (size_t tap = 0; tap < taps.size(); tap += BLOCK)
        std::copy_n(&taps[tap], BLOCK, &result[taps.size() - BLOCK - tap]);
    return result;
}

// A weighted sum over source[k + shift] .. source[k + shift + count - 1], with taps (count, BLOCK).
template <class T>
struct Sum {
    int64_t count, shift;
    std::vector<T> taps;

    // source'[k] is the sum over all rows in whose sum source[k] is.
    Sum adjoint() const { return {count, -(shift + count - 1), mirrored(taps)}; }
};

template <Use USE, int COUNT, class T>
inline void apply_group(const Sum<T>& sum, T scale, Window<T> input, Window<T> source, T* result, int64_t stride) {
    using V = Vector<T>;
    for (int64_t c = 0; c < BLOCK; c += LANES<T>) {
        V sums[COUNT] = {};
        for (int64_t tap = 0; tap < sum.count; ++tap) {
            V weight = at(&sum.taps[tap * BLOCK + c]);
            for (int t = 0; t < COUNT; ++t) sums[t] += weight * at(source.base + (t + tap) * source.stride + c);
        }
        for (int t = 0; t < COUNT; ++t) {
            V value = at(input.base + t * input.stride + c);
            at(result + t * stride + c) = use<USE, T>(value, sums[t], scale);
        }
    }
}

// result[k] = input[k] + scale * sum[k], or as USE says.
template <Use USE, class T>
void apply(const Sum<T>& sum, T scale, Rows<const T> input, Rows<const T> source, Rows<T> result) {
    std::vector<T> input_edge(TILE * BLOCK), source_edge((TILE + sum.count) * BLOCK), edge(TILE * BLOCK);
    for (int64_t first = 0; first < result.period; first += TILE) {
        int64_t count = std::min(TILE, result.period - first), t = 0;
        auto from = window(input, first, count, input_edge.data());
        auto around = window(source, first + sum.shift, count + sum.count - 1, source_edge.data());
        auto to = target(result, first, count, edge.data());
        auto group = [&](auto size) {
            apply_group<USE, size.value>(sum, scale, {from.base + t * from.stride, from.stride},
                                         {around.base + t * around.stride, around.stride}, to.base + t * to.stride,
                                         to.stride);
            t += size.value;
        };
        while (t + GROUP <= count) group(std::integral_constant<int, GROUP>());
        while (t < count) group(std::integral_constant<int, 1>());
        drain(to, result, first, count);
    }
}

// One of the two steps of a level: result = input +- scale * silu(sum over source), without silu if it is fixed.
template <class T>
struct Step {
    bool learned;
    T scale;
    Sum<T> sum, adjoint;
    std::vector<T> of_taps;  // the gradient of the taps, in the order of `sum`

    Step(bool learned, T scale, Sum<T> values)
        : learned(learned), scale(scale), sum(values), adjoint(values.adjoint()), of_taps(values.taps.size()) {}

    void run(T sign, Rows<const T> input, Rows<const T> source, Rows<T> result) const {
        if (learned)
            apply<SILU>(sum, sign * scale, input, source, result);
        else
            apply<SUM>(sum, sign * scale, input, source, result);
    }

    // of_source = the gradient of source so far, `before`, and what `gradient`, that of the result, adds to it.
    // A fixed step does not read source.
    void differentiate(T sign, Rows<const T> gradient, Rows<const T> source, Rows<const T> before, Rows<T> of_source) {
        if (!learned) return apply<SUM>(adjoint, sign * scale, before, gradient, of_source);
        Scratch<T> memory;
        Rows<T> of_sum = memory.rows(gradient.period);
        apply<SLOPE>(sum, sign * scale, gradient, source, of_sum);
        std::vector<T> edge((TILE + sum.count) * BLOCK);
        for (int64_t first = 0; first < of_sum.period; first += TILE) {
            int64_t count = std::min(TILE, of_sum.period - first);
            auto around = window(source, first + sum.shift, count + sum.count - 1, edge.data());
            Window<T> signal{of_sum.base + first * of_sum.stride, of_sum.stride};
            correlate<1>(signal, around, count, sum.count, of_taps.data());
        }
        apply<SUM>(adjoint, T(1), before, readable(of_sum), of_source);
    }
};

// The steps of the channels of one task. Details use rows from k on; approximations use details up to k.
template <class T>
struct Steps {
    Step<T> predict, update;

    Steps(const Place& place, const T* of_predict, int64_t predicts, const T* of_update, int64_t updates)
        : predict(of_predict, T(0.5), make(place, of_predict, predicts)),
          update(of_update, T(0.25), make(place, of_update, updates).adjoint()) {}

private:
    static Sum<T> make(const Place& place, const T* taps, int64_t count) {
        if (!taps) return {2, 0, std::vector<T>(2 * BLOCK, T(1))};
        return {count, 0, place.taps(taps, count)};
    }
};

template <class T>
void copy(Rows<const T> from, Rows<T> to) {
    for (int64_t row = 0; row < to.valid; ++row)
        std::memcpy(to.base + row * to.stride, from.base + row * from.stride, to.channels * sizeof(T));
}

template <class T>
struct Problem {
    Shape shape;
    const T *predict, *update;  // (T, D) each, or null
    int64_t predicts, updates;

    Steps<T> steps(const Place& place) const { return {place, predict, predicts, update, updates}; }
};

// The even rows and the details of every level, from 1 on; rows have memory of their own.
template <class T>
struct Levels {
    std::vector<Rows<const T>> even, detail;
    std::vector<Scratch<T>> rows_memory;

    explicit Levels(int64_t levels) : even(levels + 1), detail(levels + 1), rows_memory(levels + 1) {}

    // As synthesis computes them.
    static Levels of_bands(const Place& place, const Steps<T>& steps, const T* bands) {
        Levels levels(place.shape.levels);
        Rows<const T> low = place.band(bands, 0);
        for (int64_t level = place.shape.levels; level > 0; --level) {
            Rows<T> rows = levels.rows_memory[level].rows(place.period >> (level - 1));
            levels.even[level] = readable(rows.every_second(0));
            levels.detail[level] = place.band(bands, level);
            steps.update.run(-1, low, levels.detail[level], rows.every_second(0));
            if (level > 1) steps.predict.run(1, levels.detail[level], levels.even[level], rows.every_second(1));
            low = readable(rows);
        }
        return levels;
    }
};

// Gradients of the taps: of each sample (B, T, D), and their sum (T, D).
template <class T>
struct TapGradients {
    const Problem<T>& problem;
    std::vector<T> predict, update;

    explicit TapGradients(const Problem<T>& problem)
        : problem(problem),
          predict(problem.shape.batch * problem.predicts * problem.shape.width),
          update(problem.shape.batch * problem.updates * problem.shape.width) {}

    void add(const Place& place, const Steps<T>& steps) {
        if (steps.predict.learned) place.store_taps(steps.predict.of_taps, predict.data());
        if (steps.update.learned) place.store_taps(mirrored(steps.update.of_taps), update.data());
    }

    void sum(T* of_predict, T* of_update) const {
        int64_t width = problem.shape.width;
        sum_samples(problem.shape.batch, problem.predicts * width, predict.data(), of_predict);
        sum_samples(problem.shape.batch, problem.updates * width, update.data(), of_update);
    }
};

template <class T>
void analysis(const Problem<T>& problem, const T* x, T* bands, int threads) {
    const Shape& shape = problem.shape;
    parallel_for(threads, shape.tasks(), [&](int64_t task) {
        Place place(shape, task);
        Steps<T> steps = problem.steps(place);
        std::vector<Scratch<T>> memory(shape.levels);
        Rows<const T> rows = place.rows(x);
        for (int64_t level = 1; level <= shape.levels; ++level) {
            Rows<T> low = level == shape.levels ? place.band(bands, 0) : memory[level].rows(place.period >> level);
            Rows<T> detail = place.band(bands, level);
            steps.predict.run(-1, rows.every_second(1), rows.every_second(0), detail);
            steps.update.run(1, rows.every_second(0), readable(detail), low);
            rows = readable(low);
        }
        place.clear_bands(bands);
    });
}

template <class T>
void synthesis(const Problem<T>& problem, const T* bands, T* x, int threads) {
    const Shape& shape = problem.shape;
    parallel_for(threads, shape.tasks(), [&](int64_t task) {
        Place place(shape, task);
        Steps<T> steps = problem.steps(place);
        std::vector<Scratch<T>> memory(shape.levels);
        Rows<const T> low = place.band(bands, 0);
        for (int64_t level = shape.levels; level > 0; --level) {
            Rows<T> rows = level == 1 ? place.rows(x) : memory[level - 1].rows(place.period >> (level - 1));
            Rows<const T> detail = place.band(bands, level);
            // Odd rows need all even ones, also those that are no part of the result.
            Scratch<T> whole;
            Rows<T> even = rows.every_second(0), used = even.complete() ? even : whole.rows(even.period);
            steps.update.run(-1, low, detail, used);
            steps.predict.run(1, detail, readable(used), rows.every_second(1));
            if (!even.complete()) copy(readable(used), even);
            low = readable(rows);
        }
        place.clear_rows(x);
    });
}

// Gradients of x and of the taps; the bands of x are null if the steps are fixed.
template <class T>
void analysis_backward(const Problem<T>& problem, const T* gradient, const T* bands, T* of_x, T* of_predict,
                       T* of_update, int threads) {
    const Shape& shape = problem.shape;
    TapGradients<T> of_taps(problem);
    parallel_for(threads, shape.tasks(), [&](int64_t task) {
        Place place(shape, task);
        Steps<T> steps = problem.steps(place);
        Levels<T> kept = bands ? Levels<T>::of_bands(place, steps, bands) : Levels<T>(shape.levels);
        std::vector<Scratch<T>> memory(shape.levels);
        Rows<const T> of_low = place.band(gradient, 0);
        for (int64_t level = shape.levels; level > 0; --level) {
            Rows<T> of_rows = level == 1 ? place.rows(of_x) : memory[level - 1].rows(place.period >> (level - 1));
            // Gradients of even rows need those of all odd ones, also of those that are no part of x.
            Scratch<T> whole;
            Rows<T> odd = of_rows.every_second(1), used = odd.complete() ? odd : whole.rows(odd.period);
            steps.update.differentiate(1, of_low, kept.detail[level], place.band(gradient, level), used);
            steps.predict.differentiate(-1, readable(used), kept.even[level], of_low, of_rows.every_second(0));
            if (!odd.complete()) copy(readable(used), odd);
            of_low = readable(of_rows);
        }
        place.clear_rows(of_x);
        of_taps.add(place, steps);
    });
    of_taps.sum(of_predict, of_update);
}

// Gradients of the bands and of the taps; bands is null if the steps are fixed.
template <class T>
void synthesis_backward(const Problem<T>& problem, const T* gradient, const T* bands, T* of_bands, T* of_predict,
                        T* of_update, int threads) {
    const Shape& shape = problem.shape;
    TapGradients<T> of_taps(problem);
    parallel_for(threads, shape.tasks(), [&](int64_t task) {
        Place place(shape, task);
        Steps<T> steps = problem.steps(place);
        Levels<T> kept = bands ? Levels<T>::of_bands(place, steps, bands) : Levels<T>(shape.levels);
        std::vector<Scratch<T>> memory(shape.levels);
        Rows<const T> of_rows = place.rows(gradient);
        for (int64_t level = 1; level <= shape.levels; ++level) {
            bool last = level == shape.levels;
            Rows<T> of_low = last ? place.band(of_bands, 0) : memory[level].rows(place.period >> level);
            Rows<const T> of_odd = of_rows.every_second(1);
            steps.predict.differentiate(1, of_odd, kept.even[level], of_rows.every_second(0), of_low);
            steps.update.differentiate(-1, readable(of_low), kept.detail[level], of_odd, place.band(of_bands, level));
            of_rows = readable(of_low);
        }
        place.clear_bands(of_bands);
        of_taps.add(place, steps);
    });
    of_taps.sum(of_predict, of_update);
}

}  // namespace

#ifdef ANALYSIS
extern "C" void longmix_analysis(const REAL* x, const REAL* predict, const REAL* update, const int64_t* lengths,
                                 REAL* bands, int64_t batch, int64_t positions, int64_t width, int64_t predicts,
                                 int64_t updates, int64_t levels, int64_t threads) {
    analysis<REAL>({{batch, positions, width, levels, lengths}, predict, update, predicts, updates}, x, bands, threads);
}
#endif

#ifdef SYNTHESIS
extern "C" void longmix_synthesis(const REAL* bands, const REAL* predict, const REAL* update, const int64_t* lengths,
                                  REAL* x, int64_t batch, int64_t positions, int64_t width, int64_t predicts,
                                  int64_t updates, int64_t levels, int64_t threads) {
    synthesis<REAL>({{batch, positions, width, levels, lengths}, predict, update, predicts, updates}, bands, x,
                    threads);
}
#endif

#ifdef ANALYSIS_BACKWARD
extern "C" void longmix_analysis_backward(const REAL* gradient, const REAL* bands, const REAL* predict,
                                          const REAL* update, const int64_t* lengths, REAL* of_x, REAL* of_predict,
                                          REAL* of_update, int64_t batch, int64_t positions, int64_t width,
                                          int64_t predicts, int64_t updates, int64_t levels, int64_t threads) {
    analysis_backward<REAL>({{batch, positions, width, levels, lengths}, predict, update, predicts, updates},
                            gradient, bands, of_x, of_predict, of_update, threads);
}
#endif

#ifdef SYNTHESIS_BACKWARD
extern "C" void longmix_synthesis_backward(const REAL* gradient, const REAL* bands, const REAL* predict,
                                           const REAL* update, const int64_t* lengths, REAL* of_bands, REAL* of_predict,
                                           REAL* of_update, int64_t batch, int64_t positions, int64_t width,
                                           int64_t predicts, int64_t updates, int64_t levels, int64_t threads) {
    synthesis_backward<REAL>({{batch, positions, width, levels, lengths}, predict, update, predicts, updates},
                             gradient, bands, of_bands, of_predict, of_update, threads);
}
#endif
