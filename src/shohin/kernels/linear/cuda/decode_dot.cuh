// Products of one unit, 16 rows of weights x 512 columns, for the decode kernel. What comes out is a float for each row and
// group of 128, number 4 r + g of the unit for row r and group g of the chunk.
#pragma once

#include "linear/cuda/decode_input.cuh"
#include "ptx.cuh"

constexpr int VECTORS = 2 * PLANES;
// The bits of high and low plane, as they count.
constexpr unsigned TWICE = PLANES == 1 ? 2 : 1;

struct Unit {
    // As packing.py has them: pairs of groups of the high plane, then of the low one.
    uint4 bits[VECTORS];
    // float16 scales of group lane % 4 for rows lane / 4 and lane / 4 + 8.
    unsigned scales;
};

// (float) sum * (d * s): word has the sum plus BIAS in its low half and the weights' scale as float16 in its high one.
__device__ __forceinline__ float product_of(unsigned word, float scale) {
    // 2^23 + (sum + BIAS) as a float's bits.
    float sum = __fadd_rn(__uint_as_float(__byte_perm(word, 0x4b00u, 0x5410)), -(8388608.0f + (float)BIAS));
    return __fmul_rn(sum, __fmul_rn(half_to_float((unsigned short)(word >> 16)), scale));
}

__device__ __forceinline__ unsigned word_of(const uint4& pair, int group, int half) {
    return group % 2 ? (half ? pair.w : pair.z) : (half ? pair.y : pair.x);
}

#if BINARY
// What a lane multiplies bit counts by. Columns 2 q and 2 q + 1, q = lane % 4, are planes 4 q0 + 2 q1 and the next; the
// last plane is the sign. own, other: this lane's and its partner's weight in either exchange.
struct Planes {
    int second, own_two, other_two, own_one, other_one;
};

__device__ __forceinline__ Planes planes_of() {
    int lane = threadIdx.x % 32;
    Planes made = {lane % 4 == 3 ? -2 : 2, lane & 2 ? 4 : 1, lane & 2 ? 1 : 4, lane & 1 ? 16 : 1, lane & 1 ? 1 : 16};
    keep_in_register(made.second), keep_in_register(made.own_two), keep_in_register(made.other_two);
    keep_in_register(made.own_one), keep_in_register(made.other_one);
    return made;
}

// Sums for rows lane / 4 (low half) and lane / 4 + 8 (high half) of group lane % 4.
__device__ __forceinline__ unsigned binary_sums(const Unit& unit, const Columns& columns, const Planes& planes) {
    int both[4];
#pragma unroll
    for (int g = 0; g < 4; g++) {
        int c[4];
        mma_b1_first(c, word_of(unit.bits[g / 2], g, 0), word_of(unit.bits[g / 2], g, 1), columns.words[g]);
        if (PLANES == 2) {
            const uint4& low = unit.bits[VECTORS / 2 + g / 2];
            int d[4];
            mma_b1_first(d, word_of(low, g, 0), word_of(low, g, 1), columns.words[g]);
#pragma unroll
            for (int i = 0; i < 4; i++) c[i] = 2 * c[i] + d[i];
        }
        // Two rows in one word, as a plain integer: row l / 4 plus 65,536 times row l / 4 + 8.
        both[g] = (c[0] + planes.second * c[1]) + (c[2] + planes.second * c[3]) * 65536;
    }
    // Each lane keeps one of the four groups and gives the others away.
    bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
    int keep0 = (upper ? both[2] : both[0]) * planes.own_two, keep1 = (upper ? both[3] : both[1]) * planes.own_two;
    keep0 += __shfl_xor_sync(WHOLE_WARP, upper ? both[0] : both[2], 2) * planes.other_two;
    keep1 += __shfl_xor_sync(WHOLE_WARP, upper ? both[1] : both[3], 2) * planes.other_two;
    int keep = (odd ? keep1 : keep0) * planes.own_one;
    keep += __shfl_xor_sync(WHOLE_WARP, odd ? keep0 : keep1, 1) * planes.other_one;
    return TWICE * (unsigned)keep + columns.offset;
}

__device__ __forceinline__ void binary_unit(const Unit& unit, const Columns& columns, const Planes& planes,
                                            float* products) {
    int lane = threadIdx.x % 32;
    unsigned sums = binary_sums(unit, columns, planes);
    products[lane] = product_of(__byte_perm(sums, unit.scales, 0x5410), columns.scale);
    products[lane + 32] = product_of(__byte_perm(sums, unit.scales, 0x7632), columns.scale);
}
#else
// Codes i of the bytes b: 32 q + i + 8 b.
__device__ __forceinline__ unsigned unpacked(unsigned high, unsigned low, int i) {
    unsigned bits = high >> i & 0x01010101u;
    return PLANES == 1 ? bits : 2 * bits | (low >> i & 0x01010101u);
}

// All rows of the input at once: column m of the product is row m. products: those of row 0, ``stride`` before those of
// row 1.
__device__ __forceinline__ void int8_unit(const Unit& unit, const Staged& rows, float* products, int stride) {
    int lane = threadIdx.x % 32, row = lane / 4, q = lane % 4;
    float made[4][4];
#pragma unroll
    for (int g = 0; g < 4; g++) {
        uint4 b[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
        if (row < CAPACITY) {
            const uint4* codes = (const uint4*)&rows.codes[row < CAPACITY ? row : 0][g * 32 + q * 8];
            b[0] = codes[0], b[1] = codes[1];
        }
        const unsigned columns[8] = {b[0].x, b[0].y, b[0].z, b[0].w, b[1].x, b[1].y, b[1].z, b[1].w};
        unsigned high[2] = {word_of(unit.bits[g / 2], g, 0), word_of(unit.bits[g / 2], g, 1)}, low[2] = {0, 0};
        if (PLANES == 2)
#pragma unroll
            for (int half = 0; half < 2; half++) low[half] = word_of(unit.bits[VECTORS / 2 + g / 2], g, half);
        int c[4] = {0, 0, 0, 0};
#pragma unroll
        for (int s = 0; s < 4; s++) {
            unsigned a[4], column[2] = {columns[2 * s], columns[2 * s + 1]};
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = unpacked(high[i % 2], low[i % 2], 2 * s + i / 2);
            mma_s8(c, a, column);
        }
        unsigned scales = __shfl_sync(WHOLE_WARP, unit.scales, lane / 4 * 4 + g);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int m = 2 * q + i % 2;
            if (m >= CAPACITY) m = 0;
            unsigned word = TWICE * (unsigned)c[i] + rows.offsets[m][g];
            made[i][g] = product_of(__byte_perm(word, scales, i < 2 ? 0x5410 : 0x7610), rows.scales[m][g]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int m = 2 * q + i % 2;
        if (m < CAPACITY)
            *(float4*)(products + m * stride + (row + i / 2 * 8) * 4) =
                make_float4(made[i][0], made[i][1], made[i][2], made[i][3]);
    }
}
#endif
