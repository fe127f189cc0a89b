// What the matrix units do, a warp at a time, and their number formats.
#pragma once

#include <string.h>

#include "intrinsics.hpp"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace emulator {

inline float from_bfloat(unsigned short bits) { return bits_of<float>(unsigned(bits) << 16); }

inline unsigned short to_bfloat(float value) {
    if (value != value) return 0x7fff;
    unsigned bits = bits_of<unsigned>(value);
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_half(unsigned short bits) {
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = exponent == 0    ? ldexpf(float(fraction), -24)
                 : exponent == 31 ? (fraction ? NAN : INFINITY)
                                  : ldexpf(float(fraction + 1024), int(exponent) - 25);
    return bits & 0x8000 ? -size : size;
#endif
}

inline unsigned short to_half(float value) {
    if (value != value) return 0x7fff;
#if defined(__F16C__)
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
    unsigned sign = bits_of<unsigned>(value) >> 16 & 0x8000;
    float size = fabsf(value);
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 0x1p-14f) return sign | unsigned(rintf(size * 0x1p24f));
    unsigned bits = bits_of<unsigned>(size);
    return sign | ((bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13);
#endif
}

struct BitProduct {
    int (&c)[4];
    unsigned a0, a1, b;
};

template <class C>
struct Product {
    C (&c)[4];
    const unsigned (&a)[4];
    const unsigned (&b)[2];
};

// As Perform: 1-bit, int8, float16 and bfloat16 products of all lanes' operands.
#pragma GCC visibility push(default)
extern "C" {
void emulator_do_bits(void* const* operands, unsigned);
void emulator_do_bytes(void* const* operands, unsigned);
void emulator_do_halves(void* const* operands, unsigned);
void emulator_do_bfloats(void* const* operands, unsigned);
}
#pragma GCC visibility pop

struct MatrixLoad {
    unsigned* registers;
    const void* row;
};

template <int COUNT, bool TRANSPOSED>
void do_load(void* const* operands, unsigned) {
    unsigned short rows[COUNT * 8][8];
    for (int i = 0; i < COUNT * 8; i++) memcpy(rows[i], static_cast<MatrixLoad*>(operands[i])->row, 16);
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < COUNT; m++) {
            unsigned short values[2];
            for (int i = 0; i < 2; i++)
                values[i] = TRANSPOSED ? rows[m * 8 + lane % 4 * 2 + i][lane / 4] : rows[m * 8 + lane / 4][lane % 4 * 2 + i];
            static_cast<MatrixLoad*>(operands[lane])->registers[m] = values[0] | unsigned(values[1]) << 16;
        }
}

template <int COUNT, bool TRANSPOSED>
void load_matrix(unsigned (&registers)[COUNT], const void* row, const Site& site) {
    if (emulator_now->lane < COUNT * 8) {
        if (!emulator_is_shared(row)) emulator_fail(site, "of an address that is not in shared memory");
        if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulator_fail(site, "of an address that is no multiple of 16");
    }
    MatrixLoad operand = {registers, row};
    emulator_meet_all(do_load<COUNT, TRANSPOSED>, &operand, site);
}

}  // namespace emulator
