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

// Eight int8 codes as float16, exactly.
__device__ __forceinline__ uint4 halves_of(uint2 codes) {
    unsigned halves[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        unsigned word = (j < 2 ? codes.x : codes.y) >> (16 * (j % 2));
        halves[j] = pack_half2((float)(signed char)(word & 0xff), (float)(signed char)(word >> 8 & 0xff));
    }
    return make_uint4(halves[0], halves[1], halves[2], halves[3]);
}

struct Stage {
    unsigned short keys[CHUNK][WIDE];
    unsigned short values[CHUNK][WIDE];
    float key_scales[CHUNK];
    float value_scales[CHUNK];
};

// 16 queries: high halves and what is left of them, times powers of two that bring each query's largest value to 2^14, so
// that what is left has all its bits; scale: of a product with them, to a score times log2 e.
struct Queries {
    unsigned short high[16][WIDE];
    unsigned short low[16][WIDE];
    float scale[16];
};

// The power of two 2^(14 - e) or, inverse, 2^(e - 14) for numbers whose largest lies between 2^e and 2^(e + 1).
__device__ __forceinline__ float to_fourteen(int biased) { return __uint_as_float((268u - biased) << 23); }
__device__ __forceinline__ float from_fourteen(int biased) { return __uint_as_float((biased - 14u) << 23); }

// One warp; values [HD], or null for a row of zeros.
__device__ __forceinline__ void put_query(Queries& q, int row, const float* values) {
    int lane = threadIdx.x % 32;
    unsigned peak = 0;
#pragma unroll
    for (int d = lane; d < HD; d += 32) {
        unsigned size = values ? __float_as_uint(values[d]) & 0x7fffffffu : 0;
        peak = peak > size ? peak : size;
    }
    int biased = __reduce_max_sync(WARP, peak) >> 23;
    biased = biased < 15 ? 15 : biased;
#pragma unroll
    for (int d = lane; d < HD; d += 32) {
        float value = values ? __fmul_rn(values[d], to_fourteen(biased)) : 0.0f;
        unsigned short high = float_to_half(value);
        q.high[row][d] = high;
        q.low[row][d] = float_to_half(__fsub_rn(value, half_to_float(high)));
    }
    float root = __fmul_rn(__fdiv_rn(1.0f, __fsqrt_rn((float)HD)), LOG2E);
    if (lane == 0) q.scale[row] = __fmul_rn(root, from_fourteen(biased));
}

// Starts to bring the chunk's keys (PART 0) or values (1) up to ``last`` into shared memory; behind them come zeros, or
// first a row that is left alone (LEAVE).
template <int PART, int THREADS, int LEAVE>
__device__ __forceinline__ void fetch_part(Stage& stage, const Cache& cache, const int* step, int sequence, int head,
                                           int first, int last) {
    constexpr int PIECES = HD / 8, ALL = CHUNK * PIECES / THREADS, AT_ONCE = ALL < 8 ? ALL : 8;
    static_assert(CHUNK * PIECES % THREADS == 0 && ALL % AT_ONCE == 0);
    const void* from = PART ? cache.values : cache.keys;
#pragma unroll 1
    for (int begin = threadIdx.x; begin < CHUNK * PIECES; begin += AT_ONCE * THREADS) {
        // All looked up before the first copy, or each would wait for its own.
        int places[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int key = first + (begin + i * THREADS) / PIECES;
            places[i] = key <= last ? (int)place_of(step, sequence, key, head) : -1;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int piece = begin + i * THREADS, key = piece / PIECES, d = piece % PIECES * 8;
            uint4* to = (uint4*)(PART ? &stage.values[key][d] : &stage.keys[key][d]);
            long long at = (long long)places[i] * HD + d;
            if (places[i] < 0) {
                if (!LEAVE || first + key != last + 1) *to = make_uint4(0, 0, 0, 0);
            } else if (KIND == 0) {
                copy_async_16(to, (const unsigned short*)from + at);
            } else {
                *to = halves_of(*(const uint2*)((const signed char*)from + at));
            }
        }
    }
    if (KIND == 1)
        for (int key = threadIdx.x; key < CHUNK; key += THREADS) {
            if (LEAVE && first + key == last + 1) continue;
            const unsigned short* scales = PART ? cache.value_scales : cache.key_scales;
            float scale = first + key <= last ? half_to_float(scales[place_of(step, sequence, first + key, head)]) : 0.0f;
            (PART ? stage.value_scales : stage.key_scales)[key] = scale;
        }
    copy_async_commit();
}

// Scores times log2 e of COUNT tiles of 8 keys from tile ``tile`` on; the tiles share each load of the queries.
template <int COUNT>
__device__ __forceinline__ void score_tiles(float (*s)[4], const Queries& q, const Stage& stage, int tile) {
    // Products that follow each other belong to different tiles, or each would wait for the one before it.
    constexpr int ABREAST = COUNT < 4 ? COUNT : 4;
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
        for (int first = 0; first < COUNT; first += ABREAST) {
            unsigned keys[ABREAST][4];
#pragma unroll
            for (int t = 0; t < ABREAST; t++)
                load_matrix_x4(keys[t], &stage.keys[(tile + first + t) * 8 + lane % 8][i * 16 + lane / 8 * 8]);
#pragma unroll
            for (int part = 0; part < 4; part++)
#pragma unroll
                for (int t = 0; t < ABREAST; t++) {
                    const unsigned b[2] = {keys[t][part / 2 * 2], keys[t][part / 2 * 2 + 1]};
                    mma_f16(c[first + t], part % 2 ? low[part / 2] : high[part / 2], b);
                }
        }
    }
    const float scale[2] = {q.scale[lane / 4], q.scale[lane / 4 + 8]};
#pragma unroll
    for (int t = 0; t < COUNT; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float part = c[t][i];
            if (KIND == 1) part = __fmul_rn(part, stage.key_scales[(tile + t) * 8 + lane % 4 * 2 + i % 2]);
            s[t][i] = __fmul_rn(part, scale[i / 2]);
        }
}

// Of rows lane / 4 and lane / 4 + 8 of a chunk: largest score, sum of weights 2^(score - largest), and the weights (times
// the values' scales) as matrix operands, which ``lift`` brings back to their size.
struct Weights {
    float peak[2], total[2], lift[2];
    unsigned high[CHUNK / 16][4], low[CHUNK / 16][4];
};

__device__ __forceinline__ void split(unsigned& high, unsigned& low, float a, float b) {
    high = pack_half2(a, b);
    low = pack_half2(__fsub_rn(a, half_to_float((unsigned short)(high & 0xffffu))),
                     __fsub_rn(b, half_to_float((unsigned short)(high >> 16))));
}

// What scores are relative to: for a row without a key in this chunk all weights are then 2^(-infinity).
__device__ __forceinline__ float base_of(float top) { return top == least() ? 0.0f : top; }

// The weight of a score, as it is summed; and times the value's scale, as it is mixed: a broken scale breaks the rows that
// see its key.
__device__ __forceinline__ float weight_of(float score, float base) { return fast_exp2(__fsub_rn(score, base)); }
__device__ __forceinline__ float scaled_weight(float weight, float score, const Stage& stage, int key) {
    if (KIND != 1) return weight;
    return score == least() ? 0.0f : __fmul_rn(weight, stage.value_scales[key]);
}

// The exponent that a row's scaled weights are lifted by; most: the largest. Without scales weights are at most 1.
__device__ __forceinline__ int exponent_of(float most) {
    int biased = KIND == 1 ? __float_as_uint(most) >> 23 : 127;
    return biased < 64 ? 64 : biased > 200 ? 200 : biased;
}

__device__ __forceinline__ float most_of_quad(float value) {
    value = fmaxf(value, __shfl_xor_sync(WARP, value, 1));
    return fmaxf(value, __shfl_xor_sync(WARP, value, 2));
}

__device__ __forceinline__ float sum_of_quad(float value) {
    value = __fadd_rn(value, __shfl_xor_sync(WARP, value, 1));
    return __fadd_rn(value, __shfl_xor_sync(WARP, value, 2));
}

// Scores become weights; those of keys that a row does not see are least().
__device__ __forceinline__ void weigh(Weights& w, float (&s)[TILES][4], const Stage& stage) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = least(), sum = 0.0f, most = 0.0f;
#pragma unroll
        for (int j = 0; j < TILES; j++) top = fmaxf(top, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
        top = most_of_quad(top);
        float base = base_of(top);
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                float weight = weight_of(s[j][i], base);
                sum = __fadd_rn(sum, weight);
                s[j][i] = scaled_weight(weight, s[j][i], stage, j * 8 + lane % 4 * 2 + i % 2);
                if (KIND == 1) most = fmaxf(most, s[j][i]);
            }
        int biased = exponent_of(KIND == 1 ? most_of_quad(most) : 1.0f);
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) s[j][i] = __fmul_rn(s[j][i], to_fourteen(biased));
        w.peak[half] = top, w.total[half] = sum_of_quad(sum), w.lift[half] = from_fourteen(biased);
    }
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++)
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const float* pair = &s[2 * k + part / 2][part % 2 * 2];
            split(w.high[k][part], w.low[k][part], pair[0], pair[1]);
        }
}

// Weighted sums of COUNT times 8 columns from column ``d`` on; of rows lane / 4 alone, or all. Behind the first ``seen``
// keys all weights are zero.
template <int HALVES, int COUNT>
__device__ __forceinline__ void mix(float (&c)[COUNT][4], const Weights& w, const Stage& stage, int d, int seen) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COUNT; i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
        if (k * 16 >= seen) break;
        unsigned v[COUNT / 2][4];
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++)
            load_matrix_x4_transposed(v[i], &stage.values[k * 16 + lane % 16][d + i * 16 + lane / 16 * 8]);
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const unsigned b[2] = {v[i / 2][i % 2 * 2], v[i / 2][i % 2 * 2 + 1]};
                mma_f16(c[i], part ? w.low[k] : w.high[k], b);
            }
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++)
#pragma unroll
        for (int j = 0; j < 2 * HALVES; j++) c[i][j] = __fmul_rn(c[i][j], w.lift[j / 2]);
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
