// The input of the decode kernel: every block quantises all of it, into the form that its matrix units take.
#pragma once

#include "linear/cuda/quantise.cuh"

constexpr int GROUPS = K / 128;
constexpr int CHUNKS = (GROUPS + 3) / 4;
// Groups of 128 with those that fill up the last chunk of 512; these have codes 0 and scale 0.
constexpr int PADDED = 4 * CHUNKS;
// Groups that 16 lanes each quantise of a row.
constexpr int PASSES = (PADDED + THREADS / 16 - 1) / (THREADS / 16);
// Added to a sum of codes so that 16 bits hold it without a sign.
constexpr unsigned BIAS = 0x8000u;

// 1-bit matrix units: word w of bit plane p of the four groups of a chunk is at [chunk][4 p + w]. int8 ones: code
// 32 q + i + 8 b of a group is its byte 32 q + 4 i + b, and rows begin in different banks.
struct Input {
#if BINARY
    uint4 codes[CAPACITY][CHUNKS][32];
#else
    uint4 codes[CAPACITY][CHUNKS * 32 + 1];
#endif
    unsigned peaks[CAPACITY][PADDED];
    float squares[CAPACITY][PADDED];
    // BIAS in both halves less 65,537 times the group's sum of codes: what turns sums of bits into sums of weights.
    unsigned offsets[CAPACITY][PADDED];
    float4 scales[CAPACITY][CHUNKS];
};

__device__ __forceinline__ void load_eight(float (&x)[8], const float* source) {
    float4 low = ((const float4*)source)[0], high = ((const float4*)source)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// The 8 x 8 bits of two words, transposed: byte p of the result holds bit p of each of the eight codes.
__device__ __forceinline__ uint2 bit_planes(uint2 codes) {
    unsigned words[2] = {codes.x, codes.y};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned x = words[i], t;
        t = (x ^ (x >> 7)) & 0x00aa00aau, x ^= t ^ (t << 7);
        t = (x ^ (x >> 14)) & 0x0000ccccu, x ^= t ^ (t << 14);
        words[i] = x;
    }
    unsigned low = (words[0] & 0x0f0f0f0fu) | (words[1] << 4 & 0xf0f0f0f0u);
    unsigned high = (words[0] >> 4 & 0x0f0f0f0fu) | (words[1] & 0xf0f0f0f0u);
    return make_uint2(low, high);
}

// The eight codes that this thread, t of the group's 16, has of a group.
__device__ __forceinline__ void put_codes(Input& input, int m, int group, int t, uint2 codes) {
#if BINARY
    codes = bit_planes(codes);
    unsigned char* base = (unsigned char*)&input.codes[m][group / 4][t / 4] + 4 * (group % 4) + t % 4;
    constexpr int STEP = 64;
#else
    unsigned char* base = (unsigned char*)&input.codes[m][group * 8 + t / 4 * 2] + t % 4;
    constexpr int STEP = 4;
#endif
#pragma unroll
    for (int i = 0; i < 8; i++) base[i * STEP] = (unsigned char)((i < 4 ? codes.x : codes.y) >> (8 * (i % 4)));
}

// COUNT groups of row m from ``first`` on, THREADS / 16 apart; x are this thread's values, v those times the norm.
template <int COUNT>
__device__ __forceinline__ void quantise_groups(Input& input, int m, int first, const float (&x)[COUNT][8],
                                                const float (&v)[COUNT][8]) {
    int t = threadIdx.x % 16;
    GroupStatistics s[COUNT];
    group_statistics<COUNT, NORM != 0>(s, x, v);
    uint2 codes[COUNT];
    int sums[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) codes[i] = group_codes(v[i], s[i].peak);
    group_sums<COUNT>(sums, codes);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int group = first + i * (THREADS / 16);
        if (PADDED % (THREADS / 16) != 0 && group >= PADDED) break;
        put_codes(input, m, group, t, codes[i]);
        if (t != 0) continue;
        input.offsets[m][group] = BIAS * 0x10001u - (unsigned)sums[i] * 0x10001u;
        if (NORM) {
            input.peaks[m][group] = s[i].peak;
            input.squares[m][group] = s[i].squares;
        } else
            ((float*)input.scales[m])[group] = group_scale(s[i].peak, 1.0f);
    }
}

// The scales of row m, which need the whole row's squares; one warp.
__device__ __forceinline__ void scale_row(Input& input, int m) {
    float factor = norm_factor(input.squares[m], GROUPS, EPS);
    for (int group = threadIdx.x % 32; group < PADDED; group += 32)
        ((float*)input.scales[m])[group] = group_scale(input.peaks[m][group], factor);
}
