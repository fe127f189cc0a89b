// Rows of activations as int8 for gemm.cu, one block a row, one reading of it. The norm's weight goes into the codes,
// its factor, one a row, is left for the products' sums.
//
// codes: bytes [pair of groups of 128][capacity rows][256]. Weight 32 q + 8 b + i of a group is byte 32 q + 4 i + b
// of its 128: a lane of the matrix product finds the 32 codes that meet its word of weight bits side by side. Odd
// rows have neighbouring units of 16 bytes exchanged, so that the lanes of eight rows read from different banks of
// shared memory. records: float [group][capacity / 2]{scale of an even row, of the odd row, offset of the even row,
// of the odd row}, the offset being WHOLE plus the sum of the group's codes. Groups that fill up the last chunk have
// scale 0.
//
// Macros: NORM, GATHER (row i is the step's wanted row i), BATCH (groups that 16 lanes load before they work).

#include "linear/cuda/quantise.cuh"
#include "linear/cuda/whole.cuh"
#include "ptx.cuh"
#include "step.cuh"

__device__ __forceinline__ void load_eight(float (&x)[8], const float* source) {
    float4 low = ((const float4*)source)[0], high = ((const float4*)source)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// Four lanes, b = lane % 4, have the codes 8 b + i, i = 0 to 7; lane b leaves with those of i = 2 b (x) and 2 b + 1
// (y), byte by byte in the order of b.
__device__ __forceinline__ uint2 transposed(uint2 codes) {
    bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
    unsigned kept = upper ? codes.y : codes.x;
    unsigned other = __shfl_xor_sync(WHOLE_WARP, upper ? codes.x : codes.y, 2);
    unsigned low = upper ? other : kept, high = upper ? kept : other;
    unsigned first = __byte_perm(low, high, 0x5410), last = __byte_perm(low, high, 0x7632);
    kept = odd ? last : first;
    other = __shfl_xor_sync(WHOLE_WARP, odd ? first : last, 1);
    unsigned evens = odd ? other : kept, odds = odd ? kept : other;
    return make_uint2(__byte_perm(evens, odds, 0x6240), __byte_perm(evens, odds, 0x7351));
}

// Shared by the threads of a row.
struct Groups {
    unsigned* peaks;
    int* sums;
    float* squares;
};

// One group, by 16 lanes; lanes past the last group take part in the exchanges.
__device__ __forceinline__ void quantise_group(const Groups& kept, unsigned char* codes, int row, int group, int groups,
                                               int capacity, const float (&x)[8], const float (&v)[8]) {
    int t = threadIdx.x % 16;
    GroupStatistics s = group_statistics(x, v);
    uint2 plain = group_codes(v, s.peak);
    int sum = group_sum(plain);
    uint2 permuted = transposed(plain);
    if (group >= groups) return;
    long long place = ((long long)(group / 2) * capacity + row) * 256 + group % 2 * 128 + ((8 * t) ^ (row % 2 * 16));
    *(uint2*)(codes + place) = permuted;
    if (t == 0) kept.peaks[group] = s.peak, kept.sums[group] = sum, kept.squares[group] = s.squares;
}

extern "C" __global__ void quantise(const int* step, const float* x, const float* norm, unsigned char* codes,
                                    float* records, float* factors, int groups, float eps, int capacity) {
    extern __shared__ unsigned char shared_bytes[];
    Groups kept = {(unsigned*)shared_bytes, (int*)shared_bytes + groups, (float*)shared_bytes + 2 * groups};
    int row = blockIdx.x, lanes = blockDim.x / 16;
    let_next_start();
    wait_for_previous();
    if (row >= (GATHER ? step_wanted(step) : step_rows(step))) return;
    const float* source = x + (long long)(GATHER ? step_row(step, row) : row) * groups * 128;
    for (int first = threadIdx.x / 16; first - (int)threadIdx.x / 16 < groups; first += BATCH * lanes) {
        float values[BATCH][8], weights[NORM ? BATCH : 1][8];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int group = first + i * lanes, k = group * 128 + threadIdx.x % 16 * 8;
#pragma unroll
            for (int e = 0; e < 8; e++) values[i][e] = 0.0f;
            if (NORM)
#pragma unroll
                for (int e = 0; e < 8; e++) weights[NORM ? i : 0][e] = 0.0f;
            if (group < groups) {
                load_eight(values[i], source + k);
                if (NORM) load_eight(weights[NORM ? i : 0], norm + k);
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            float v[8];
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] = NORM ? __fmul_rn(values[i][e], weights[NORM ? i : 0][e]) : values[i][e];
            quantise_group(kept, codes, row, first + i * lanes, groups, capacity, values[i], v);
        }
    }
    __syncthreads();
    if (NORM && threadIdx.x < 32) {
        float factor = norm_factor(kept.squares, groups, eps);
        if (threadIdx.x == 0) factors[row] = factor;
    }
    for (int group = threadIdx.x; group < (groups + 3) / 4 * 4; group += blockDim.x) {
        float* record = records + ((long long)group * (capacity / 2) + row / 2) * 4 + row % 2;
        bool there = group < groups;
        record[0] = there ? group_scale(kept.peaks[group]) : 0.0f;
        record[2] = WHOLE + (there ? (float)kept.sums[group] : 0.0f);
    }
}
