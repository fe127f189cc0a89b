// Tiles of one or two bit planes: a block multiplies a tile of 16 rows of weights with PASS rows of x. Exact mode: warps
// share the chunks of K; the signed sum of a group is multiplied by its scale once, groups are added in float32, warps in
// order. int8 (where gate and up differ in layout): one warp, groups in order of K, as every other family does it.
//
// Macros: PLANES, INT8, PASS, WARPS and those of plain_out.cuh.

#include "linear/cuda/blocks.cuh"
#include "linear/cuda/plain_out.cuh"

constexpr int PART_WORDS = 2 * PLANES;

// Bits of a lane: its 32 weights of group g in two rows, low and high plane the same word where PLANES is 1.
struct Words {
    unsigned high[2], low[2];
};

__device__ __forceinline__ void row_words(unsigned (&words)[2], const uint4& pair, int g) {
    words[0] = g % 2 ? pair.z : pair.x;
    words[1] = g % 2 ? pair.w : pair.y;
}

__device__ __forceinline__ Words group_words(const uint4 (&bits)[PART_WORDS], int g) {
    Words words;
    row_words(words.high, bits[g / 2], g);
    row_words(words.low, bits[PART_WORDS - 2 + g / 2], g);
    return words;
}

// Codes 4i to 4i + 3 of a lane's row as int8: -1 and 1, or -1 to 2.
__device__ __forceinline__ unsigned four_codes(const Words& words, int row, int i) {
    unsigned high = spread_bits(words.high[row] >> 4 * i & 15) << 1;
    if constexpr (PLANES == 1) return lowered<1>(high);
    return lowered<1>(high | spread_bits(words.low[row] >> 4 * i & 15));
}

__device__ __forceinline__ float code_value(unsigned codes, int b) { return (float)(signed char)(codes >> 8 * b & 255); }

template <typename Number>
__device__ __forceinline__ Number over_quad(Number value) {
    value += __shfl_xor_sync(WHOLE_WARP, value, 1);
    value += __shfl_xor_sync(WHOLE_WARP, value, 2);
    return value;
}

// One group's share of the sums: exact.
__device__ __forceinline__ void add_exact(float (&sums)[2][PASS], const Words& words, const float (&scale)[2],
                                          const Rows& rows, int group, int live) {
    float parts[2][PASS] = {};
    int q = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        unsigned codes[2] = {four_codes(words, 0, i), four_codes(words, 1, i)};
#pragma unroll
        for (int m = 0; m < PASS; m++) {
            if (m >= live) break;
            float4 x = reinterpret_cast<const float4*>(rows.row(m).values)[32 * group + 4 * i + q];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float sum = fmaf(code_value(codes[r], 0), x.x, parts[r][m]);
                sum = fmaf(code_value(codes[r], 1), x.y, sum);
                sum = fmaf(code_value(codes[r], 2), x.z, sum);
                parts[r][m] = fmaf(code_value(codes[r], 3), x.w, sum);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < PASS; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) sums[r][m] = fmaf(scale[r], over_quad(parts[r][m]), sums[r][m]);
}

// One group's share of the sums: integer sum, then the two scales.
__device__ __forceinline__ void add_codes(float (&sums)[2][PASS], const Words& words, const float (&scale)[2],
                                          const Rows& rows, int group, int live) {
    int q = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < PASS; m++) {
        if (m >= live) break;
        RowPlace row = rows.row(m);
        const uint4* units = reinterpret_cast<const uint4*>(row.values) + 8 * group + q;
        uint4 a = units[0], b = units[4];
        unsigned codes[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int sum = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) sum = __dp4a((int)four_codes(words, r, i), (int)codes[i], sum);
            float whole = (float)over_quad(sum);
            sums[r][m] = __fadd_rn(sums[r][m], __fmul_rn(whole, __fmul_rn(scale[r], row.scales[group])));
        }
    }
}

// The sums of one tile, [16][PASS] in shared memory.
__device__ __forceinline__ void project_tile(float (*total)[PASS], const unsigned char* data,
                                             const unsigned char* scales, int tile, const Rows& rows, int live,
                                             int width) {
    __shared__ float parts[WARPS][16][PASS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunks = (width + 511) / 512;
    float sums[2][PASS] = {};
    for (int c = warp; c < chunks; c += WARPS) {
        long long at = (long long)tile * chunks + c;
        uint4 bits[PART_WORDS];
#pragma unroll
        for (int j = 0; j < PART_WORDS; j++) bits[j] = reinterpret_cast<const uint4*>(data)[(at * PART_WORDS + j) * 32 + lane];
        unsigned pair = reinterpret_cast<const unsigned*>(scales)[at * 32 + lane];
#pragma unroll
        for (int g = 0; g < 4; g++) {
            unsigned both = __shfl_sync(WHOLE_WARP, pair, (lane & ~3) | g);
            if (4 * c + g >= width / 128) break;
            float scale[2] = {half_to_float((unsigned short)both), half_to_float((unsigned short)(both >> 16))};
            if constexpr (INT8)
                add_codes(sums, group_words(bits, g), scale, rows, 4 * c + g, live);
            else
                add_exact(sums, group_words(bits, g), scale, rows, 4 * c + g, live);
        }
    }
    __syncthreads();
    if (lane % 4 == 0)
#pragma unroll
        for (int m = 0; m < PASS; m++) parts[warp][lane / 4][m] = sums[0][m], parts[warp][lane / 4 + 8][m] = sums[1][m];
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * PASS; i += 32 * WARPS) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum = __fadd_rn(sum, parts[w][i / PASS][i % PASS]);
        total[i / PASS][i % PASS] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    multiply_tiles(const unsigned char* data0, const unsigned char* data1, const unsigned char* data2,
                   const unsigned char* scales0, const unsigned char* scales1, const unsigned char* scales2, int rows0,
                   int rows1, int rows2, unsigned char* values, float* scales, float* sums, float* out, const int* step,
                   int width, int value_stride, int scale_stride, int sum_stride, int out_width, int column) {
    __shared__ float total[2][16][PASS];
    let_next_start();
    wait_for_previous();
    int begin = blockIdx.y * PASS, live = live_rows(step) - begin;
    if (live <= 0) return;
    live = live < PASS ? live : PASS;
    Rows rows = {{values, scales, sums}, value_stride, scale_stride, sum_stride};
    rows.at = rows.row(begin);
    Matrices matrices = {{data0, data1, data2}, {scales0, scales1, scales2}, {rows0, rows1, rows2}};
    Part part = part_of(matrices, blockIdx.x, 16);
    project_tile(total[0], part.data, part.scales, part.first / 16, rows, live, width);
    if constexpr (EPILOGUE == SWIGLU) project_tile(total[1], data1, scales1, part.first / 16, rows, live, width);
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * PASS; i += 32 * WARPS) {
        int n = part.first + i / PASS, m = i % PASS;
        if (n < part.rows && m < live)
            put_sum(out + (long long)(begin + m) * out_width + column + part.column + n, total[0][i / PASS][m],
                    EPILOGUE == SWIGLU ? total[1][i / PASS][m] : 0.0f);
    }
}
