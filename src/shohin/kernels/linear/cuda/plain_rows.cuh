// Rows as the plain kernels multiply them: normed float32, or int8 codes with a scale a group. The values of 32 * LANE_COUNT
// inputs are kept as 16-byte units [unit of a lane][lane], so that lanes with 32 neighbouring inputs each load side by
// side; LANE_COUNT 0 keeps the order. Every value is computed as linear/cuda/quantise.cuh has it.
#pragma once

#include "linear/cuda/quantise.cuh"
#include "ptx.cuh"

// Where the unit of 16 bytes with input k lies, PER_UNIT inputs a unit.
template <int LANE_COUNT, int PER_UNIT>
__device__ __forceinline__ int unit_of(int k) {
    if constexpr (LANE_COUNT == 0) return k / PER_UNIT;
    constexpr int SPAN = 32 * (LANE_COUNT > 0 ? LANE_COUNT : 1);
    int lane = k % SPAN / 32, unit = k % 32 / PER_UNIT;
    return k / SPAN * (SPAN / PER_UNIT) + unit * LANE_COUNT + lane;
}

__device__ __forceinline__ void load_eight(float (&values)[8], const float* row, int k, int width) {
    if (width % 8 == 0 && k < width) {
        float4 a = *reinterpret_cast<const float4*>(row + k), b = *reinterpret_cast<const float4*>(row + k + 4);
        values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
        values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) values[i] = k + i < width ? row[k + i] : 0.0f;
}

// 1 / sqrt(mean(x^2) + eps) of a row, by a whole block. squares: shared, a float for every 128 inputs.
__device__ __forceinline__ float row_factor(const float* x, int width, float eps, float* squares) {
    int groups = (width + 127) / 128, lane = threadIdx.x % 32;
    for (int pair = threadIdx.x / 32; 2 * pair < groups; pair += blockDim.x / 32) {
        int g = 2 * pair + lane / 16;
        float values[8];
        load_eight(values, x, 128 * g + 8 * (lane % 16), width);
        GroupStatistics s = group_statistics(values, values);
        if (lane % 16 == 0 && g < groups) squares[g] = s.squares;
    }
    __syncthreads();
    // The order of norm_factor in quantise.cuh, over a width that need not be a multiple of 128.
    float sum = 0.0f;
    for (int g = lane; g < groups; g += 32) sum = __fadd_rn(sum, squares[g]);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(WHOLE_WARP, sum, step));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)width), eps)));
}

// Where one row goes. values: float32 or int8 in units; scales: one a GROUP_SIZE; sums of codes: one a run of RUN_SIZE.
struct RowPlace {
    unsigned char* values;
    float* scales;
    float* sums;
};

// (x * factor) * norm in float32.
template <int LANE_COUNT>
__device__ __forceinline__ void put_exact(RowPlace place, const float (&x)[8], const float (&w)[8], float factor,
                                          bool normed, int k, int width) {
    float4* units = reinterpret_cast<float4*>(place.values);
    float n[8];
#pragma unroll
    for (int i = 0; i < 8; i++) n[i] = normed ? __fmul_rn(__fmul_rn(x[i], factor), w[i]) : x[i];
    if (width % 8 == 0) {
        units[unit_of<LANE_COUNT, 4>(k)] = make_float4(n[0], n[1], n[2], n[3]);
        units[unit_of<LANE_COUNT, 4>(k + 4)] = make_float4(n[4], n[5], n[6], n[7]);
        return;
    }
    // Only plain numbers have rows that are no multiple of 8, and they keep the order.
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (k + i < width) reinterpret_cast<float*>(units)[k + i] = n[i];
}

// Codes of v, GROUP_SIZE inputs under one scale. Called by whole warps: the lanes of a group meet.
template <int GROUP_SIZE, int RUN_SIZE, int LANE_COUNT>
__device__ __forceinline__ void put_codes(RowPlace place, const float (&v)[8], float factor, int k, int width) {
    unsigned peak = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        unsigned size = __float_as_uint(v[i]) & 0x7fffffffu;
        peak = peak > size ? peak : size;
    }
#pragma unroll
    for (int step = 1; step < GROUP_SIZE / 8; step *= 2) {
        unsigned other = __shfl_xor_sync(WHOLE_WARP, peak, step);
        peak = peak > other ? peak : other;
    }
    uint2 codes = group_codes(v, peak);
    if (k < width) {
        unsigned char* unit = place.values + 16 * unit_of<LANE_COUNT, 16>(k);
        reinterpret_cast<uint2*>(unit)[k % 16 / 8] = codes;
        if (k % GROUP_SIZE == 0) place.scales[k / GROUP_SIZE] = group_scale(peak, factor);
    }
    if constexpr (RUN_SIZE > 0) {
        int sum = __dp4a((int)codes.x, 0x01010101, __dp4a((int)codes.y, 0x01010101, 0));
#pragma unroll
        for (int step = 1; step < RUN_SIZE / 8; step *= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, step);
        if (k < width && k % RUN_SIZE == 0) place.sums[k / RUN_SIZE] = (float)sum;
    }
}

// One row by a whole block. GROUP_SIZE 0: exact. RUN_SIZE 0: no sums. norm: null without one. squares: as in row_factor.
template <int GROUP_SIZE, int RUN_SIZE, int LANE_COUNT>
__device__ __forceinline__ void prepare_row(RowPlace place, const float* x, const float* norm, int width, float eps,
                                            float* squares) {
    bool normed = norm != nullptr;
    float factor = normed ? row_factor(x, width, eps, squares) : 1.0f;
    int groups = (width + 127) / 128, lane = threadIdx.x % 32;
    for (int pair = threadIdx.x / 32; 2 * pair < groups; pair += blockDim.x / 32) {
        int k = 128 * (2 * pair + lane / 16) + 8 * (lane % 16);
        float values[8], weights[8] = {};
        load_eight(values, x, k, width);
        if (normed) load_eight(weights, norm, k, width);
        if constexpr (GROUP_SIZE == 0) {
            if (k < width) put_exact<LANE_COUNT>(place, values, weights, factor, normed, k, width);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) values[i] = normed ? __fmul_rn(values[i], weights[i]) : values[i];
            put_codes<GROUP_SIZE, RUN_SIZE, LANE_COUNT>(place, values, factor, k, width);
        }
    }
}
