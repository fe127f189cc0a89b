// The int8 quantiser of every linear kernel: one arithmetic, so that a row has the same codes, scales and norm factor
// whichever kernel multiplies it. linear/reference.py has the plain version.
#pragma once

#include "ptx.cuh"

constexpr unsigned WHOLE_WARP = 0xffffffffu;
constexpr unsigned INFINITE = 0x7f800000u;
// Below this a group counts as zero: 127 / a would overflow.
constexpr float SILENT = 1.5e-36f;

// What a group of 128 has in common. peak: max |x w|, or NaN's or infinity's bits; squares: sum of x^2 for RMSNorm.
struct GroupStatistics {
    unsigned peak;
    float squares;
};

__device__ __forceinline__ float four_squares(const float (&x)[4]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) sum = fmaf(x[i], x[i], sum);
    return sum;
}

// Over the 16 lanes that share a group, of 8 values each. As integers the bits of |x| order like numbers, and NaN above
// everything. Squares are added four by four, and these by neighbours, pairs of neighbours and so on.
__device__ __forceinline__ GroupStatistics group_statistics(const float (&x)[8], const float (&v)[8]) {
    const float low[4] = {x[0], x[1], x[2], x[3]}, high[4] = {x[4], x[5], x[6], x[7]};
    GroupStatistics s = {0, __fadd_rn(four_squares(low), four_squares(high))};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        unsigned size = __float_as_uint(v[i]) & 0x7fffffffu;
        s.peak = s.peak > size ? s.peak : size;
    }
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
        unsigned other = __shfl_xor_sync(WHOLE_WARP, s.peak, step);
        s.peak = s.peak > other ? s.peak : other;
        s.squares = __fadd_rn(s.squares, __shfl_xor_sync(WHOLE_WARP, s.squares, step));
    }
    return s;
}

// 127 / peak, or 0 where a group has no codes: silent, or not finite.
__device__ __forceinline__ float group_inverse(unsigned peak) {
    float a = __uint_as_float(peak);
    return peak < INFINITE && a >= SILENT ? __fdiv_rn(127.0f, a) : 0.0f;
}

// Four codes round-half-even(v * inverse) as the bytes of a word, first code lowest.
__device__ __forceinline__ unsigned four_codes(const float (&v)[4], float inverse) {
    unsigned bits[4];
    // Adding 1.5 * 2^23 rounds to a whole number, half to even, and leaves it in the last byte. |v| * inverse exceeds 127
    // by less than a rounding, so nothing is cut off. Codes of a group that is not finite don't matter: its scale is NaN.
#pragma unroll
    for (int i = 0; i < 4; i++) bits[i] = __float_as_uint(__fadd_rn(__fmul_rn(v[i], inverse), 12582912.0f));
    return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
}

// Eight codes, first lowest.
__device__ __forceinline__ uint2 group_codes(const float (&v)[8], unsigned peak) {
    float inverse = group_inverse(peak);
    const float low[4] = {v[0], v[1], v[2], v[3]}, high[4] = {v[4], v[5], v[6], v[7]};
    return make_uint2(four_codes(low, inverse), four_codes(high, inverse));
}

// The bits of the largest of four |v|, or those of a NaN.
__device__ __forceinline__ unsigned peak_of(const float (&v)[4]) {
    float pair = max_or_nan(fabsf(v[0]), fabsf(v[1]));
    return __float_as_uint(max_or_nan(pair, max_or_nan(fabsf(v[2]), fabsf(v[3]))));
}

// The sum of a group's 128 codes, in every one of its 16 lanes.
__device__ __forceinline__ int group_sum(uint2 codes) {
    int sum = __dp4a((int)codes.x, 0x01010101, __dp4a((int)codes.y, 0x01010101, 0));
#pragma unroll
    for (int step = 1; step < 16; step *= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, step);
    return sum;
}

// What the codes are multiplied by: factor * peak / 127; 0 for a silent group, NaN where a value was not finite. Products in
// tiles leave RMSNorm's factor out of it, and multiply the sum of all groups instead.
__device__ __forceinline__ float group_scale(unsigned peak, float factor = 1.0f) {
    float a = __uint_as_float(peak);
    if (peak >= INFINITE) return __uint_as_float(0x7fffffffu);
    return a >= SILENT ? __fdiv_rn(__fmul_rn(factor, a), 127.0f) : 0.0f;
}

// 1 / sqrt(mean of squares + eps) from the sums of ``groups`` groups, in every lane of a warp: a lane adds its groups
// in order, the lanes meet in a tree.
__device__ __forceinline__ float norm_factor(const float* squares, int groups, float eps) {
    float sum = 0.0f;
    for (int g = threadIdx.x % 32; g < groups; g += 32) sum = __fadd_rn(sum, squares[g]);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(WHOLE_WARP, sum, step));
    float mean = __fdiv_rn(sum, (float)(groups * 128));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}
