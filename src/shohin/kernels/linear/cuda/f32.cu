// Many rows times plain float32 weights, any width. The sums are those of plain.cu bit by bit: lane l adds the
// products at k = VECTOR l, 32 VECTOR apart, and the lanes meet in a tree; so every lane of a warp has a sum for all
// of the warp's 16 x 8 outputs. Slabs of 128 columns come through a ring in shared memory.
//
// Macros: VECTOR (4, or 1 where rows are not at multiples of 16 bytes), EPILOGUE (0 store, 1 add, 2 swiglu), GATHER,
// STAGES.

#include "ptx.cuh"
#include "step.cuh"

constexpr unsigned WHOLE_WARP = 0xffffffffu;
constexpr int THREADS = 256, SLAB = 128;
// Outputs and rows of a block, and of a warp.
constexpr int OUTPUTS = 32, ROWS_A_BLOCK = 32, WARP_OUTPUTS = 16, WARP_ROWS = 8;

struct Shared {
    // Rows of weights, then rows of x.
    float stages[STAGES][OUTPUTS + ROWS_A_BLOCK][SLAB];
    const float* sources[OUTPUTS + ROWS_A_BLOCK];
};

using Sums = float[WARP_ROWS * WARP_OUTPUTS];

// Weight row of output ``index`` of a block. SwiGLU: of four neighbours the first two are gates, the others their ups.
struct Weight {
    int row;
    bool up;
};

__device__ __forceinline__ Weight weight_of(int block, int index) {
    if (EPILOGUE == 2) return {block * (OUTPUTS / 2) + index / 4 * 2 + index % 2, index % 4 >= 2};
    return {block * OUTPUTS + index, false};
}

__device__ __forceinline__ void fetch(Shared& shared, int slot, int slab, int width) {
    constexpr int UNITS = SLAB / VECTOR;
#pragma unroll 8
    for (int i = threadIdx.x; i < (OUTPUTS + ROWS_A_BLOCK) * UNITS; i += THREADS) {
        int row = i / UNITS, column = i % UNITS * VECTOR, k = slab * SLAB + column;
        if (k >= width) continue;
        float* target = &shared.stages[slot][row][column];
        if (VECTOR == 4)
            copy_async_16(target, shared.sources[row] + k);
        else
            copy_async_4(target, shared.sources[row] + k);
    }
}

struct __align__(4 * VECTOR) Values {
    float at[VECTOR];
};

__device__ __forceinline__ void multiply(const float (&stage)[OUTPUTS + ROWS_A_BLOCK][SLAB], Sums& sums, int left) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int output = warp % 2 * WARP_OUTPUTS, row = OUTPUTS + warp / 2 * WARP_ROWS;
#pragma unroll
    for (int column = lane * VECTOR; column < SLAB; column += 32 * VECTOR) {
        if (column >= left) break;
        Values x[WARP_ROWS];
#pragma unroll
        for (int m = 0; m < WARP_ROWS; m++) x[m] = *(const Values*)&stage[row + m][column];
#pragma unroll
        for (int n = 0; n < WARP_OUTPUTS; n++) {
            Values w = *(const Values*)&stage[output + n][column];
#pragma unroll
            for (int m = 0; m < WARP_ROWS; m++)
#pragma unroll
                for (int e = 0; e < VECTOR; e++)
                    sums[m * WARP_OUTPUTS + n] = fmaf(w.at[e], x[m].at[e], sums[m * WARP_OUTPUTS + n]);
        }
    }
}

// The sums over 32 lanes, each by the tree 16, 8, 4, 2, 1; lane l leaves with those of index 4 l to 4 l + 3 in front.
__device__ __forceinline__ void gather(Sums& sums) {
    int count = WARP_ROWS * WARP_OUTPUTS;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        bool upper = threadIdx.x & step;
        count /= 2;
#pragma unroll
        for (int i = 0; i < WARP_ROWS * WARP_OUTPUTS / 2; i++) {
            if (i >= count) break;
            float kept = upper ? sums[i + count] : sums[i], given = upper ? sums[i] : sums[i + count];
            sums[i] = __fadd_rn(kept, __shfl_xor_sync(WHOLE_WARP, given, step));
        }
    }
}

__device__ __forceinline__ void store(const Sums& sums, float* out, int outputs, int live, int column, int width) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int m = blockIdx.x * ROWS_A_BLOCK + warp / 2 * WARP_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < (EPILOGUE == 2 ? 2 : 4); i++) {
        int n = weight_of(blockIdx.y, warp % 2 * WARP_OUTPUTS + lane % 4 * 4 + i).row;
        if (n >= outputs || m >= live) continue;
        float* target = out + (long long)m * width + column + n;
        float sum = sums[i];
        if (EPILOGUE == 1) sum = __fadd_rn(*target, sum);
        if (EPILOGUE == 2) sum = __fmul_rn(__fdiv_rn(sum, __fadd_rn(1.0f, expf(-sum))), sums[i + 2]);
        *target = sum;
    }
}

// x: rows at multiples of ``stride`` floats, in the order of out unless they are gathered here.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    multiply_f32(const int* step, const float* x, const float* weights, const float* ups, float* out, int outputs,
                 int width, int stride, int column, int out_width) {
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    Shared& shared = *(Shared*)shared_bytes;
    let_next_start();
    wait_for_previous();
    int live = GATHER ? step_wanted(step) : step_rows(step), first = blockIdx.x * ROWS_A_BLOCK;
    if (first >= live) return;
    // Rows past the end repeat the last one.
    if (threadIdx.x < OUTPUTS) {
        Weight w = weight_of(blockIdx.y, threadIdx.x);
        int row = w.row < outputs ? w.row : outputs - 1;
        shared.sources[threadIdx.x] = (w.up ? ups : weights) + (long long)row * width;
    } else if (threadIdx.x < OUTPUTS + ROWS_A_BLOCK) {
        int row = first + threadIdx.x - OUTPUTS;
        shared.sources[threadIdx.x] = x + (long long)(row < live ? row : live - 1) * stride;
    }
    __syncthreads();
    int count = (width + SLAB - 1) / SLAB;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < count) fetch(shared, i, i, width);
        copy_async_commit();
    }
    Sums sums = {};
    int slot = 0, next = STAGES - 1;
    for (int i = 0; i < count; i++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        if (i + STAGES - 1 < count) fetch(shared, next, i + STAGES - 1, width);
        copy_async_commit();
        multiply(shared.stages[slot], sums, width - i * SLAB);
        slot = slot + 1 == STAGES ? 0 : slot + 1, next = next + 1 == STAGES ? 0 : next + 1;
    }
    copy_async_wait<0>();
    gather(sums);
    store(sums, out, outputs, live, column, out_width);
}
