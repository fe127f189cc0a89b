// What comes before attention: the norm of each head, RoPE, and rounding to the cache's type.
//
// Macros: NQ, NKV, HD, PAGE, ADJACENT (RoPE's pairs), QK_NORM, EPS, KIND (0 float16, 1 int8, 2 float32).
#pragma once

#include "ptx.cuh"
#include "step.cuh"

constexpr unsigned WARP = 0xffffffffu;
constexpr int GROUP = NQ / NKV;
// Values of a head that a lane has.
constexpr int EACH = (HD + 31) / 32;

struct Cache {
    void* keys;
    void* values;
    unsigned short* key_scales;
    unsigned short* value_scales;
};

// Index of a position's row in the cache, [pages][NKV][PAGE].
__device__ __forceinline__ long long place_of(const int* step, int sequence, int position, int head) {
    long long page = step_page(step, sequence, position / PAGE);
    return (page * NKV + head) * PAGE + position % PAGE;
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) value = __fadd_rn(value, __shfl_xor_sync(WARP, value, i));
    return value;
}

// What a warp needs beside a head's values: norm weights, cosines and sines, which are constant and may be loaded early.
struct Turn {
    float norm[EACH], cosine[EACH], sine[EACH];
};

// angles: cos of every pair, then sin.
__device__ __forceinline__ Turn turn_of(const float* norm, const float* angles) {
    Turn turn;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int d = threadIdx.x % 32 + 32 * i, pair = ADJACENT ? d / 2 : d % (HD / 2);
        bool inside = d < HD;
        turn.norm[i] = QK_NORM && inside ? norm[d] : 1.0f;
        turn.cosine[i] = inside ? angles[pair] : 0.0f;
        turn.sine[i] = inside ? angles[HD / 2 + pair] : 0.0f;
    }
    return turn;
}

// A lane's values of a head: every 32nd.
struct Values {
    float each[EACH];
};

__device__ __forceinline__ Values load_head(const float* x) {
    Values head;
#pragma unroll
    for (int i = 0; i < EACH; i++) head.each[i] = threadIdx.x % 32 + 32 * i < HD ? x[threadIdx.x % 32 + 32 * i] : 0.0f;
    return head;
}

// A head normed and rotated by one warp, into ``out`` [HD] (shared memory that only this warp uses).
__device__ __forceinline__ void turn_head(const Values& head, const Turn& turn, float* out) {
    int lane = threadIdx.x % 32;
    float values[EACH], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) values[i] = head.each[i], squares = fmaf(values[i], values[i], squares);
    if (QK_NORM) {
        float mean = __fdiv_rn(sum_of_warp(squares), (float)HD);
        float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, EPS)));
#pragma unroll
        for (int i = 0; i < EACH; i++) values[i] = __fmul_rn(__fmul_rn(values[i], factor), turn.norm[i]);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (lane + 32 * i < HD) out[lane + 32 * i] = values[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int d = lane + 32 * i;
        if (d >= HD) continue;
        bool second = ADJACENT ? d % 2 : d >= HD / 2;
        float other = out[ADJACENT ? d ^ 1 : second ? d - HD / 2 : d + HD / 2];
        float a = second ? other : values[i], b = second ? values[i] : other, c = turn.cosine[i], s = turn.sine[i];
        values[i] = second ? __fadd_rn(__fmul_rn(a, s), __fmul_rn(b, c)) : __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (lane + 32 * i < HD) out[lane + 32 * i] = values[i];
    __syncwarp();
}

__device__ __forceinline__ void turn_head(const float* x, const Turn& turn, float* out) { turn_head(load_head(x), turn, out); }

// Rounds a row once to the cache's type and stores it; one warp. staged: where the same row is wanted as float16 (codes,
// for int8), with its scale; or null.
__device__ __forceinline__ void store_row(void* cache, unsigned short* scales, long long place, const float* row,
                                          unsigned short* staged = nullptr, float* staged_scale = nullptr) {
    int lane = threadIdx.x % 32;
    if (KIND == 1) {
        unsigned peak = 0;
        for (int d = lane; d < HD; d += 32) {
            unsigned size = __float_as_uint(row[d]) & 0x7fffffffu;
            peak = peak > size ? peak : size;
        }
        peak = __reduce_max_sync(WARP, peak);
        float top = peak < 0x7f800000u ? __fdiv_rn(__uint_as_float(peak), 127.0f) : __uint_as_float(0x7fffffffu);
        unsigned short scale = float_to_half(top);
        float wide = half_to_float(scale);
        bool usable = wide > 0.0f && (__float_as_uint(wide) & 0x7fffffffu) < 0x7f800000u;
        for (int d = lane; d < HD; d += 32) {
            int code = usable ? (int)rintf(__fdiv_rn(row[d], wide)) : 0;
            code = code > 127 ? 127 : code < -127 ? -127 : code;
            ((signed char*)cache)[place * HD + d] = (signed char)code;
            if (staged) staged[d] = float_to_half((float)code);
        }
        if (lane == 0) scales[place] = scale;
        if (staged && lane == 0) *staged_scale = wide;
        return;
    }
    for (int d = lane; d < HD; d += 32) {
        unsigned short half = KIND == 0 ? float_to_half(row[d]) : 0;
        if (KIND == 0) ((unsigned short*)cache)[place * HD + d] = half;
        if (KIND == 2) ((float*)cache)[place * HD + d] = row[d];
        if (staged) staged[d] = half;
    }
}
