// Tables of one sample and head for Converter's product of Givens rotations: cosines and sines of what its stages do.
//
// Each Hessenberg factor H is diag(exp(i left)) O diag(exp(i right)) with a product O of real rotations, as in
// phases.py. Angles are added up and reduced in double: they may be large, and sum up over the sequence.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

// Angles of one sample and head, or their gradients: (L, N - 1, 3) each for H_u and H_l, and phases (N).
struct Angles {
    double *upper, *lower, *phase;
};

// What the tables of one sample and head are made for, and where each one is.
struct Stages {
    int64_t orders, positions, count;   // L, N, and how many of the N rows are valid
    const int64_t* permutation;         // (L, N), or null

    int64_t tables() const { return 4 * orders + 1; }
    int64_t rotation(int64_t number, bool lower) const { return 2 * number + lower; }
    int64_t phase(int64_t number, bool lower) const { return 2 * (orders + number) + lower; }
    int64_t eigenvalues() const { return 4 * orders; }
    const int64_t* rows(int64_t number) const { return permutation ? permutation + number * positions : nullptr; }
};

// Cosine and sine of angles up to 1e15, to the last bits of a double.
inline void cosines_and_sines(const double* angles, int64_t count, double* cosines, double* sines) {
    constexpr double QUARTER = 1.57079632679489661923, REST = 6.12323399573676603587e-17;   // sum up to pi / 2
    for (int64_t i = 0; i < count; ++i) {
        double turns = __builtin_floor(angles[i] * (1 / QUARTER) + 0.5);
        double x = __builtin_fma(-turns, REST, __builtin_fma(-turns, QUARTER, angles[i]));   // in [-pi / 4, pi / 4]
        double square = x * x, cosine = 1, sine = 1;
        for (int n = 16; n > 0; n -= 2) {   // Taylor's series
            sine = 1 - sine * (square * (1.0 / (n * (n + 1))));
            cosine = 1 - cosine * (square * (1.0 / (n * (n - 1))));
        }
        sine *= x;
        double quadrant = turns - 4 * __builtin_floor(turns * 0.25);
        bool swapped = quadrant == 1 || quadrant == 3;
        double first = swapped ? sine : cosine, second = swapped ? cosine : sine;
        cosines[i] = quadrant == 1 || quadrant == 2 ? -first : first;
        sines[i] = quadrant >= 2 ? -second : second;
    }
}

// The tables' angles, (tables, N): those of O and O' for the orders 1 .. L, the phases before O and O'^T for them, and
// those of the eigenvalues.
inline void table_angles(const Stages& stages, const Angles& angles, double* tables) {
    int64_t positions = stages.positions, last = stages.count - 1;
    std::fill(tables, tables + stages.tables() * positions, 0.0);
    std::copy_n(angles.phase, stages.count, tables + stages.eigenvalues() * positions);
    std::vector<double> right(positions);
    for (int64_t number = 0; number < stages.orders; ++number) {
        double* between = tables + stages.phase(number, true) * positions;
        for (bool lower : {false, true}) {
            // H_l^-1 is what H_u is for the angles -A, B, -C.
            const double* angle = (lower ? angles.lower : angles.upper) + number * (positions - 1) * 3;
            double* rotation = tables + stages.rotation(number, lower) * positions;
            double sign = lower ? -1 : 1, collected = 0;
            for (int64_t k = last - 1; k >= 0; --k) {
                double a = sign * angle[3 * k];
                between[k + 1] += sign * (a + collected);
                collected += angle[3 * k + 1];
                right[k] = -a - collected;
                rotation[k] = sign * angle[3 * k + 2];
            }
            between[0] += sign * collected;
            right[last] = 0;
            // What order l + 1 leaves over meets the permutation of order l; what order 1 leaves over cancels.
            if (lower && number == 0) continue;
            const int64_t* rows = lower ? stages.rows(number - 1) : nullptr;
            double* before = tables + stages.phase(number - lower, false) * positions;
            for (int64_t k = 0; k <= last; ++k) before[k] += sign * right[rows ? rows[k] : k];
        }
    }
}

// Gradients of the angles, zero before, from those of the tables' angles.
template <class T>
void angle_gradients(const Stages& stages, const T* tables, const Angles& gradients) {
    int64_t positions = stages.positions, last = stages.count - 1;
    std::copy_n(tables + stages.eigenvalues() * positions, stages.count, gradients.phase);
    std::vector<double> right(positions);
    for (int64_t number = 0; number < stages.orders; ++number) {
        const T* between = tables + stages.phase(number, true) * positions;
        for (bool lower : {false, true}) {
            double* gradient = (lower ? gradients.lower : gradients.upper) + number * (positions - 1) * 3;
            const T* rotation = tables + stages.rotation(number, lower) * positions;
            double sign = lower ? -1 : 1, collected = 0;
            std::fill(right.begin(), right.end(), 0.0);
            if (!lower || number > 0) {
                const int64_t* rows = lower ? stages.rows(number - 1) : nullptr;
                const T* before = tables + stages.phase(number - lower, false) * positions;
                for (int64_t k = 0; k <= last; ++k) right[rows ? rows[k] : k] = sign * before[k];
            }
            for (int64_t k = 0; k < last; ++k) {
                collected += sign * between[k] - right[k];
                gradient[3 * k] = between[k + 1] - sign * right[k];
                gradient[3 * k + 1] = collected;
                gradient[3 * k + 2] = sign * rotation[k];
            }
        }
    }
}
