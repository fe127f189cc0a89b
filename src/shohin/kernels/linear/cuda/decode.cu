// One or two rows times low-bit weights in tiles: the matrix units multiply sign bits with bit planes of the int8
// activations, and the memory's stream of weights is never waited for twice.
//
// A block owns consecutive row tiles. Its unit of work is 16 rows x 512 columns. Before the input exists, every thread
// has started copying the weights of its first units into slots that only it will read; then the block quantises the
// input, multiplies, leaves one product a row and group of 128 in shared memory, and adds these in the order of K.
//
// Macros: K, PLANES (bits a weight), PARTS and TILES_i, N_i, COLUMN_i (weights side by side), EPILOGUE (0 store, 1 add,
// 2 swiglu: tiles of gate and up alternate), NORM, EPS, GATHER, WIDTH (values in a row of out), LIVE (rows, 1 or 2),
// THREADS, SLOTS (units in flight a warp), ROUND (tiles a round), BLOCK_TILES (tiles a block).

#include "linear/cuda/quantise.cuh"
#include "ptx.cuh"
#include "step.cuh"

constexpr int GROUPS = K / 128;
constexpr int CHUNKS = (GROUPS + 3) / 4;
constexpr int WARPS = THREADS / 32;
constexpr int VECTORS = 2 * PLANES;
// Floats between the rows of products: an odd number of 16 bytes, so that neighbouring rows lie in different banks.
constexpr int STRIDE = 4 * (CHUNKS | 1);
constexpr int ROUND_ROWS = 16 * ROUND;
// Sums a round has: for swiglu a gate row and an up row make one.
constexpr int SUMS = EPILOGUE == 2 ? ROUND_ROWS / 2 : ROUND_ROWS;
// Groups that 16 lanes each quantise one after the other.
constexpr int PASSES = (CHUNKS * 4 + THREADS / 16 - 1) / (THREADS / 16);
constexpr int ALL_TILES = EPILOGUE == 2 ? 2 * TILES_0 : TILES_0 + (PARTS > 1 ? TILES_1 : 0) + (PARTS > 2 ? TILES_2 : 0);

struct Shared {
    uint4 bits[SLOTS][WARPS][VECTORS][32];
    unsigned scales[SLOTS][WARPS][32];
    // Word w of plane p of the four groups of a chunk, at lane 4 p + w.
    uint4 planes[LIVE][CHUNKS][32];
    unsigned peaks[LIVE][CHUNKS * 4];
    int sums[LIVE][CHUNKS * 4];
    float squares[LIVE][CHUNKS * 4];
    float products[2][LIVE][ROUND_ROWS][STRIDE];
};

struct Weights {
    const uint4* bits;
    const unsigned* scales;
};

struct Place {
    int part, tile;
};

__device__ __forceinline__ Place place_of(int tile) {
    if (EPILOGUE == 2) return {tile & 1, tile >> 1};
    if (PARTS == 1 || tile < TILES_0) return {0, tile};
    if (PARTS == 2 || tile < TILES_0 + TILES_1) return {1, tile - TILES_0};
    return {2, tile - TILES_0 - TILES_1};
}

// Starts the copy of one unit into this thread's own slots; a unit past the end is an empty group of copies.
__device__ __forceinline__ void fetch(Shared& shared, const Weights (&weights)[3], int slot, int first, int unit, int units) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (unit < units) {
        Place at = place_of(first + unit / CHUNKS);
        const Weights& w = at.part == 0 ? weights[0] : at.part == 1 ? weights[1] : weights[2];
        long long index = (long long)at.tile * CHUNKS + unit % CHUNKS;
#pragma unroll
        for (int j = 0; j < VECTORS; j++)
            copy_async_16(&shared.bits[slot][warp][j][lane], w.bits + (index * VECTORS + j) * 32 + lane);
        copy_async_4(&shared.scales[slot][warp][lane], w.scales + index * 32 + lane);
    }
    copy_async_commit();
}

__device__ __forceinline__ void load_eight(float (&x)[8], const float* source) {
    float4 low = ((const float4*)source)[0], high = ((const float4*)source)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// The 8 x 8 bits of two words, transposed: byte p of the result holds bit p of each of the eight codes.
__device__ __forceinline__ uint2 bit_planes(uint2 codes) {
    unsigned long long x = (unsigned long long)codes.y << 32 | codes.x, t;
    t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aaull, x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000cccc0000ccccull, x ^= t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0ull, x ^= t ^ (t << 28);
    return make_uint2((unsigned)x, (unsigned)(x >> 32));
}

// Quantises this thread's part of one group and puts the planes where a lane finds its words of four groups together.
__device__ __forceinline__ void quantise(Shared& shared, int m, int group, const float (&x)[8], const float (&v)[8]) {
    int t = threadIdx.x % 16;
    GroupStatistics s = group_statistics(x, v);
    uint2 codes = group_codes(v, s.peak);
    int sum = group_sum(codes);
    if (group >= CHUNKS * 4) return;
    if (t == 0) {
        shared.peaks[m][group] = s.peak;
        shared.sums[m][group] = sum;
        shared.squares[m][group] = s.squares;
    }
    uint2 planes = bit_planes(codes);
    unsigned char* base = (unsigned char*)&shared.planes[m][group / 4][t / 4] + 4 * (group % 4) + t % 4;
#pragma unroll
    for (int p = 0; p < 8; p++) base[p * 64] = (unsigned char)((p < 4 ? planes.x : planes.y) >> (8 * (p % 4)));
}

// The integer sums of 16 rows and four groups. Lane l returns those of group l % 4 for rows l / 4 (x) and l / 4 + 8 (y).
__device__ __forceinline__ int2 dot(const uint4 (&a)[VECTORS], uint4 b, int sum) {
    int lane = threadIdx.x % 32;
    // Lane l's two planes weigh 4^(l % 4) and twice that; the last plane is the sign.
    int second = lane % 4 == 3 ? -2 : 2, weight = 1 << (2 * (lane % 4));
    unsigned words[4] = {b.x, b.y, b.z, b.w};
    int both[4];
#pragma unroll
    for (int g = 0; g < 4; g++) {
        uint4 high = a[g / 2];
        int c[4] = {0, 0, 0, 0};
        mma_b1(c, g % 2 ? high.z : high.x, g % 2 ? high.w : high.y, words[g]);
        if (PLANES == 2) {
            uint4 low = a[VECTORS / 2 + g / 2];
            int d[4] = {0, 0, 0, 0};
            mma_b1(d, g % 2 ? low.z : low.x, g % 2 ? low.w : low.y, words[g]);
#pragma unroll
            for (int i = 0; i < 4; i++) c[i] = 2 * c[i] + d[i];
        }
        // Two rows in one word, as a plain integer: row l / 4 plus 65,536 times row l / 4 + 8.
        both[g] = ((c[0] + second * c[1]) + (c[2] + second * c[3]) * 65536) * weight;
    }
    // Each lane keeps one of the four groups and gives the others away.
    bool upper = lane & 2, odd = lane & 1;
    int keep0 = upper ? both[2] : both[0], keep1 = upper ? both[3] : both[1];
    keep0 += __shfl_xor_sync(WHOLE_WARP, upper ? both[0] : both[2], 2);
    keep1 += __shfl_xor_sync(WHOLE_WARP, upper ? both[1] : both[3], 2);
    int keep = odd ? keep1 : keep0;
    keep += __shfl_xor_sync(WHOLE_WARP, odd ? keep0 : keep1, 1);
    // Weights are 2 bit - 1, or code - 1: the codes' sum comes off once.
    unsigned pair = (unsigned)(PLANES == 1 ? 2 : 1) * (unsigned)keep - (unsigned)sum * 65537u;
    int first = (short)(pair & 0xffffu);
    return make_int2(first, (int)(pair - (unsigned)first) >> 16);
}

__device__ __forceinline__ float add_in_order(const float* products) {
    float total = 0.0f;
#pragma unroll 8
    for (int c = 0; c < CHUNKS; c++) {
        float4 p = ((const float4*)products)[c];
        total = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(total, p.x), p.y), p.z), p.w);
    }
    return total;
}

// Where sum ``index`` of a round belongs in a row of out; -1 for a padding row.
__device__ __forceinline__ int column_of(int first_tile, int index) {
    if (EPILOGUE == 2) {
        int row = first_tile / 2 * 16 + index;
        return row < N_0 ? row : -1;
    }
    Place at = place_of(first_tile + index / 16);
    int row = at.tile * 16 + index % 16;
    int n = at.part == 0 ? N_0 : at.part == 1 ? N_1 : N_2;
    int column = at.part == 0 ? COLUMN_0 : at.part == 1 ? COLUMN_1 : COLUMN_2;
    return row < n ? column + row : -1;
}

__device__ __forceinline__ float finish(const float (&products)[ROUND_ROWS][STRIDE], int index, float old) {
    if (EPILOGUE == 2) {
        int row = index / 16 * 32 + index % 16;
        float gate = add_in_order(products[row]), up = add_in_order(products[row + 16]);
        return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate))), up);
    }
    float total = add_in_order(products[index]);
    return EPILOGUE == 1 ? __fadd_rn(old, total) : total;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    decode(const int* step, const float* x, const float* norm, float* out, const uint4* bits0, const unsigned* scales0,
           const uint4* bits1, const unsigned* scales1, const uint4* bits2, const unsigned* scales2) {
    extern __shared__ unsigned char shared_bytes[];
    Shared& shared = *(Shared*)shared_bytes;
    const Weights weights[3] = {{bits0, scales0}, {bits1, scales1}, {bits2, scales2}};
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first = blockIdx.x * BLOCK_TILES;
    int tiles = ALL_TILES - first < BLOCK_TILES ? ALL_TILES - first : BLOCK_TILES;
    int units = tiles * CHUNKS;

    let_next_start();
#pragma unroll
    for (int i = 0; i < SLOTS; i++) fetch(shared, weights, i, first, warp + i * WARPS, units);
    float w[NORM ? PASSES : 1][8];
#pragma unroll
    for (int i = 0; i < (NORM ? PASSES : 0); i++) {
        int group = threadIdx.x / 16 + i * (THREADS / 16);
        if (group < GROUPS) load_eight(w[i], norm + group * 128 + threadIdx.x % 16 * 8);
    }
    wait_for_previous();
    int live = GATHER ? step_wanted(step) : step_rows(step);
    if (live > LIVE) live = LIVE;
    if (live == 0) {
        copy_async_wait<0>();
        return;
    }

    for (int m = 0; m < live; m++) {
        const float* row = x + (long long)(GATHER ? step_row(step, m) : m) * K;
        float values[PASSES][8];
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            int group = threadIdx.x / 16 + i * (THREADS / 16);
#pragma unroll
            for (int e = 0; e < 8; e++) values[i][e] = 0.0f;
            if (group < GROUPS) load_eight(values[i], row + group * 128 + threadIdx.x % 16 * 8);
        }
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            float v[8];
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] = NORM ? __fmul_rn(values[i][e], w[NORM ? i : 0][e]) : values[i][e];
            quantise(shared, m, threadIdx.x / 16 + i * (THREADS / 16), values[i], v);
        }
    }
    __syncthreads();
    float factor[LIVE];
#pragma unroll
    for (int m = 0; m < LIVE; m++) factor[m] = NORM && m < live ? norm_factor(shared.squares[m], GROUPS, EPS) : 1.0f;

    int unit = warp, slot = 0;
    for (int round = 0; round * ROUND < tiles; round++) {
        int base = first + round * ROUND, end = (round + 1) * ROUND * CHUNKS;
        if (end > units) end = units;
        // The threads that finish change from round to round, so that no warp falls behind.
        int index = ((int)threadIdx.x + THREADS - round * SUMS % THREADS) % THREADS;
        int column = index < SUMS && index < (EPILOGUE == 2 ? tiles / 2 : tiles) * 16 - round * SUMS ? column_of(base, index) : -1;
        float old[LIVE];
#pragma unroll
        for (int m = 0; m < LIVE; m++)
            old[m] = EPILOGUE == 1 && column >= 0 && m < live ? out[(long long)m * WIDTH + column] : 0.0f;

        for (; unit < end; unit += WARPS) {
            copy_async_wait<SLOTS - 1>();
            uint4 a[VECTORS];
#pragma unroll
            for (int j = 0; j < VECTORS; j++) a[j] = shared.bits[slot][warp][j][lane];
            unsigned pair = shared.scales[slot][warp][lane];
            fetch(shared, weights, slot, first, unit + SLOTS * WARPS, units);
            slot = slot + 1 == SLOTS ? 0 : slot + 1;
            int chunk = unit % CHUNKS, group = chunk * 4 + lane % 4;
            int row = (unit / CHUNKS - round * ROUND) * 16 + lane / 4;
            float d0 = half_to_float(pair & 0xffffu), d1 = half_to_float(pair >> 16);
#pragma unroll
            for (int m = 0; m < LIVE; m++) {
                if (m >= live) break;
                int2 sum = dot(a, shared.planes[m][chunk][lane], shared.sums[m][group]);
                float s = group_scale(shared.peaks[m][group], factor[m]);
                shared.products[round & 1][m][row][group] = __fmul_rn((float)sum.x, __fmul_rn(d0, s));
                shared.products[round & 1][m][row + 8][group] = __fmul_rn((float)sum.y, __fmul_rn(d1, s));
            }
        }
        __syncthreads();
        if (column >= 0)
            for (int m = 0; m < live; m++)
                out[(long long)m * WIDTH + column] = finish(shared.products[round & 1][m], index, old[m]);
    }
    copy_async_wait<0>();
}
