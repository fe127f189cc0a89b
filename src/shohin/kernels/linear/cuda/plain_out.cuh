// Where the plain kernels' sums go. Macros: GATHER, EPILOGUE (0 store, 1 add, 2 swiglu), PARTS (weights that lie side by
// side in a row of out).
#pragma once

#include "plain_rows.cuh"
#include "step.cuh"

constexpr int STORE = 0, ADD = 1, SWIGLU = 2;

__device__ __forceinline__ int live_rows(const int* step) { return GATHER ? step_wanted(step) : step_rows(step); }

// g / (1 + exp(-g)) * u
__device__ __forceinline__ float swiglu(float gate, float up) {
    return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate))), up);
}

__device__ __forceinline__ void put_sum(float* out, float sum, float up) {
    if constexpr (EPILOGUE == STORE) *out = sum;
    if constexpr (EPILOGUE == ADD) *out = __fadd_rn(*out, sum);
    if constexpr (EPILOGUE == SWIGLU) *out = swiglu(sum, up);
}

// Up to three matrices; gate and up are the first two.
struct Matrices {
    const unsigned char* data[3];
    const unsigned char* scales[3];
    int rows[3];
};

// One of them and where it begins in a row of out. first: of its rows, counted by ``each`` over all matrices.
struct Part {
    const unsigned char* data;
    const unsigned char* scales;
    int rows, column, first;
};

__device__ __forceinline__ Part part_of(const Matrices& m, int index, int each) {
    Part part = {m.data[0], m.scales[0], m.rows[0], 0, index * each};
    if constexpr (EPILOGUE == SWIGLU) return part;
#pragma unroll
    for (int i = 1; i < PARTS; i++) {
        if (part.first < (part.rows + each - 1) / each * each) break;
        int first = part.first - (part.rows + each - 1) / each * each;
        part = {m.data[i], m.scales[i], m.rows[i], part.column + part.rows, first};
    }
    return part;
}

// Prepared rows: bases, and the distance from row to row in bytes (values) and floats.
struct Rows {
    RowPlace at;
    int value_stride, scale_stride, sum_stride;

    __device__ __forceinline__ RowPlace row(int m) const {
        return {at.values + (long long)m * value_stride, at.scales + (long long)m * scale_stride,
                at.sums + (long long)m * sum_stride};
    }
};
