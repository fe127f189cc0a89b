// Attention of any head width and cache type in float32: a block takes one query head of one row and goes through its
// keys in chunks of 128, which it merges in order.

#include "attend/heads.cuh"

constexpr int CHUNK = 128;

__device__ __forceinline__ float least() { return __uint_as_float(0xff800000u); }

__device__ __forceinline__ float load_value(const void* cache, const unsigned short* scales, long long place, int d) {
    if (KIND == 0) return half_to_float(((const unsigned short*)cache)[place * HD + d]);
    if (KIND == 1) return __fmul_rn((float)((const signed char*)cache)[place * HD + d], half_to_float(scales[place]));
    return ((const float*)cache)[place * HD + d];
}

extern "C" __global__ void __launch_bounds__(CHUNK)
    attend_plain(const int* step, const float* qkv, const float* q_norm, const float* rope, const void* keys,
                 const void* values, const unsigned short* key_scales, const unsigned short* value_scales, float* out) {
    __shared__ float query[HD], weights[CHUNK], peaks[CHUNK / 32], parts[CHUNK / 32];
    __shared__ long long places[CHUNK];
    let_next_start();
    wait_for_previous();
    int m = blockIdx.y, q_head = blockIdx.x, head = q_head / GROUP, t = threadIdx.x;
    if (m >= step_rows(step)) return;
    int position = step_position(step, m), sequence = step_sequence(step, m);
    if (t < 32)
        turn_head(qkv + ((long long)m * (NQ + 2 * NKV) + q_head) * HD, turn_of(q_norm, rope + (long long)position * HD), query);
    float peak = least(), total = 0.0f, mixed[(HD + CHUNK - 1) / CHUNK] = {};
    for (int first = 0; first <= position; first += CHUNK) {
        __syncthreads();
        int key = first + t;
        bool inside = key <= position;
        float score = least();
        if (inside) {
            places[t] = place_of(step, sequence, key, head);
            float sum = 0.0f;
            for (int d = 0; d < HD; d++) sum = fmaf(query[d], load_value(keys, key_scales, places[t], d), sum);
            score = __fmul_rn(sum, __fdiv_rn(1.0f, __fsqrt_rn((float)HD)));
        }
        float top = score;
        for (int i = 16; i > 0; i /= 2) top = fmaxf(top, __shfl_xor_sync(WARP, top, i));
        if (t % 32 == 0) peaks[t / 32] = top;
        __syncthreads();
        top = fmaxf(fmaxf(peaks[0], peaks[1]), fmaxf(peaks[2], peaks[3]));
        float p = inside ? expf(__fsub_rn(score, top)) : 0.0f;
        weights[t] = p;
        float sum = sum_of_warp(p);
        if (t % 32 == 0) parts[t / 32] = sum;
        __syncthreads();
        sum = __fadd_rn(__fadd_rn(__fadd_rn(parts[0], parts[1]), parts[2]), parts[3]);
        float both = fmaxf(peak, top), old = expf(__fsub_rn(peak, both)), now = expf(__fsub_rn(top, both));
        total = __fadd_rn(__fmul_rn(total, old), __fmul_rn(sum, now));
        int count = position - first + 1 < CHUNK ? position - first + 1 : CHUNK;
        for (int i = 0; i < (HD + CHUNK - 1) / CHUNK; i++) {
            int d = t + i * CHUNK;
            if (d >= HD) break;
            float part = 0.0f;
            for (int j = 0; j < count; j++) part = fmaf(weights[j], load_value(values, value_scales, places[j], d), part);
            mixed[i] = __fadd_rn(__fmul_rn(mixed[i], old), __fmul_rn(part, now));
        }
        peak = both;
    }
    for (int i = 0; i < (HD + CHUNK - 1) / CHUNK; i++) {
        int d = t + i * CHUNK;
        if (d < HD) out[((long long)m * NQ + q_head) * HD + d] = __fmul_rn(mixed[i], __fdiv_rn(1.0f, total));
    }
}
