// Joint attention in float32: a block takes QUERIES tokens of one head past all keys, KEYS at a time.
//
// 16 x 16 threads: thread (y, x) has the scores of queries y R .. y R + R - 1 with keys x, x + 16, ..., and of the same
// queries' weighted sums columns 4 x .. 4 x + 3 of every 64. Tiles are merged in the order of keys.
//
// Macros: HEADS, TOKENS, DIM, QUERIES, KEYS, FACTOR (1 / sqrt(DIM)).

#include "ptx.cuh"

constexpr unsigned WARP = 0xffffffffu;
constexpr int THREADS = 256, R = QUERIES / 16, C = KEYS / 16;
// Columns in fours and in groups of 64; rows four floats apart lie in other banks.
constexpr int FOURS = (DIM + 3) / 4, GROUPS = (DIM + 63) / 64, PITCH = GROUPS * 64 + 4;

struct Shared {
    float queries[QUERIES][PITCH];
    float rows[KEYS][PITCH];
    float weights[QUERIES][KEYS + 4];
};

// COUNT rows from row ``first`` of a head on; zeros behind its last token and its last column.
template <int COUNT>
__device__ __forceinline__ void load_rows(float (&to)[COUNT][PITCH], const float* from, int first) {
    if (DIM % 4 == 0) {
        for (int i = threadIdx.x; i < COUNT * GROUPS * 16; i += THREADS) {
            int row = i / (GROUPS * 16), column = i % (GROUPS * 16) * 4;
            bool there = first + row < TOKENS && column < DIM;
            *(float4*)&to[row][column] =
                there ? *(const float4*)(from + (long long)(first + row) * DIM + column) : make_float4(0, 0, 0, 0);
        }
        return;
    }
    for (int i = threadIdx.x; i < COUNT * GROUPS * 64; i += THREADS) {
        int row = i / (GROUPS * 64), column = i % (GROUPS * 64);
        to[row][column] = first + row < TOKENS && column < DIM ? from[(long long)(first + row) * DIM + column] : 0.0f;
    }
}

__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__device__ __forceinline__ void multiply_keys(const Shared& shared, float (&s)[R][C], int first) {
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll 2
    for (int d = 0; d < FOURS; d++) {
        float4 q[R], k[C];
#pragma unroll
        for (int i = 0; i < R; i++) q[i] = *(const float4*)&shared.queries[y * R + i][d * 4];
#pragma unroll
        for (int j = 0; j < C; j++) k[j] = *(const float4*)&shared.rows[x + 16 * j][d * 4];
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < C; j++) s[i][j] = dot(q[i], k[j], s[i][j]);
    }
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < C; j++)
            s[i][j] = first + x + 16 * j < TOKENS ? __fmul_rn(s[i][j], FACTOR) : __uint_as_float(0xff800000u);
}

// Leaves the tile's weights in shared memory; peak, total and what is summed so far move to the new maximum.
__device__ __forceinline__ void weigh(Shared& shared, const float (&s)[R][C], float (&peak)[R], float (&total)[R],
                                      float (&sums)[R][GROUPS * 4]) {
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < R; i++) {
        float top = peak[i], sum = 0.0f;
#pragma unroll
        for (int j = 0; j < C; j++) top = fmaxf(top, s[i][j]);
#pragma unroll
        for (int lanes = 1; lanes < 16; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(WARP, top, lanes));
#pragma unroll
        for (int j = 0; j < C; j++) {
            float p = expf(__fsub_rn(s[i][j], top));
            shared.weights[y * R + i][x + 16 * j] = p;
            sum = __fadd_rn(sum, p);
        }
#pragma unroll
        for (int lanes = 1; lanes < 16; lanes *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(WARP, sum, lanes));
        float old = expf(__fsub_rn(peak[i], top));
        total[i] = fmaf(total[i], old, sum);
        peak[i] = top;
#pragma unroll
        for (int c = 0; c < GROUPS * 4; c++) sums[i][c] = __fmul_rn(sums[i][c], old);
    }
}

__device__ __forceinline__ void multiply_values(const Shared& shared, float (&sums)[R][GROUPS * 4]) {
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll 2
    for (int key = 0; key < KEYS; key += 4) {
        float4 p[R];
#pragma unroll
        for (int i = 0; i < R; i++) p[i] = *(const float4*)&shared.weights[y * R + i][key];
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                float4 v = *(const float4*)&shared.rows[key + k][g * 64 + x * 4];
#pragma unroll
                for (int i = 0; i < R; i++) {
                    float w = k == 0 ? p[i].x : k == 1 ? p[i].y : k == 2 ? p[i].z : p[i].w;
                    float* sum = &sums[i][g * 4];
                    sum[0] = fmaf(w, v.x, sum[0]), sum[1] = fmaf(w, v.y, sum[1]);
                    sum[2] = fmaf(w, v.z, sum[2]), sum[3] = fmaf(w, v.w, sum[3]);
                }
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    joint_exact(const float* queries, const float* keys, const float* values, float* out) {
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    Shared& shared = *(Shared*)shared_bytes;
    let_next_start();
    wait_for_previous();
    int begin = blockIdx.x * QUERIES, head = blockIdx.y, x = threadIdx.x % 16, y = threadIdx.x / 16;
    long long at = (long long)head * TOKENS * DIM;
    load_rows(shared.queries, queries + at, begin);
    float peak[R], total[R], sums[R][GROUPS * 4] = {};
#pragma unroll
    for (int i = 0; i < R; i++) peak[i] = __uint_as_float(0xff800000u), total[i] = 0.0f;
    for (int first = 0; first < TOKENS; first += KEYS) {
        __syncthreads();
        load_rows(shared.rows, keys + at, first);
        __syncthreads();
        float s[R][C] = {};
        multiply_keys(shared, s, first);
        weigh(shared, s, peak, total, sums);
        __syncthreads();
        load_rows(shared.rows, values + at, first);
        __syncthreads();
        multiply_values(shared, sums);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        int token = begin + y * R + i;
        if (token >= TOKENS) break;
        float whole = __fdiv_rn(1.0f, total[i]);
#pragma unroll
        for (int c = 0; c < GROUPS * 4; c++) {
            int column = c / 4 * 64 + x * 4 + c % 4;
            if (column < DIM) out[((long long)token * HEADS + head) * DIM + column] = __fmul_rn(sums[i][c], whole);
        }
    }
}
