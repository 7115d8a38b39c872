// Numbers of 16 bits with the exponents of fp32, read and written where the CPU and the compiler may not know them.

#pragma once

#include <cstdint>
#include <cstring>

struct BFloat16 {
    uint16_t bits;
};

// The type in which numbers of a type are computed.
template <class T>
struct Widened {
    typedef T Type;
};
template <>
struct Widened<BFloat16> {
    typedef float Type;
};
template <class T>
using Wide = typename Widened<T>::Type;

inline float wide(float number) { return number; }
inline double wide(double number) { return number; }
inline float wide(BFloat16 number) {
    uint32_t bits = static_cast<uint32_t>(number.bits) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
}

inline void store(float number, float& place) { place = number; }
inline void store(double number, double& place) { place = number; }
// The nearest number, of two equally near ones the even one.
inline void store(float number, BFloat16& place) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    place.bits = static_cast<uint16_t>(number == number ? nearest : 0x7fc0);  // a payload of NaN might be carried on
}
