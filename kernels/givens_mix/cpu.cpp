// Converter's product of Givens rotations on a CPU.
//
// A task takes some channels of one sample and head, block by block: a block of all rows stays in cache while the
// stages pass over it. A stage is one sweep of real rotations, the phases before and behind it gathered into turns.

#include <algorithm>
#include <cstring>
#include <memory>

#include "common/parallel.h"
#include "rows.h"
#include "tables.h"

namespace {

constexpr int64_t AHEAD = 16;   // rows by which memory is asked for them before they are needed
constexpr int64_t TASKS = 8;         // among which a call's sums over channels are cut, at most, if samples are few

// Multiplies row k by exp(sign * i * angle_k). On the way back it adds up the gradient of the angles.
template <class T>
struct Turn {
    const T* table;   // (N, 2), cosines and sines; null: no turn
    T sign;
    T* sums;

    template <class R>
    ALWAYS_INLINE void operator()(R& row, int64_t index) const {
        if (!table) return;
        if constexpr (R::GRADIENT) sums[index] -= sign * row.by_turn();
        row.turn(table[2 * index], sign * table[2 * index + 1]);
    }
};

// Where a sweep finds or leaves its rows: in the rows of a block, or outside of it from `channel` on, row k at rows[k].
template <class R, class T>
struct Place {
    R* block;
    const Matrix<T>* outside;   // null: in the block; to read, one matrix for the states and one for their gradients
    int64_t channel;
    const int64_t* rows;        // null: row k at k

    // Rows outside are far apart: the processor does not guess which one follows.
    template <bool WRITTEN>
    ALWAYS_INLINE void announce(int64_t index, int64_t count) const {
        if (!outside || index < 0 || index >= count) return;
        if (rows) index = rows[index];
        for (int kind = 0; kind <= (R::GRADIENT && !WRITTEN); ++kind)
            R::template announce<WRITTEN>(outside[kind], index, channel);
    }

    ALWAYS_INLINE R read(int64_t index) const {
        if (rows) index = rows[index];
        if (!outside) return block[index];
        R row;
        for (int kind = 0; kind <= R::GRADIENT; ++kind) row.read(kind, outside[kind], index, channel);
        return row;
    }

    ALWAYS_INLINE void write(int64_t index, const R& row) const {
        if (rows) index = rows[index];
        if (outside) {
            row.write(R::GRADIENT, *outside, index, channel);
        } else {
            block[index] = row;
        }
    }
};

// A sweep over all rows from the last to the first, O, or from the first to the last, O^T.
template <class R, class T>
__attribute__((noinline)) void sweep(int64_t count, bool ascending, const T* rotations, T* sums, Turn<T> before,
                                     Turn<T> after, const Place<R, T> from, const Place<R, T> to) {
    int64_t step = ascending ? 1 : -1, at = ascending ? 0 : count - 1;
    R carried{};
    // The first step only reads and the last one only writes: reading and writing stand here once, for the compiler.
    for (int64_t number = 0; number <= count; ++number, at += step) {
        R done = carried;
        from.template announce<false>(at + AHEAD * step, count);
        to.template announce<true>(at + AHEAD * step, count);
        if (number < count) {
            R row = from.read(at);
            before(row, at);
            if (number == 0) {
                carried = row;
                continue;
            }
            int64_t k = ascending ? at - 1 : at;
            if constexpr (R::GRADIENT) sums[k] += row.by_rotation(carried);
            done = row.rotate(carried, rotations[2 * k], rotations[2 * k + 1]);
        }
        after(done, at - step);
        to.write(at - step, done);
    }
}

// All stages for the channels of one block: Phi, the eigenvalues or their inverses, Phi undone.
template <class R, class T>
__attribute__((noinline)) void run(const Stages& stages, const T* tables, T* sums, R* block, R* other, int64_t channel,
                                   const Matrix<T>* source, const Matrix<T>* result) {
    int64_t outermost = stages.orders - 1;
    const Turn<T> none{nullptr, 0, nullptr};
    auto table = [&](int64_t number) { return tables + number * stages.positions * 2; };
    auto sums_of = [&](int64_t number) { return sums ? sums + number * stages.positions : nullptr; };
    auto turn = [&](int64_t number, T sign) { return Turn<T>{table(number), sign, sums_of(number)}; };
    auto pass = [&](int64_t number, bool lower, bool ascending, Turn<T> before, Turn<T> after, Place<R, T> from,
                    Place<R, T> to) {
        int64_t stage = stages.rotation(number, lower);
        sweep(stages.count, ascending, table(stage), sums_of(stage), before, after, from, to);
    };
    for (int64_t number = outermost; number >= 0; --number) {
        const int64_t* rows = stages.rows(number);
        Place<R, T> from{block, number == outermost ? source : nullptr, channel, rows};
        if (rows && number < outermost) std::swap(block, other);
        Place<R, T> here{block, nullptr, 0, nullptr};
        Turn<T> eigenvalues = turn(stages.eigenvalues(), R::GRADIENT ? -1 : 1);
        pass(number, false, false, turn(stages.phase(number, false), 1), none, from, here);
        pass(number, true, true, turn(stages.phase(number, true), 1), number == 0 ? eigenvalues : none, here, here);
    }
    for (int64_t number = 0; number <= outermost; ++number) {
        const int64_t* rows = stages.rows(number);
        Place<R, T> here{block, nullptr, 0, nullptr};
        if (rows && number < outermost) std::swap(block, other);
        Place<R, T> to{block, number == outermost ? result : nullptr, channel, rows};
        pass(number, true, false, none, turn(stages.phase(number, true), -1), here, here);
        pass(number, false, true, none, turn(stages.phase(number, false), -1), here, to);
    }
}

// The arguments of a call: values (B, N, H, d, 2), or (B, N, 2, H, d) if `planes`; angles (B, H, L, N - 1, 3), phases
// (B, H, N), lengths (B) or null, permutations (1 or B, L, N) or null.
struct Problem {
    int64_t batch, positions, heads, width, orders, planes, permutations;
    const int64_t *lengths, *permutation;

    int64_t pairs() const { return batch * heads; }
    int64_t tables() const { return 4 * orders + 1; }

    template <class T>
    Matrix<T> matrix(T* data, int64_t pair) const {
        int64_t line = heads * width;
        return {data + pair / heads * positions * 2 * line + pair % heads * width * (planes ? 1 : 2), 2 * line,
                planes ? line : 1, width};
    }

    Stages stages(int64_t pair) const {
        int64_t sample = pair / heads;
        const int64_t* own = permutation ? permutation + sample % permutations * orders * positions : nullptr;
        int64_t count = lengths ? std::min(std::max<int64_t>(lengths[sample], 0), positions) : positions;
        return {orders, positions, count, own};
    }

    Angles angles(double* upper, double* lower, double* phase, int64_t pair) const {
        int64_t factor = pair * orders * (positions - 1) * 3;
        return {upper + factor, lower + factor, phase + pair * positions};
    }
};

// Cosines and sines, (B, H, tables, N, 2).
template <class T>
std::unique_ptr<T[]> make_tables(const Problem& problem, double* upper, double* lower, double* phase, int threads) {
    int64_t size = problem.tables() * problem.positions;
    std::unique_ptr<T[]> tables(new T[problem.pairs() * size * 2]);
    parallel_for(threads, problem.pairs(), [&](int64_t pair) {
        Stages stages = problem.stages(pair);
        if (stages.count == 0) return;
        std::vector<double> angles(size), cosines(size), sines(size);
        table_angles(stages, problem.angles(upper, lower, phase, pair), angles.data());
        cosines_and_sines(angles.data(), size, cosines.data(), sines.data());
        T* own = tables.get() + pair * size * 2;
        for (int64_t i = 0; i < size; ++i) {
            own[2 * i] = static_cast<T>(cosines[i]);
            own[2 * i + 1] = static_cast<T>(sines[i]);
        }
    });
    return tables;
}

// Calls task(number, block, other) for each number, with rows for a block, two such for permutations between orders.
template <class R, class Task>
void with_blocks(const Problem& problem, int threads, int64_t tasks, const Task& task) {
    int64_t rows = problem.positions;
    bool two = problem.permutation && problem.orders > 1;
    std::atomic<int64_t> next{0};
    parallel_for(threads, std::min<int64_t>(threads, tasks), [&](int64_t) {
        std::unique_ptr<R[]> blocks(new R[two ? 2 * rows : rows]);
        for (int64_t number; (number = next++) < tasks;) task(number, blocks.get(), blocks.get() + (two ? rows : 0));
    });
}

// Rows of padding become zero in `channels` channels from `first`.
template <class T>
__attribute__((noinline)) void clear(const Matrix<T>& matrix, int64_t from, int64_t to, int64_t first,
                                     int64_t channels) {
    int64_t count = std::min(channels, matrix.width - first);
    for (int64_t k = from; k < to; ++k) {
        T* row = matrix.at(k, first);
        std::memset(row, 0, (matrix.pairs() ? 2 : 1) * count * sizeof(T));
        if (!matrix.pairs()) std::memset(row + matrix.part, 0, count * sizeof(T));
    }
}

template <class T, int VECTORS>
void forward(const Problem& problem, const T* value, const T* tables, T* result, int threads) {
    using R = Row<T, VECTORS, 1>;
    int64_t blocks = (problem.width + R::CHANNELS - 1) / R::CHANNELS;
    with_blocks<R>(problem, threads, problem.pairs() * blocks, [&](int64_t number, R* block, R* other) {
        int64_t pair = number / blocks, first = number % blocks * R::CHANNELS;
        Stages stages = problem.stages(pair);
        auto from = problem.matrix(const_cast<T*>(value), pair), to = problem.matrix(result, pair);
        clear(to, stages.count, problem.positions, first, R::CHANNELS);
        const T* own = tables + pair * problem.tables() * problem.positions * 2;
        if (stages.count) run<R, T>(stages, own, nullptr, block, other, first, &from, &to);
    });
}

// Adds to `sums` (B, H, tables, N) those of other groups of blocks, (B, H, groups, tables, N), in the groups' order.
template <class T>
__attribute__((noinline)) void add_groups(const Problem& problem, const T* others, int64_t groups, T* sums,
                                          int threads) {
    int64_t size = problem.tables() * problem.positions;
    parallel_for(threads, problem.pairs(), [&](int64_t pair) {
        for (int64_t group = 0; group < groups; ++group) {
            const T* added = others + (pair * groups + group) * size;
            for (int64_t i = 0; i < size; ++i) sums[pair * size + i] += added[i];
        }
    });
}

// The inverse of Phi^-1 exp(i phase) Phi is its adjoint: what takes the result back to the value does so with its
// gradient. `sums` (B, H, tables, N) become the gradients of the tables' angles.
template <class T, int VECTORS>
void backward(const Problem& problem, const T* gradient, const T* result, const T* tables, T* of_value, T* sums,
              int threads) {
    using R = Row<T, VECTORS, 2>;
    int64_t blocks = (problem.width + R::CHANNELS - 1) / R::CHANNELS;
    int64_t groups = std::max<int64_t>(1, std::min(blocks, TASKS / problem.pairs()));
    int64_t size = problem.tables() * problem.positions;
    // One set of sums for each group of blocks, added up in their order afterwards.
    std::vector<T> others((groups - 1) * problem.pairs() * size);
    with_blocks<R>(problem, threads, problem.pairs() * groups, [&](int64_t number, R* block, R* other) {
        int64_t pair = number / groups, group = number % groups;
        Stages stages = problem.stages(pair);
        const Matrix<T> from[] = {problem.matrix(const_cast<T*>(result), pair),
                                  problem.matrix(const_cast<T*>(gradient), pair)};
        const Matrix<T> to = problem.matrix(of_value, pair);
        T* own = group == 0 ? sums + pair * size : others.data() + (pair * (groups - 1) + group - 1) * size;
        if (group == 0) std::fill(own, own + size, T(0));
        for (int64_t first = group * R::CHANNELS; first < problem.width; first += groups * R::CHANNELS) {
            clear(to, stages.count, problem.positions, first, R::CHANNELS);
            if (stages.count) run(stages, tables + pair * size * 2, own, block, other, first, from, &to);
        }
    });
    add_groups(problem, others.data(), groups - 1, sums, threads);
}

template <class T>
constexpr int WIDE = sizeof(T) == 4 ? 2 : 1;

template <class T>
bool narrow(const Problem& problem) {
    return problem.width <= Row<T, 1, 1>::CHANNELS;
}

}  // namespace

#ifdef FORWARD
extern "C" void longmix_forward(const REAL* value, double* upper, double* lower, double* phase, const int64_t* lengths,
                                const int64_t* permutation, REAL* result, int64_t batch, int64_t positions,
                                int64_t heads, int64_t width, int64_t orders, int64_t planes, int64_t permutations,
                                int64_t threads) {
    Problem problem{batch, positions, heads, width, orders, planes, permutations, lengths, permutation};
    auto tables = make_tables<REAL>(problem, upper, lower, phase, threads);
    auto run = narrow<REAL>(problem) ? forward<REAL, 1> : forward<REAL, WIDE<REAL>>;
    run(problem, value, tables.get(), result, threads);
}
#endif

#ifdef BACKWARD
extern "C" void longmix_backward(const REAL* gradient, const REAL* mixed, double* upper, double* lower, double* phase,
                                 const int64_t* lengths, const int64_t* permutation, REAL* of_value, double* of_upper,
                                 double* of_lower, double* of_phase, int64_t batch, int64_t positions, int64_t heads,
                                 int64_t width, int64_t orders, int64_t planes, int64_t permutations, int64_t threads) {
    Problem problem{batch, positions, heads, width, orders, planes, permutations, lengths, permutation};
    auto tables = make_tables<REAL>(problem, upper, lower, phase, threads);
    std::unique_ptr<REAL[]> sums(new REAL[problem.pairs() * problem.tables() * positions]);
    auto run = narrow<REAL>(problem) ? backward<REAL, 1> : backward<REAL, WIDE<REAL>>;
    run(problem, gradient, mixed, tables.get(), of_value, sums.get(), threads);
    parallel_for(threads, problem.pairs(), [&](int64_t pair) {
        Stages stages = problem.stages(pair);
        const REAL* own = sums.get() + pair * problem.tables() * positions;
        if (stages.count) angle_gradients(stages, own, problem.angles(of_upper, of_lower, of_phase, pair));
    });
}
#endif
