// Attention of 16 query rows over a chunk of 128 keys on float16 matrix units, and how chunks are merged. Queries and
// weights are split into a float16 and the float16 of what is left, so that little more than the order of sums differs
// from float32. One row, many rows and a prompt use these same steps in the same order: a row's bits are its own.
//
// Queries and keys: [rows][HD + 8] halves in shared memory (the 8 keep rows in different banks).
#pragma once

#include "attend/heads.cuh"

constexpr int CHUNK = 128, TILES = CHUNK / 8, STEPS = HD / 16, WIDE = HD + 8;
constexpr float LOG2E = 1.4426950408889634f;

__device__ __forceinline__ float least() { return __uint_as_float(0xff800000u); }

struct Stage {
    unsigned short keys[CHUNK][WIDE];
    unsigned short values[CHUNK][WIDE];
    float key_scales[CHUNK];
    float value_scales[CHUNK];
};

// Rows of 16 queries, high halves and what is left of them.
struct Queries {
    unsigned short high[16][WIDE];
    unsigned short low[16][WIDE];
};

__device__ __forceinline__ void put_query(Queries& q, int row, int d, float value) {
    unsigned short high = float_to_half(value);
    q.high[row][d] = high;
    q.low[row][d] = float_to_half(__fsub_rn(value, half_to_float(high)));
}

// Starts to bring the chunk's keys and values up to ``last`` into shared memory; what lies behind it is zeros.
__device__ __forceinline__ void fetch(Stage& stage, const Cache& cache, const int* step, int sequence, int head, int first,
                                      int last) {
    constexpr int PIECES = HD / 8;
    for (int i = threadIdx.x; i < CHUNK * PIECES; i += blockDim.x) {
        int key = i / PIECES, d = i % PIECES * 8;
        uint4* to[2] = {(uint4*)&stage.keys[key][d], (uint4*)&stage.values[key][d]};
        if (first + key > last) {
            *to[0] = *to[1] = make_uint4(0, 0, 0, 0);
            continue;
        }
        long long at = place_of(step, sequence, first + key, head) * HD + d;
        if (KIND == 0) {
            copy_async_16(to[0], (const unsigned short*)cache.keys + at);
            copy_async_16(to[1], (const unsigned short*)cache.values + at);
            continue;
        }
#pragma unroll
        for (int part = 0; part < 2; part++) {
            uint2 codes = *(const uint2*)((const signed char*)(part ? cache.values : cache.keys) + at);
            unsigned halves[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                unsigned word = (j < 2 ? codes.x : codes.y) >> (16 * (j % 2));
                halves[j] = pack_half2((float)(signed char)(word & 0xff), (float)(signed char)(word >> 8 & 0xff));
            }
            *to[part] = make_uint4(halves[0], halves[1], halves[2], halves[3]);
        }
    }
    if (KIND == 1)
        for (int key = threadIdx.x; key < CHUNK; key += blockDim.x) {
            bool inside = first + key <= last;
            long long at = inside ? place_of(step, sequence, first + key, head) : 0;
            stage.key_scales[key] = inside ? half_to_float(cache.key_scales[at]) : 0.0f;
            stage.value_scales[key] = inside ? half_to_float(cache.value_scales[at]) : 0.0f;
        }
    copy_async_commit();
}

// Scores times log2 e of COUNT tiles of 8 keys from tile ``tile`` on; the tiles share each load of the queries.
template <int COUNT>
__device__ __forceinline__ void score_tiles(float (*s)[4], const Queries& q, const Stage& stage, int tile) {
    int lane = threadIdx.x % 32;
    float c[COUNT][4];
#pragma unroll
    for (int t = 0; t < COUNT; t++) c[t][0] = c[t][1] = c[t][2] = c[t][3] = 0.0f;
#pragma unroll
    for (int i = 0; i < STEPS; i += 2) {
        unsigned high[2][4], low[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            load_matrix_x4(high[j], &q.high[lane % 16][(i + j) * 16 + lane / 16 * 8]);
            load_matrix_x4(low[j], &q.low[lane % 16][(i + j) * 16 + lane / 16 * 8]);
        }
#pragma unroll
        for (int t = 0; t < COUNT; t++) {
            unsigned keys[4];
            load_matrix_x4(keys, &stage.keys[(tile + t) * 8 + lane % 8][i * 16 + lane / 8 * 8]);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const unsigned b[2] = {keys[2 * j], keys[2 * j + 1]};
                mma_f16(c[t], high[j], b);
                mma_f16(c[t], low[j], b);
            }
        }
    }
    float scale = __fmul_rn(__fdiv_rn(1.0f, __fsqrt_rn((float)HD)), LOG2E);
#pragma unroll
    for (int t = 0; t < COUNT; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float part = c[t][i];
            if (KIND == 1) part = __fmul_rn(part, stage.key_scales[(tile + t) * 8 + lane % 4 * 2 + i % 2]);
            s[t][i] = __fmul_rn(part, scale);
        }
}

// Largest score and sum of weights of rows lane / 4 and lane / 4 + 8; the scores become weights 2^(s - largest).
__device__ __forceinline__ void weigh(float (&s)[TILES][4], float (&peak)[2], float (&total)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = least();
#pragma unroll
        for (int j = 0; j < TILES; j++) top = fmaxf(top, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(WARP, top, 1));
        top = fmaxf(top, __shfl_xor_sync(WARP, top, 2));
        // A row without a key here: all its weights are 2^(-infinity).
        float base = top == least() ? 0.0f : top, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[j][i] = fast_exp2(__fsub_rn(s[j][i], base));
                sum = __fadd_rn(sum, s[j][i]);
            }
        sum = __fadd_rn(sum, __shfl_xor_sync(WARP, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(WARP, sum, 2));
        peak[half] = top, total[half] = sum;
    }
}

__device__ __forceinline__ void split(unsigned& high, unsigned& low, float a, float b) {
    high = pack_half2(a, b);
    low = pack_half2(__fsub_rn(a, half_to_float((unsigned short)(high & 0xffffu))),
                     __fsub_rn(b, half_to_float((unsigned short)(high >> 16))));
}

// Weighted sums of COUNT times 8 columns from column ``d`` on, which share each splitting of the weights.
template <int COUNT>
__device__ __forceinline__ void mix(float (&c)[COUNT][4], const float (&p)[TILES][4], const Stage& stage, int d) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COUNT; i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
        unsigned high[4], low[4];
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const float* w = p[2 * k + part / 2];
            float a = w[part % 2 * 2], b = w[part % 2 * 2 + 1];
            if (KIND == 1) {
                int key = k * 16 + part / 2 * 8 + lane % 4 * 2;
                a = __fmul_rn(a, stage.value_scales[key]), b = __fmul_rn(b, stage.value_scales[key + 1]);
            }
            split(high[part], low[part], a, b);
        }
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) {
            unsigned v[4];
            load_matrix_x4_transposed(v, &stage.values[k * 16 + lane % 16][d + i * 8 + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const unsigned b[2] = {v[2 * j], v[2 * j + 1]};
                mma_f16(c[i + j], high, b);
                mma_f16(c[i + j], low, b);
            }
        }
    }
}

// How much of what was and of what comes remains when a chunk is merged.
struct Merge {
    float peak, old, now;
};

__device__ __forceinline__ Merge merge_of(float peak, float chunk_peak) {
    float both = fmaxf(peak, chunk_peak);
    return {both, fast_exp2(__fsub_rn(peak, both)), fast_exp2(__fsub_rn(chunk_peak, both))};
}

__device__ __forceinline__ float merged(float value, float chunk_value, const Merge& m) {
    return __fadd_rn(__fmul_rn(value, m.old), __fmul_rn(chunk_value, m.now));
}
