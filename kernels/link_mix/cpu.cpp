// Paramixer's product of sparse factors on a CPU.
//
// A task takes one sample and some blocks of channels; a block of all rows passes through all factors while it is in
// cache. The rows of a document are cut where a link begins to leave the document: between two cuts every link leads
// equally far, so that the innermost loops hold no condition. The transposed factor of the backward pass has links of
// its own, with the offsets negated and the weights moved to the rows that they lead to, so that it gathers rows too.

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/callback.h"
#include "common/parallel.h"

namespace {

constexpr int64_t BLOCK = 64;  // channels
constexpr int64_t GROUPS = 8;  // tasks that share the gradient of a sample's weights, at most
#if defined(__AVX512F__)
constexpr int REGISTER = 64;  // bytes
#elif defined(__AVX__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif

// One row of a block.
template <class T>
struct alignas(64) Row {
    T channel[BLOCK];
};

template <class T>
using Rows = std::unique_ptr<Row<T>[]>;

template <class T>
Rows<T> make_rows(int64_t count) {
    return Rows<T>(new Row<T>[count]);
}

// Registers of channels.
template <class T>
struct Register {
    typedef T Vector __attribute__((vector_size(REGISTER), may_alias));
    static constexpr int LANES = REGISTER / sizeof(T);
    static constexpr int PER_ROW = BLOCK / LANES;

    static Vector load(const Row<T>& row, int number) {
        return *reinterpret_cast<const Vector*>(row.channel + number * LANES);
    }
    static void store(Vector value, Row<T>& row, int number) {
        *reinterpret_cast<Vector*>(row.channel + number * LANES) = value;
    }
};

struct Shape {
    int64_t batch, positions, width, factors, links;
    bool wrap;
    int64_t blocks() const { return (width + BLOCK - 1) / BLOCK; }
    int64_t groups() const { return std::max<int64_t>(1, std::min(blocks(), GROUPS / std::max<int64_t>(batch, 1))); }
    int64_t weights() const { return positions * factors * links; }  // of a sample
};

// Rows begin .. end - 1, whose links link[0 .. count - 1] exist and lead step[...] rows further.
struct Run {
    int64_t begin, end, count;
    const int64_t *link, *step;
};

// Calls visit(run) for all runs of the documents of a sample, in ascending order; `starts` and `lengths` (N) are those
// of each row's document, `direction` -1 negates the offsets. Returns the first row that is in no document: the span of
// padding is that of its sample, which ends before it. Compiled once, for all visitors and both directions.
__attribute__((noinline, noclone)) int64_t for_each_run(const Shape& shape, const int64_t* offsets, int64_t direction,
                                                        const int64_t* starts, const int64_t* lengths,
                                                        Callback<Run> visit) {
    std::vector<int64_t> cuts, offset(shape.links), link(shape.links), step(shape.links);
    int64_t begin = 0;
    for (int64_t end; begin < shape.positions && (end = starts[begin] + lengths[begin]) > begin; begin = end) {
        int64_t length = lengths[begin];
        cuts.assign({0, length});
        for (int64_t k = 0; k < shape.links; ++k) {
            offset[k] = direction * (shape.wrap ? offsets[k] % length : offsets[k]);
            if (offset[k] > 0 && offset[k] < length) cuts.push_back(length - offset[k]);
            if (offset[k] < 0 && offset[k] > -length) cuts.push_back(-offset[k]);
        }
        std::sort(cuts.begin(), cuts.end());
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
        for (size_t cut = 0; cut + 1 < cuts.size(); ++cut) {
            int64_t count = 0;
            for (int64_t k = 0; k < shape.links; ++k) {
                int64_t row = cuts[cut] + offset[k];
                bool inside = row >= 0 && row < length;
                if (!inside && !shape.wrap) continue;
                link[count] = k;
                step[count++] = inside ? offset[k] : row < 0 ? offset[k] + length : offset[k] - length;
            }
            visit(Run{begin + cuts[cut], begin + cuts[cut + 1], count, link.data(), step.data()});
        }
    }
    return begin;
}

// Rows (N, width) -> (N, BLOCK) from channel `first`, channels that do not exist zero; and back.
template <class T>
void load(const Shape& shape, const T* rows, int64_t first, Row<T>* block) {
    int64_t count = std::min(BLOCK, shape.width - first);
    rows += first;
    if (count == BLOCK) {
        for (int64_t i = 0; i < shape.positions; ++i) std::memcpy(&block[i], rows + i * shape.width, sizeof(Row<T>));
        return;
    }
    for (int64_t i = 0; i < shape.positions; ++i) {
        std::copy_n(rows + i * shape.width, count, block[i].channel);
        std::fill(block[i].channel + count, block[i].channel + BLOCK, T(0));
    }
}

template <class T>
void store(const Shape& shape, const Row<T>* block, int64_t first, T* rows) {
    int64_t count = std::min(BLOCK, shape.width - first);
    rows += first;
    for (int64_t i = 0; i < shape.positions; ++i) {
        if (count == BLOCK)
            std::memcpy(rows + i * shape.width, &block[i], sizeof(Row<T>));
        else
            std::copy_n(block[i].channel, count, rows + i * shape.width);
    }
}

// Calls visit(place in (B, N, M, K), place in (B, M, N, K)) for the links of every row and factor.
template <class Visit>
void for_each_place(const Shape& shape, int threads, const Visit& visit) {
    constexpr int64_t PIECE = 64;
    int64_t pieces = (shape.positions + PIECE - 1) / PIECE;
    parallel_for(threads, shape.batch * pieces, [&](int64_t task) {
        int64_t sample = task / pieces, first = task % pieces * PIECE;
        int64_t last = std::min(first + PIECE, shape.positions);
        for (int64_t row = first; row < last; ++row)
            for (int64_t factor = 0; factor < shape.factors; ++factor)
                visit(((sample * shape.positions + row) * shape.factors + factor) * shape.links,
                      ((sample * shape.factors + factor) * shape.positions + row) * shape.links);
    });
}

// Weights (B, N, M, K) -> (B, M, N, K): a pass over one factor then reads them in a row.
template <class T>
std::unique_ptr<T[]> pack(const Shape& shape, const T* weights, int threads) {
    std::unique_ptr<T[]> packed(new T[shape.batch * shape.weights()]);
    for_each_place(shape, threads, [&](int64_t place, int64_t packed_place) {
        std::copy_n(weights + place, shape.links, packed.get() + packed_place);
    });
    return packed;
}

// COUNT rows from `row` of (I + W) input.
template <class T, int COUNT>
__attribute__((always_inline)) inline void add_links(const Run& run, int64_t row, const T* weights, int64_t links, const Row<T>* input,
                      Row<T>* output) {
    using Lanes = Register<T>;
    typename Lanes::Vector sum[COUNT][Lanes::PER_ROW];
    for (int i = 0; i < COUNT; ++i)
        for (int v = 0; v < Lanes::PER_ROW; ++v) sum[i][v] = Lanes::load(input[row + i], v);
    for (int64_t k = 0; k < run.count; ++k) {
        const Row<T>* source = input + row + run.step[k];
        const T* weight = weights + row * links + run.link[k];
        for (int i = 0; i < COUNT; ++i)
            for (int v = 0; v < Lanes::PER_ROW; ++v) sum[i][v] += weight[i * links] * Lanes::load(source[i], v);
    }
    for (int i = 0; i < COUNT; ++i)
        for (int v = 0; v < Lanes::PER_ROW; ++v) Lanes::store(sum[i][v], output[row + i], v);
}

// The rows of one run of (I + W) input, weights (N, K).
template <class T>
void apply(Run run, const T* weights, int64_t links, const Row<T>* input, Row<T>* output) {
    constexpr int TILE = std::max(1, 8 / Register<T>::PER_ROW);  // 8 registers of sums
    int64_t row = run.begin;
    for (; row + TILE <= run.end; row += TILE) add_links<T, TILE>(run, row, weights, links, input, output);
    for (; row < run.end; ++row) add_links<T, 1>(run, row, weights, links, input, output);
}

// output = (I + W) input of one factor, weights (N, K).
template <class T>
void apply(const Shape& shape, const int64_t* offsets, int64_t direction, const int64_t* starts, const int64_t* lengths,
           const T* weights, const Row<T>* input, Row<T>* output) {
    int64_t end = for_each_run(shape, offsets, direction, starts, lengths,
                               [&](Run run) { apply(run, weights, shape.links, input, output); });
    std::copy(input + end, input + shape.positions, output + end);
}

// Lanes whose number holds the bit `bit` from b, others from a, each plus its neighbour at the distance of the bit.
template <class T, int BIT, size_t... LANE>
inline typename Register<T>::Vector add_neighbours(typename Register<T>::Vector a, typename Register<T>::Vector b,
                                                   std::index_sequence<LANE...>) {
    constexpr int LANES = Register<T>::LANES;
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (LANE & BIT ? LANE + LANES : LANE)...) +
           __builtin_shufflevector(a, b, (LANE & BIT ? (LANE ^ BIT) + LANES : LANE ^ BIT)...);
#else
    using Index = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
    typedef Index Indices __attribute__((vector_size(REGISTER)));
    return __builtin_shuffle(a, b, Indices{Index(LANE & BIT ? LANE + LANES : LANE)...}) +
           __builtin_shuffle(a, b, Indices{Index(LANE & BIT ? (LANE ^ BIT) + LANES : LANE ^ BIT)...});
#endif
}

// Lane k: <own, own[step[k]]> of the links k = FIRST, FIRST + DISTANCE, ... that are below count; other lanes hold
// partial sums that the caller's addition of neighbours completes.
template <class T, int FIRST, int DISTANCE>
inline typename Register<T>::Vector dot_products(const typename Register<T>::Vector* own, const Row<T>* input,
                                                 const int64_t* step, int64_t count) {
    using Lanes = Register<T>;
    typename Lanes::Vector sum{};
    if (FIRST >= count) return sum;
    if constexpr (DISTANCE == Lanes::LANES) {
        const Row<T>& row = input[step[FIRST]];
        for (int v = 0; v < Lanes::PER_ROW; ++v) sum += own[v] * Lanes::load(row, v);
        return sum;
    } else {
        return add_neighbours<T, DISTANCE>(dot_products<T, FIRST, 2 * DISTANCE>(own, input, step, count),
                                           dot_products<T, FIRST + DISTANCE, 2 * DISTANCE>(own, input, step, count),
                                           std::make_index_sequence<Lanes::LANES>());
    }
}

// of_weights (N, K) = <gradient of the row, input of the row that the link leads to>, zero for dropped links.
template <class T>
void differentiate_weights(const Shape& shape, const int64_t* offsets, const int64_t* starts, const int64_t* lengths,
                           const Row<T>* input, const Row<T>* gradient, T* of_weights) {
    using Lanes = Register<T>;
    int64_t total = shape.positions * shape.links;
    int64_t end = for_each_run(shape, offsets, 1, starts, lengths, [&](Run run) {
        for (int64_t row = run.begin; row < run.end; ++row) {
            typename Lanes::Vector own[Lanes::PER_ROW];
            for (int v = 0; v < Lanes::PER_ROW; ++v) own[v] = Lanes::load(gradient[row], v);
            if (run.count < shape.links) std::fill_n(of_weights + row * shape.links, shape.links, T(0));
            for (int64_t first = 0; first < run.count; first += Lanes::LANES) {
                int64_t count = std::min<int64_t>(Lanes::LANES, run.count - first), place = row * shape.links + first;
                typename Lanes::Vector sums = dot_products<T, 0, 1>(own, input + row, run.step + first, count);
                if (run.count == shape.links && place + Lanes::LANES <= total)
                    std::memcpy(of_weights + place, &sums, sizeof(sums));  // what is too much, later rows overwrite
                else
                    for (int64_t k = 0; k < count; ++k) of_weights[row * shape.links + run.link[first + k]] = sums[k];
            }
        }
    });
    std::fill(of_weights + end * shape.links, of_weights + total, T(0));
}

// The weights (N, K) of a transposed factor: each moves to the row that its link leads to. Those of dropped links stay
// unwritten, and unread.
template <class T>
void transpose(const Shape& shape, const int64_t* offsets, const int64_t* starts, const int64_t* lengths,
               const T* weights, T* result) {
    for_each_run(shape, offsets, 1, starts, lengths, [&](Run run) {
        for (int64_t row = run.begin; row < run.end; ++row)
            for (int64_t k = 0; k < run.count; ++k)
                result[(row + run.step[k]) * shape.links + run.link[k]] = weights[row * shape.links + run.link[k]];
    });
}

template <class T>
void forward(const Shape& shape, const T* value, const T* weights, const int64_t* offsets, const int64_t* starts,
             const int64_t* lengths, T* result, int threads) {
    int64_t plane = shape.positions * shape.width, part = shape.positions * shape.links;
    std::unique_ptr<T[]> packed = pack(shape, weights, threads);
    parallel_for(threads, shape.batch * shape.blocks(), [&](int64_t task) {
        int64_t sample = task / shape.blocks(), first = task % shape.blocks() * BLOCK;
        const int64_t *start = starts + sample * shape.positions, *length = lengths + sample * shape.positions;
        const T* own = packed.get() + sample * shape.weights();
        Rows<T> input = make_rows<T>(shape.positions), output = make_rows<T>(shape.positions);
        load(shape, value + sample * plane, first, input.get());
        for (int64_t factor = 0; factor < shape.factors; ++factor) {
            apply(shape, offsets + factor * shape.links, 1, start, length, own + factor * part, input.get(),
                  output.get());
            input.swap(output);
        }
        store(shape, input.get(), first, result + sample * plane);
    });
}

template <class T>
void backward(const Shape& shape, const T* gradient, const T* value, const T* weights, const int64_t* offsets,
              const int64_t* starts, const int64_t* lengths, T* of_value, T* of_weights, int threads) {
    int64_t plane = shape.positions * shape.width, part = shape.positions * shape.links;
    int64_t groups = shape.groups(), count = shape.weights();
    std::unique_ptr<T[]> packed = pack(shape, weights, threads), transposed(new T[shape.batch * count]);
    parallel_for(threads, shape.batch * shape.factors, [&](int64_t task) {
        int64_t sample = task / shape.factors, factor = task % shape.factors;
        transpose(shape, offsets + factor * shape.links, starts + sample * shape.positions,
                  lengths + sample * shape.positions, packed.get() + task * part, transposed.get() + task * part);
    });
    // (groups, B, M, N, K): one sum of the weights' gradient for each group of channels.
    std::unique_ptr<T[]> sums(new T[groups * shape.batch * count]);
    parallel_for(threads, shape.batch * groups, [&](int64_t task) {
        int64_t sample = task % shape.batch, group = task / shape.batch;
        const T *own = packed.get() + sample * count, *adjoint = transposed.get() + sample * count;
        const int64_t *start = starts + sample * shape.positions, *length = lengths + sample * shape.positions;
        std::vector<Rows<T>> inputs;
        for (int64_t factor = 0; factor < std::max<int64_t>(shape.factors, 1); ++factor)
            inputs.push_back(make_rows<T>(shape.positions));
        Rows<T> above = make_rows<T>(shape.positions), below = make_rows<T>(shape.positions);
        std::unique_ptr<T[]> products(new T[group + groups < shape.blocks() ? part : 0]);
        for (int64_t block = group; block < shape.blocks(); block += groups) {
            load(shape, value + sample * plane, block * BLOCK, inputs[0].get());
            for (int64_t factor = 0; factor + 1 < shape.factors; ++factor)
                apply(shape, offsets + factor * shape.links, 1, start, length, own + factor * part,
                      inputs[factor].get(), inputs[factor + 1].get());
            load(shape, gradient + sample * plane, block * BLOCK, above.get());
            for (int64_t factor = shape.factors - 1; factor >= 0; --factor) {
                const int64_t* steps = offsets + factor * shape.links;
                T* sum = sums.get() + task * count + factor * part;
                T* target = block == group ? sum : products.get();
                differentiate_weights(shape, steps, start, length, inputs[factor].get(), above.get(), target);
                if (target != sum)
                    for (int64_t i = 0; i < part; ++i) sum[i] += target[i];
                apply(shape, steps, -1, start, length, adjoint + factor * part, above.get(), below.get());
                above.swap(below);
            }
            store(shape, above.get(), block * BLOCK, of_value + sample * plane);
        }
    });
    for_each_place(shape, threads, [&](int64_t place, int64_t packed_place) {
        const T* sum = sums.get() + packed_place;
        std::copy_n(sum, shape.links, of_weights + place);
        for (int64_t group = 1; group < groups; ++group)
            for (int64_t k = 0; k < shape.links; ++k) of_weights[place + k] += sum[group * shape.batch * count + k];
    });
}

}  // namespace

#ifdef FORWARD
extern "C" void longmix_forward(const REAL* value, const REAL* weights, const int64_t* offsets, const int64_t* starts,
                                const int64_t* lengths, REAL* result, int64_t batch, int64_t positions, int64_t width,
                                int64_t factors, int64_t links, int64_t wrap, int64_t threads) {
    Shape shape{batch, positions, width, factors, links, wrap != 0};
    forward(shape, value, weights, offsets, starts, lengths, result, threads);
}
#endif

#ifdef BACKWARD
extern "C" void longmix_backward(const REAL* gradient, const REAL* value, const REAL* weights, const int64_t* offsets,
                                 const int64_t* starts, const int64_t* lengths, REAL* of_value, REAL* of_weights,
                                 int64_t batch, int64_t positions, int64_t width, int64_t factors, int64_t links,
                                 int64_t wrap, int64_t threads) {
    Shape shape{batch, positions, width, factors, links, wrap != 0};
    backward(shape, gradient, value, weights, offsets, starts, lengths, of_value, of_weights, threads);
}
#endif
