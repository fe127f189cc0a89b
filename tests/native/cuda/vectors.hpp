// CUDA's vector types, with CUDA's alignment.
#pragma once

#define EMULATOR_VECTORS(T, NAME, TWO, FOUR)                                                          \
    struct NAME##1 {                                                                                  \
        T x;                                                                                          \
    };                                                                                                \
    struct alignas(TWO) NAME##2 {                                                                     \
        T x, y;                                                                                       \
    };                                                                                                \
    struct NAME##3 {                                                                                  \
        T x, y, z;                                                                                    \
    };                                                                                                \
    struct alignas(FOUR) NAME##4 {                                                                    \
        T x, y, z, w;                                                                                 \
    };                                                                                                \
    inline NAME##1 make_##NAME##1(T x) { return {x}; }                                                \
    inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                                        \
    inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                                \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATOR_VECTORS(signed char, char, 2, 4)
EMULATOR_VECTORS(unsigned char, uchar, 2, 4)
EMULATOR_VECTORS(short, short, 4, 8)
EMULATOR_VECTORS(unsigned short, ushort, 4, 8)
EMULATOR_VECTORS(int, int, 8, 16)
EMULATOR_VECTORS(float, float, 8, 16)
EMULATOR_VECTORS(long long, longlong, 16, 16)
EMULATOR_VECTORS(unsigned long long, ulonglong, 16, 16)
EMULATOR_VECTORS(double, double, 16, 16)
#undef EMULATOR_VECTORS

// uint3 is in runtime.hpp.
struct uint1 {
    unsigned x;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline uint1 make_uint1(unsigned x) { return {x}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
