// The int8 quantiser of every linear kernel: one arithmetic, so that a row has the same codes, scales and norm factor
// whichever kernel multiplies it. 16 consecutive lanes hold a group of 128 values, 8 each. linear/reference.py has the
// plain version.
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

// Over the 16 lanes that share a group, for COUNT groups whose exchanges run beside each other. As integers the bits of
// |x| order like numbers, and NaN above everything.
template <int COUNT, bool SQUARES = true>
__device__ __forceinline__ void group_statistics(GroupStatistics (&s)[COUNT], const float (&x)[COUNT][8],
                                                 const float (&v)[COUNT][8]) {
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        s[n] = {0, 0.0f};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            unsigned size = __float_as_uint(v[n][i]) & 0x7fffffffu;
            s[n].peak = s[n].peak > size ? s[n].peak : size;
            if (SQUARES) s[n].squares = fmaf(x[n][i], x[n][i], s[n].squares);
        }
    }
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            unsigned other = __shfl_xor_sync(WHOLE_WARP, s[n].peak, step);
            s[n].peak = s[n].peak > other ? s[n].peak : other;
            if (SQUARES) s[n].squares = __fadd_rn(s[n].squares, __shfl_xor_sync(WHOLE_WARP, s[n].squares, step));
        }
    }
}

__device__ __forceinline__ GroupStatistics group_statistics(const float (&x)[8], const float (&v)[8]) {
    GroupStatistics s[1];
    group_statistics<1>(s, reinterpret_cast<const float(&)[1][8]>(x), reinterpret_cast<const float(&)[1][8]>(v));
    return s[0];
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

__device__ __forceinline__ float four_squares(const float (&x)[4]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) sum = fmaf(x[i], x[i], sum);
    return sum;
}

// Sums of the 128 codes of COUNT groups, in every one of a group's 16 lanes.
template <int COUNT>
__device__ __forceinline__ void group_sums(int (&sums)[COUNT], const uint2 (&codes)[COUNT]) {
#pragma unroll
    for (int n = 0; n < COUNT; n++)
        sums[n] = __dp4a((int)codes[n].x, 0x01010101, __dp4a((int)codes[n].y, 0x01010101, 0));
#pragma unroll
    for (int step = 1; step < 16; step *= 2)
#pragma unroll
        for (int n = 0; n < COUNT; n++) sums[n] += __shfl_xor_sync(WHOLE_WARP, sums[n], step);
}

__device__ __forceinline__ int group_sum(uint2 codes) {
    const uint2 one[1] = {codes};
    int sum[1];
    group_sums<1>(sum, one);
    return sum[0];
}

// What the codes are multiplied by: peak / 127; 0 for a silent group, NaN where a value was not finite. RMSNorm's factor
// comes last, over the sum of all groups.
__device__ __forceinline__ float group_scale(unsigned peak) {
    float a = __uint_as_float(peak);
    if (peak >= INFINITE) return __uint_as_float(0x7fffffffu);
    return a >= SILENT ? __fdiv_rn(a, 127.0f) : 0.0f;
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
