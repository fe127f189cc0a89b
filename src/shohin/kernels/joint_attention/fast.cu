// Joint attention on float16 matrix units with float32 sums. A block takes 128 tokens of one head past all keys, KEYS at a
// time; a warp takes 32 of the tokens. Scores, weights and sums stay in registers: what a product of matrices leaves in a
// lane is what the next one wants there.
//
// A row's reference point, which its weights are relative to, follows its maximum only when that is more than SLACK (a
// factor of 256) above: weights then still fit float16, and sums are almost never rescaled.
//
// Macros: HEADS, TOKENS, DIM (a multiple of 16), KEYS, FACTOR (log2 e / sqrt(DIM)).

#include "ptx.cuh"

constexpr unsigned WARP = 0xffffffffu;
constexpr int THREADS = 128, QUERIES = 128, STEPS = DIM / 16, TILES = (TOKENS + KEYS - 1) / KEYS;
constexpr float SLACK = 8.0f;
// 8 more than a row needs: eight rows' 16 bytes lie in different banks.
constexpr int PITCH = DIM + 8;

struct Tile {
    unsigned short keys[KEYS][PITCH];
    unsigned short values[KEYS][PITCH];
};

struct Shared {
    unsigned short queries[QUERIES][PITCH];
    Tile tiles[2];
};

// Of rows lane / 4, + 8, + 16 and + 24 of a warp.
struct Rows {
    float peak[4], total[4];
};

using Scores = float[2][KEYS / 8][4];
using Sums = float[2][DIM / 8][4];

__device__ __forceinline__ void fetch(Tile& tile, const unsigned short* keys, const unsigned short* values, int first) {
    constexpr int PARTS = DIM / 8;
#pragma unroll
    for (int i = 0; i < KEYS * PARTS / THREADS; i++) {
        int part = threadIdx.x + i * THREADS, row = part / PARTS, column = part % PARTS * 8;
        if (TOKENS % KEYS != 0 && first + row >= TOKENS) {
            *(uint4*)&tile.keys[row][column] = make_uint4(0, 0, 0, 0);
            *(uint4*)&tile.values[row][column] = make_uint4(0, 0, 0, 0);
            continue;
        }
        long long at = (long long)(first + row) * DIM + column;
        copy_async_16(&tile.keys[row][column], keys + at);
        copy_async_16(&tile.values[row][column], values + at);
    }
    copy_async_commit();
}

__device__ __forceinline__ void load_queries(Shared& shared, const float* queries, int begin) {
    for (int i = threadIdx.x; i < QUERIES * (DIM / 4); i += THREADS) {
        int row = i / (DIM / 4), column = i % (DIM / 4) * 4;
        float4 q = make_float4(0, 0, 0, 0);
        if (begin + row < TOKENS) q = *(const float4*)(queries + (long long)(begin + row) * DIM + column);
        *(uint2*)&shared.queries[row][column] = make_uint2(pack_half2(q.x, q.y), pack_half2(q.z, q.w));
    }
}

using Operand = unsigned[4];

__device__ __forceinline__ void load_query(Operand (&a)[2], const unsigned short (&queries)[QUERIES][PITCH], int k) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; m++) load_matrix_x4(a[m], &queries[warp * 32 + m * 16 + lane % 16][k * 16 + lane / 16 * 8]);
}

// Keys 16 n and on, columns 16 k and on.
__device__ __forceinline__ void load_key(Operand& b, const Tile& tile, int k, int n) {
    int lane = threadIdx.x % 32;
    load_matrix_x4(b, &tile.keys[n * 16 + lane / 16 * 8 + lane % 8][k * 16 + lane / 8 % 2 * 8]);
}

// Keys 16 k and on, columns 16 d and on.
__device__ __forceinline__ void load_value(Operand& b, const Tile& tile, int k, int d) {
    int lane = threadIdx.x % 32;
    load_matrix_x4_transposed(b, &tile.values[k * 16 + lane % 16][d * 16 + lane / 16 * 8]);
}

// Both products load an operand while the one before it is multiplied.
__device__ __forceinline__ void multiply_keys(Scores& s, const unsigned short (&queries)[QUERIES][PITCH], const Tile& tile) {
    constexpr int PAIRS = KEYS / 16;
    Operand a[2][2], b[2];
    load_query(a[0], queries, 0);
    load_key(b[0], tile, 0, 0);
#pragma unroll
    for (int i = 0; i < STEPS * PAIRS; i++) {
        int k = i / PAIRS, n = i % PAIRS;
        if (i + 1 < STEPS * PAIRS) load_key(b[(i + 1) % 2], tile, (i + 1) / PAIRS, (i + 1) % PAIRS);
        if (n == 0 && k + 1 < STEPS) load_query(a[(k + 1) % 2], queries, k + 1);
        const unsigned left[2] = {b[i % 2][0], b[i % 2][1]}, right[2] = {b[i % 2][2], b[i % 2][3]};
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mma_f16(s[m][2 * n], a[k % 2][m], left);
            mma_f16(s[m][2 * n + 1], a[k % 2][m], right);
        }
    }
}

// Moves reference points that have been left behind, and turns scores into weights.
__device__ __forceinline__ void weigh(Scores& s, Rows& rows, Sums& sums, int first) {
    int lane = threadIdx.x % 32;
    float old[4];
    bool moved = false;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        float top = __uint_as_float(0xff800000u);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = r % 2 * 2; i < r % 2 * 2 + 2; i++) {
                if (TOKENS % KEYS != 0 && first + n * 8 + lane % 4 * 2 + i % 2 >= TOKENS)
                    s[r / 2][n][i] = __uint_as_float(0xff800000u);
                top = fmaxf(top, s[r / 2][n][i]);
            }
        top = fmaxf(top, __shfl_xor_sync(WARP, top, 1));
        top = __fmul_rn(fmaxf(top, __shfl_xor_sync(WARP, top, 2)), FACTOR);
        old[r] = 1.0f;
        if (top > rows.peak[r] + SLACK) {
            old[r] = fast_exp2(rows.peak[r] - top);
            rows.peak[r] = top, moved = true;
        }
    }
    if (__any_sync(WARP, moved)) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            rows.total[r] = __fmul_rn(rows.total[r], old[r]);
#pragma unroll
            for (int d = 0; d < DIM / 8; d++)
#pragma unroll
                for (int i = r % 2 * 2; i < r % 2 * 2 + 2; i++) sums[r / 2][d][i] = __fmul_rn(sums[r / 2][d][i], old[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = r % 2 * 2; i < r % 2 * 2 + 2; i++) {
                float p = fast_exp2(fmaf(s[r / 2][n][i], FACTOR, -rows.peak[r]));
                s[r / 2][n][i] = p;
                rows.total[r] = __fadd_rn(rows.total[r], p);
            }
}

__device__ __forceinline__ void multiply_values(Sums& sums, const Scores& p, const Tile& tile) {
    constexpr int PAIRS = DIM / 16, COUNT = KEYS / 16 * PAIRS;
    Operand a[2], b[2];
    load_value(b[0], tile, 0, 0);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int k = i / PAIRS, d = i % PAIRS;
        if (i + 1 < COUNT) load_value(b[(i + 1) % 2], tile, (i + 1) / PAIRS, (i + 1) % PAIRS);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (d != 0) break;
            const float* pair = &p[j / 4][2 * k + j % 4 / 2][j % 2 * 2];
            a[j / 4][j % 4] = pack_half2(pair[0], pair[1]);
        }
        const unsigned left[2] = {b[i % 2][0], b[i % 2][1]}, right[2] = {b[i % 2][2], b[i % 2][3]};
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mma_f16(sums[m][2 * d], a[m], left);
            mma_f16(sums[m][2 * d + 1], a[m], right);
        }
    }
}

__device__ __forceinline__ void store(const Sums& sums, const Rows& rows, float* out, int begin, int head) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        float total = __fadd_rn(rows.total[r], __shfl_xor_sync(WARP, rows.total[r], 1));
        total = __fadd_rn(total, __shfl_xor_sync(WARP, total, 2));
        float whole = __fdiv_rn(1.0f, total);
        int token = begin + warp * 32 + r * 8 + lane / 4;
        if (token >= TOKENS) continue;
        float* to = out + ((long long)token * HEADS + head) * DIM + lane % 4 * 2;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            const float* sum = &sums[r / 2][d][r % 2 * 2];
            *(float2*)(to + d * 8) = make_float2(__fmul_rn(sum[0], whole), __fmul_rn(sum[1], whole));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    joint_fast(const float* queries, const unsigned short* halves, float* out) {
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    Shared& shared = *(Shared*)shared_bytes;
    let_next_start();
    wait_for_previous();
    int begin = blockIdx.x * QUERIES, head = blockIdx.y;
    long long at = (long long)head * TOKENS * DIM;
    const unsigned short *keys = halves + at, *values = keys + (long long)HEADS * TOKENS * DIM;
    fetch(shared.tiles[0], keys, values, 0);
    load_queries(shared, queries + at, begin);
    Rows rows;
    Sums sums = {};
#pragma unroll
    for (int r = 0; r < 4; r++) rows.peak[r] = __uint_as_float(0xff800000u), rows.total[r] = 0.0f;
    for (int t = 0; t < TILES; t++) {
        copy_async_wait<0>();
        __syncthreads();
        if (t + 1 < TILES) fetch(shared.tiles[(t + 1) % 2], keys, values, (t + 1) * KEYS);
        const Tile& tile = shared.tiles[t % 2];
        Scores s = {};
        multiply_keys(s, shared.queries, tile);
        weigh(s, rows, sums, t * KEYS);
        multiply_values(sums, s, tile);
    }
    store(sums, rows, out, begin, head);
}
