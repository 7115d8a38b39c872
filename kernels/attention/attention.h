// Linear attention on a CPU: from non-negative features, or from the logarithms of positive ones.
//
// A task takes one head of one sample and walks over its documents in chunks of rows (chunk.h). What lies before a chunk
// is one matrix of sums, features by channels, that stays in cache; pairs inside it are taken singly.

#pragma once

#include "chunk.h"
#include "common/parallel.h"

namespace attention {

template <class T, Kind KIND>
class Forward : Chunk<T, KIND> {
    using Base = Chunk<T, KIND>;
    using Base::features_, Base::width_, Base::shape_, Base::rows_, Base::scores_, Base::sums_;

public:
    Forward(const Shape& shape, const Rows<T>& rows) : Base(shape, rows, 0) {}

    // Rows [begin, end), one document.
    void operator()(int64_t begin, int64_t end) {
        this->forget();
        if (shape_.causal) return causal(begin, end);
        for (int64_t row = begin, count; row < end; row += count) {
            count = this->load_keys(row, end, false, false);
            this->add_keys(count, false);
        }
        for (int64_t row = begin, count; row < end; row += count) {
            count = std::min(CHUNK, end - row);
            this->load_queries(row, count, nullptr);
            read(row, count, false);
        }
    }

private:
    void causal(int64_t begin, int64_t end) {
        for (int64_t row = begin, count; row < end; row += count) {
            count = this->load_keys(row, end, true, false);
            this->load_queries(row, count, nullptr);
            this->score(count);
            read(row, count, true);
            this->add_keys(count, false);
        }
    }

    // The results of a chunk, from the state and from the pairs `inside`.
    void read(int64_t row, int64_t count, bool inside) {
        int64_t rows = padded(count, ROWS);
        std::fill(sums_, sums_ + rows * width_, T(0));
        add_product(rows, width_, features_, this->query_, features_, 1, this->state_, width_, sums_, width_);
        for (int64_t i = 0; inside && i < count; i += ROWS)
            add_product(ROWS, width_, std::min(i + ROWS, count), scores_ + i * CHUNK, CHUNK, 1, this->value_, width_,
                        sums_ + i * width_, width_);
        for (int64_t i = 0; i < count; ++i) {
            T inverse = this->inverse_weight(i, inside);
            T* target = rows_.output + (row + i) * shape_.width;
            for (int64_t c = 0; c < shape_.width; ++c) target[c] = sums_[i * width_ + c] * inverse;
        }
    }
};

// With G the gradient of the result, o the result and n the sum of a row's weights, the weight of query i and key j has
// the gradient (G_i . v_j - G_i . o_i) / n_i. gradient_ holds G / n, offset_ holds G . o / n.
template <class T, Kind KIND>
class Backward : Chunk<T, KIND> {
    using Base = Chunk<T, KIND>;
    using Base::LOGS, Base::scale_of_rows_;
    using Base::features_, Base::width_, Base::shape_, Base::rows_, Base::memory_;
    using Base::query_, Base::key_, Base::value_, Base::sums_, Base::scores_, Base::total_, Base::peak_, Base::before_;

public:
    Backward(const Shape& shape, const Rows<T>& rows)
        : Base(shape, rows, more(whole<T>(shape.features), whole<T>(shape.width))),
          value_columns_(memory_.take(CHUNK * width_)),
          gradient_(memory_.take(CHUNK * width_)),
          of_scores_(memory_.take(CHUNK * CHUNK)),
          mixed_(memory_.take(CHUNK * features_)),
          later_(memory_.take(features_ * width_)),
          later_columns_(memory_.take(features_ * width_)),
          later_total_(memory_.take(features_)),
          inverse_(shape.positions),
          offset_(shape.positions),
          scale_(LOGS ? shape.positions : 0) {}

    // Rows [begin, end), one document.
    void operator()(int64_t begin, int64_t end) {
        this->forget();
        std::fill(later_, later_ + features_ * width_, T(0));
        std::fill(later_total_, later_total_ + features_, T(0));
        shape_.causal ? causal(begin, end) : bidirectional(begin, end);
    }

private:
    static int64_t more(int64_t features, int64_t width) {
        return CHUNK * (features + 2 * width + CHUNK) + features * (2 * width + 1);
    }

    void bidirectional(int64_t begin, int64_t end) {
        for (int64_t row = begin, count; row < end; row += count) {
            count = this->load_keys(row, end, false, true);
            this->add_keys(count, true);
        }
        for (int64_t row = begin, count; row < end; row += count) {
            count = std::min(CHUNK, end - row);
            this->load_queries(row, count, nullptr);
            invert_weights(row, count, false);
            load_gradient(row, count);
            finish_queries(row, count, false);
            add_queries(row, count);
        }
        transpose(later_, features_, width_, width_, later_columns_, features_);
        for (int64_t row = begin, count; row < end; row += count) {
            count = std::min(CHUNK, end - row);
            this->load_keys_again(row, count);
            finish_keys(row, count, false);
        }
    }

    // Forward through the chunks for the gradients of queries and for pairs inside a chunk, then backward for what keys
    // get from later chunks.
    void causal(int64_t begin, int64_t end) {
        chunks_.clear();
        peaks_.clear();
        for (int64_t row = begin, count; row < end; row += count) {
            count = this->load_keys(row, end, true, true);
            chunks_.push_back(row);
            if (LOGS) peaks_.insert(peaks_.end(), peak_, peak_ + features_);
            this->load_queries(row, count, scale_.data());
            this->score(count);
            invert_weights(row, count, true);
            load_gradient(row, count);
            finish_queries(row, count, true);
            start_keys(row, count);
            this->add_keys(count, true);
        }
        for (int64_t number = static_cast<int64_t>(chunks_.size()) - 1; number >= 0; --number) {
            int64_t row = chunks_[number], count = end - row;
            end = row;
            if (LOGS) lower_peak(peaks_.data() + number * features_);
            transpose(later_, features_, width_, width_, later_columns_, features_);
            this->load_keys_again(row, count);
            finish_keys(row, count, true);
            this->load_queries_again(row, count, scale_.data());
            load_gradient(row, count);
            add_queries(row, count);
        }
    }

    // Going back, peaks fall, and so does what later queries weigh.
    void lower_peak(const T* peak) {
        for (int64_t m = 0; m < features_; m += LANES<T>) {
            at(before_ + m) = exponential(at(peak + m) - at(peak_ + m));
            at(peak_ + m) = at(peak + m);
        }
        this->scale_features(later_total_, 1);
        this->scale_rows(later_);
    }

    void invert_weights(int64_t row, int64_t count, bool inside) {
        for (int64_t i = 0; i < count; ++i) inverse_[row + i] = this->inverse_weight(i, inside);
    }

    void load_gradient(int64_t row, int64_t count) {
        load(rows_.gradient, row, count, shape_.width, width_, gradient_, T(0));
        for (int64_t i = 0; i < count; ++i)
            for (int64_t c = 0; c < width_; c += LANES<T>) at(gradient_ + i * width_ + c) *= inverse_[row + i];
    }

    void add_queries(int64_t row, int64_t count) {
        add_product(features_, width_, count, query_, 1, features_, gradient_, width_, later_, width_);
        for (int64_t i = 0; i < count; ++i)
            for (int64_t m = 0; m < features_; m += LANES<T>)
                at(later_total_ + m) -= offset_[row + i] * at(query_ + i * features_ + m);
    }

    // of_scores[i, j] = G_i . v_j / n_i; zero for j > i.
    void score_gradients(int64_t count) {
        transpose(value_, padded(count, LANES<T>), width_, width_, value_columns_, CHUNK);
        std::fill(of_scores_, of_scores_ + CHUNK * CHUNK, T(0));
        add_product(padded(count, ROWS), padded(count, LANES<T>), width_, gradient_, width_, 1, value_columns_, CHUNK,
                    of_scores_, CHUNK);
        this->cut_triangle(of_scores_, count);
    }

    // The offsets and the gradients of queries, from the state and from the pairs `inside`.
    void finish_queries(int64_t row, int64_t count, bool inside) {
        if (inside) score_gradients(count);
        int64_t rows = padded(count, ROWS);
        std::fill(mixed_, mixed_ + rows * features_, T(0));
        add_product(rows, features_, width_, gradient_, width_, 1, this->state_, features_, mixed_, features_);
        for (int64_t i = 0; i < count; ++i) {
            T *mixed = mixed_ + i * features_, *of_scores = of_scores_ + i * CHUNK;
            T sum = dot(query_ + i * features_, mixed, features_);
            if (inside) sum += dot(scores_ + i * CHUNK, of_scores, CHUNK);
            T offset = sum * inverse_[row + i];
            for (int64_t j = 0; inside && j <= i; ++j) of_scores[j] -= offset;
            for (int64_t m = 0; m < features_; m += LANES<T>) at(mixed + m) -= offset * at(total_ + m);
            offset_[row + i] = offset;
        }
        for (int64_t i = 0; inside && i < count; i += ROWS)
            add_product(ROWS, features_, std::min(i + ROWS, count), of_scores_ + i * CHUNK, CHUNK, 1, key_, features_,
                        mixed_ + i * features_, features_);
        to_rows(query_, rows_.query, row, count);
        store(mixed_, row, count, shape_.features, features_, rows_.of_query);
    }

    // What keys and values get from the queries of their own chunk.
    void start_keys(int64_t row, int64_t count) {
        std::fill(mixed_, mixed_ + padded(count, ROWS) * features_, T(0));
        std::fill(sums_, sums_ + padded(count, ROWS) * width_, T(0));
        for (int64_t j = 0; j < count; j += ROWS) {  // queries from row j on; above the diagonal stand zeros
            int64_t place = j * CHUNK + j;
            add_product(ROWS, features_, count - j, of_scores_ + place, 1, CHUNK, query_ + j * features_, features_,
                        mixed_ + j * features_, features_);
            add_product(ROWS, width_, count - j, scores_ + place, 1, CHUNK, gradient_ + j * width_, width_,
                        sums_ + j * width_, width_);
        }
        to_rows(key_, rows_.key, row, count);
        store(mixed_, row, count, shape_.features, features_, rows_.of_key);
        store(sums_, row, count, shape_.width, width_, rows_.of_value);
    }

    // What they get from the queries that later_ holds.
    void finish_keys(int64_t row, int64_t count, bool started) {
        int64_t rows = padded(count, ROWS);
        for (int64_t i = 0; i < rows; ++i) std::copy(later_total_, later_total_ + features_, mixed_ + i * features_);
        std::fill(sums_, sums_ + rows * width_, T(0));
        add_product(rows, features_, width_, value_, width_, 1, later_columns_, features_, mixed_, features_);
        add_product(rows, width_, features_, key_, features_, 1, later_, width_, sums_, width_);
        to_rows(key_, rows_.key, row, count);
        auto* put = started ? add<T> : store<T>;
        put(mixed_, row, count, shape_.features, features_, rows_.of_key);
        put(sums_, row, count, shape_.width, width_, rows_.of_value);
    }

    // Gradients of features to those of what the rows from `row` on hold.
    void to_rows(const T* features, const T* rows, int64_t row, int64_t count) {
        if (KIND == Kind::Relu) {  // beside the shift a feature does not tell small numbers from none
            for (int64_t i = 0; i < count; ++i)
                for (int64_t m = 0; m < shape_.features; ++m)
                    mixed_[i * features_ + m] *= rows[(row + i) * shape_.features + m] > 0 ? scale_of_rows_ : T(0);
            return;
        }
        const Vector<T> zero = {}, one = zero + 1;
        for (int64_t i = 0; KIND != Kind::Given && i < count * features_; i += LANES<T>) {
            Vector<T> x = at(features + i);
            if (KIND == Kind::Elu) x = x < 1 ? x : one;
            at(mixed_ + i) *= x;
        }
    }

    T *value_columns_, *gradient_;       // rows of a chunk, channels wide; the first transposed
    T *of_scores_, *mixed_;              // gradients of scores, and of queries or keys
    T *later_, *later_columns_;          // sums over later queries: with gradients, features by channels; transposed
    T* later_total_;                     // and with offsets, negative
    std::vector<T> inverse_, offset_, scale_;  // of each row: one over its weight, its offset, its scale
    std::vector<int64_t> chunks_;              // first row of each chunk of the document
    std::vector<T> peaks_;                     // and its peaks
};

// A pass over every document of every head; padding is set to zero.
template <class Pass, class T>
void run(const Shape& shape, const Rows<T>& all, const int64_t* lengths, const int64_t* document_ids, int64_t threads) {
    parallel_for(static_cast<int>(threads), shape.batch * shape.heads, [&](int64_t task) {
        int64_t sample = task / shape.heads, first = task * shape.positions;
        int64_t features = first * shape.features, channels = first * shape.width;
        auto from = [](auto* rows, int64_t place) { return rows ? rows + place : nullptr; };
        Rows<T> rows{from(all.query, features),    from(all.key, features),      from(all.value, channels),
                     from(all.gradient, channels), from(all.output, channels),   from(all.of_query, features),
                     from(all.of_key, features),   from(all.of_value, channels)};
        int64_t length = lengths ? std::max<int64_t>(0, std::min(shape.positions, lengths[sample])) : shape.positions;
        const int64_t* ids = document_ids ? document_ids + sample * shape.positions : nullptr;
        Pass pass(shape, rows);
        for (int64_t begin = 0, end; begin < length; begin = end) {
            end = ids ? begin + 1 : length;
            while (end < length && ids[end] == ids[begin]) ++end;
            pass(begin, end);
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
