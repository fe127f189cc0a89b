// What the matrix units do, a warp at a time, and their number formats. Products are exact; float sums are rounded after
// every addition, in the order of K (the hardware's own order and rounding are not documented).
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

inline void do_bits(void* const* operands, unsigned) {
    unsigned a[16][4], b[8][4];
    for (int lane = 0; lane < 32; lane++) {
        const BitProduct& mine = *static_cast<BitProduct*>(operands[lane]);
        a[lane / 4][lane % 4] = mine.a0;
        a[lane / 4 + 8][lane % 4] = mine.a1;
        b[lane / 4][lane % 4] = mine.b;
    }
    for (int lane = 0; lane < 32; lane++) {
        BitProduct& mine = *static_cast<BitProduct*>(operands[lane]);
        for (int i = 0; i < 4; i++)
            for (int word = 0; word < 4; word++)
                mine.c[i] += __builtin_popcount(a[lane / 4 + i / 2 * 8][word] & b[lane % 4 * 2 + i % 2][word]);
    }
}

template <class C>
struct Product {
    C (&c)[4];
    const unsigned (&a)[4];
    const unsigned (&b)[2];
};

// Both factors row by row: a word of a fragment is four bytes or two halves of one row of A or column of B, and the
// registers of a lane go first down 8 rows (A only), then right by half of K.
template <class C>
void gather(void* const* operands, unsigned (&a)[16][8], unsigned (&b)[8][8]) {
    for (int lane = 0; lane < 32; lane++) {
        const Product<C>& mine = *static_cast<Product<C>*>(operands[lane]);
        for (int i = 0; i < 4; i++) a[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = mine.a[i];
        for (int i = 0; i < 2; i++) b[lane / 4][lane % 4 + i * 4] = mine.b[i];
    }
}

inline void do_bytes(void* const* operands, unsigned) {
    unsigned words_a[16][8], words_b[8][8];
    gather<int>(operands, words_a, words_b);
    short a[16][32], b[8][32];
    const signed char *bytes_a = reinterpret_cast<signed char*>(words_a), *bytes_b = reinterpret_cast<signed char*>(words_b);
    for (int i = 0; i < 16 * 32; i++) a[0][i] = bytes_a[i];
    for (int i = 0; i < 8 * 32; i++) b[0][i] = bytes_b[i];
    for (int lane = 0; lane < 32; lane++) {
        Product<int>& mine = *static_cast<Product<int>*>(operands[lane]);
        for (int i = 0; i < 4; i++) {
            const short *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
            int sum = 0;
            for (int k = 0; k < 32; k++) sum += row[k] * column[k];
            mine.c[i] = int(unsigned(mine.c[i]) + unsigned(sum));
        }
    }
}

template <float (&convert)(unsigned short)>
void do_halves(void* const* operands, unsigned) {
    unsigned words_a[16][8], words_b[8][8];
    gather<float>(operands, words_a, words_b);
    float a[16][16], b[16][8], sums[16][8];
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) a[i][k] = convert(words_a[i][k / 2] >> (k % 2 * 16) & 0xffff);
    for (int j = 0; j < 8; j++)
        for (int k = 0; k < 16; k++) b[k][j] = convert(words_b[j][k / 2] >> (k % 2 * 16) & 0xffff);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = static_cast<Product<float>*>(operands[lane])->c[i];
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++) sums[i][j] += a[i][k] * b[k][j];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            static_cast<Product<float>*>(operands[lane])->c[i] = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

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
    emulator_meet(do_load<COUNT, TRANSPOSED>, 0xffffffffu, &operand, site);
}

}  // namespace emulator
