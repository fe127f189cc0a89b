// Blocks of any quantised format, and plain numbers: a warp multiplies OUTPUTS rows of weights with PASS rows of x, its
// lanes side by side along K. Exact mode: a float32 sum a lane, then a tree over lanes. int8: the runs of
// linear/reference.py, an exact sum each, added one after the other in order of K. No order depends on the rows of x.
//
// Macros: FORMAT (a struct of blocks.cuh, or F32, F16, BF16), DENSE, VECTOR (numbers a load, where DENSE), INT8, GROUP,
// OUTPUTS, PASS, FUSED (the block prepares the rows itself), NORM, and those of plain_out.cuh.

#include "linear/cuda/blocks.cuh"
#include "linear/cuda/numbers.cuh"
#include "linear/cuda/plain_out.cuh"

constexpr int WARPS = 4, SEQUENCES = OUTPUTS * PASS;
static_assert(SEQUENCES <= 32, "a lane for every sum");

extern __shared__ __align__(16) unsigned char shared_bytes[];

// Sum r * PASS + m of a lane is that of output r with row m.
using Sums = float[OUTPUTS][PASS];
using Weights = Bytes[OUTPUTS];

// Sum i of the warp in lane i.
__device__ __forceinline__ float gathered(const Sums& sums) {
    float mine = 0.0f;
#pragma unroll
    for (int i = 0; i < SEQUENCES; i++) {
        float sum = sums[i / PASS][i % PASS];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(WHOLE_WARP, sum, step));
        if (threadIdx.x % 32 == i) mine = sum;
    }
    return mine;
}

#if DENSE
struct __align__(VECTOR * sizeof(FORMAT::Number)) Numbers {
    FORMAT::Number at[VECTOR];
};
struct __align__(4 * VECTOR) Values {
    float at[VECTOR];
};

constexpr int BYTES_A_NUMBER = sizeof(FORMAT::Number);

__device__ __forceinline__ float project(const Weights& w, const Rows& rows, int live, int width) {
    Sums sums = {};
    for (int k = threadIdx.x % 32 * VECTOR; k < width; k += 32 * VECTOR) {
        Numbers numbers[OUTPUTS];
#pragma unroll
        for (int r = 0; r < OUTPUTS; r++)
            numbers[r] = *reinterpret_cast<const Numbers*>(w[r] + (long long)k * BYTES_A_NUMBER);
#pragma unroll
        for (int m = 0; m < PASS; m++) {
            if (m >= live) break;
            Values x = *reinterpret_cast<const Values*>(rows.row(m).values + 4ll * k);
#pragma unroll
            for (int r = 0; r < OUTPUTS; r++)
#pragma unroll
                for (int i = 0; i < VECTOR; i++)
                    sums[r][m] = fmaf(FORMAT::value(numbers[r].at[i]), x.at[i], sums[r][m]);
        }
    }
    return gathered(sums);
}

__device__ __forceinline__ long long row_bytes(int width) { return (long long)width * BYTES_A_NUMBER; }
constexpr int RUN_LENGTH = 0, SHARED_TERMS = 1;
#else
using Set = Pieces<FORMAT>;
constexpr int TERMS = Set::TERMS;
constexpr int RUN_LENGTH = FORMAT::AFFINE ? FORMAT::RUN : 0;

__device__ __forceinline__ long long row_bytes(int width) { return (long long)(width / FORMAT::BLOCK) * FORMAT::BYTES; }

__device__ __forceinline__ void read_pieces(Set::Type (&pieces)[OUTPUTS], const Weights& w, int index) {
#pragma unroll
    for (int r = 0; r < OUTPUTS; r++) Set::read(pieces[r], w[r], index);
}

#if !INT8
constexpr int SHARED_TERMS = 1;

__device__ __forceinline__ float project(const Weights& w, const Rows& rows, int live, int width) {
    Sums sums = {};
    int lane = threadIdx.x % 32;
    for (int first = 0; first < width / 32; first += 32) {
        if (first + lane >= width / 32) break;
        Set::Type pieces[OUTPUTS];
        read_pieces(pieces, w, first + lane);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float weights[OUTPUTS][4];
#pragma unroll
            for (int r = 0; r < OUTPUTS; r++) Set::decode(weights[r], pieces[r], i);
#pragma unroll
            for (int m = 0; m < PASS; m++) {
                if (m >= live) break;
                float4 x = reinterpret_cast<const float4*>(rows.row(m).values)[8 * first + 32 * i + lane];
#pragma unroll
                for (int r = 0; r < OUTPUTS; r++) {
                    float sum = fmaf(weights[r][0], x.x, sums[r][m]);
                    sum = fmaf(weights[r][1], x.y, sum);
                    sum = fmaf(weights[r][2], x.z, sum);
                    sums[r][m] = fmaf(weights[r][3], x.w, sum);
                }
            }
        }
    }
    return gathered(sums);
}
#else
// Lanes that share a run, and runs that 32 lanes see.
constexpr int LANES_A_RUN = FORMAT::RUN / 32 > 0 ? FORMAT::RUN / 32 : 1;
constexpr int RUNS = 32 * TERMS / LANES_A_RUN;
constexpr int SHARED_TERMS = WARPS * SEQUENCES * (RUNS + 1);

// What one run adds to a sum: int8_dot in linear/reference.py.
__device__ __forceinline__ float run_term(const Set::Type& piece, int term, int sum, float scale, float all) {
    float whole = (float)sum;
    if constexpr (FORMAT::AFFINE)
        return __fmul_rn(scale, __fadd_rn(__fmul_rn(piece.scale[term], whole), __fmul_rn(piece.minimum[term], all)));
    return __fmul_rn(whole, __fmul_rn(piece.scale[term], scale));
}

// The terms of piece ``index`` of the weights with row m, into shared memory [sequence][run].
__device__ __forceinline__ void put_terms(float* terms, const Set::Type (&pieces)[OUTPUTS], RowPlace row, int m,
                                          int index) {
    int lane = threadIdx.x % 32;
    const uint4* units = reinterpret_cast<const uint4*>(row.values) + index / 32 * 64 + lane;
    uint4 a = units[0], b = units[32];
    unsigned codes[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float scale = row.scales[index / (GROUP / 32)];
#pragma unroll
    for (int r = 0; r < OUTPUTS; r++) {
#pragma unroll
        for (int term = 0; term < TERMS; term++) {
            int sum = 0;
#pragma unroll
            for (int i = 8 / TERMS * term; i < 8 / TERMS * (term + 1); i++)
                sum = __dp4a((int)pieces[r].codes[i], (int)codes[i], sum);
#pragma unroll
            for (int step = 1; step < LANES_A_RUN; step *= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, step);
            float all = FORMAT::AFFINE ? row.sums[index * TERMS + term] : 0.0f;
            if (lane % LANES_A_RUN == 0)
                terms[(r * PASS + m) * (RUNS + 1) + lane / LANES_A_RUN * TERMS + term] =
                    run_term(pieces[r], term, sum, scale, all);
        }
    }
}

__device__ __forceinline__ float project(const Weights& w, const Rows& rows, int live, int width) {
    __shared__ float all_terms[SHARED_TERMS];
    int lane = threadIdx.x % 32, count = width / 32;
    float* terms = all_terms + threadIdx.x / 32 * (SEQUENCES * (RUNS + 1));
    float total = 0.0f;
    for (int first = 0; first < count; first += 32) {
        // Lanes past the end repeat the last piece: they take part in exchanges, and nobody adds their terms.
        int here = count - first < 32 ? count - first : 32;
        int index = first + (lane < here ? lane : here - 1);
        Set::Type pieces[OUTPUTS];
        read_pieces(pieces, w, index);
#pragma unroll
        for (int m = 0; m < PASS; m++) {
            if (m >= live) break;
            put_terms(terms, pieces, rows.row(m), m, index);
        }
        __syncwarp();
        if (lane < SEQUENCES && lane % PASS < live)
            for (int i = 0; i < here * TERMS / LANES_A_RUN; i++) total = __fadd_rn(total, terms[lane * (RUNS + 1) + i]);
        __syncwarp();
    }
    return total;
}
#endif
#endif

// OUTPUTS rows from ``first`` on; rows past the end repeat the last one.
__device__ __forceinline__ float project_part(Bytes data, int count, int first, const Rows& rows, int live, int width) {
    Weights w;
#pragma unroll
    for (int r = 0; r < OUTPUTS; r++) {
        int row = first + r < count ? first + r : count - 1;
        w[r] = data + row * row_bytes(width);
    }
    return project(w, rows, live, width);
}

// x, norm, eps: of rows that the block prepares itself. values, scales, sums: of rows that plain_rows.cu prepared.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    multiply(const unsigned char* data0, const unsigned char* data1, const unsigned char* data2, int rows0, int rows1,
             int rows2, const float* x, const float* norm, float eps, unsigned char* values, float* scales, float* sums,
             float* out, const int* step, int width, int value_stride, int scale_stride, int sum_stride, int out_width,
             int column) {
    let_next_start();
    wait_for_previous();
    int begin = blockIdx.y * PASS, live = live_rows(step) - begin;
    if (live <= 0) return;
    live = live < PASS ? live : PASS;
    Rows rows = {{values, scales, sums}, value_stride, scale_stride, sum_stride};
#if FUSED
    rows.at = {shared_bytes, reinterpret_cast<float*>(shared_bytes + PASS * value_stride), nullptr};
    rows.at.sums = rows.at.scales + PASS * scale_stride;
    float* squares = rows.at.sums + PASS * sum_stride;
    for (int m = 0; m < live; m++) {
        long long source = GATHER ? step_row(step, begin + m) : begin + m;
        prepare_row<INT8 ? GROUP : 0, INT8 ? RUN_LENGTH : 0, DENSE ? 0 : 32>(
            rows.row(m), x + source * width, NORM ? norm : nullptr, width, eps, squares);
        __syncthreads();
    }
#else
    rows.at = rows.row(begin);
#endif
    Matrices matrices = {{data0, data1, data2}, {}, {rows0, rows1, rows2}};
    Part part = part_of(matrices, blockIdx.x * WARPS + threadIdx.x / 32, OUTPUTS);
    if (part.first >= part.rows) return;
    float sum = project_part(part.data, part.rows, part.first, rows, live, width), up = 0.0f;
    if constexpr (EPILOGUE == SWIGLU) up = project_part(data1, rows0, part.first, rows, live, width);
    int lane = threadIdx.x % 32, n = part.first + lane / PASS, m = lane % PASS;
    if (lane < SEQUENCES && n < part.rows && m < live)
        put_sum(out + (long long)(begin + m) * out_width + column + part.column + n, sum, up);
}
