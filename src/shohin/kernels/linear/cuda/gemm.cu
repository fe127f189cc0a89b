// Many rows times low-bit weights in tiles: int8 matrix units, weights unpacked in registers.
//
// A tile of work is TILES x 16 outputs of 8 NT rows ("tokens"): WM warps with MT tiles of weights each. A block takes
// every gridDim.x-th; those of one row of tokens come one after the other. Codes, weight bits and scales of the next
// STAGE_GROUPS groups of 128 come through a ring in shared memory, which runs on from one tile of work to the next,
// all of it in the order in which lanes read it. WK = 1: a warp takes all groups and adds each group's product to its
// sums. WK > 1, where there are too few outputs to fill the chip: WK warps take one tile's groups in turn and leave
// the products in shared memory, where they are added one stage later, in the order of K: the sums are the same bits
// either way.
//
// Macros: PLANES (bits a weight), PARTS (weights side by side), EPILOGUE (0 store, 1 add, 2 swiglu: tiles of gate and
// up alternate), NORM (sums are multiplied by the row's factor), GATHER, MT, NT, WM, WK, STAGE_GROUPS, STAGES, MIN_BLOCKS (blocks that a multiprocessor shall hold).

#include "linear/cuda/whole.cuh"
#include "ptx.cuh"
#include "step.cuh"

constexpr int THREADS = 32 * WM * WK, TILES = WM * MT, TOKENS = 8 * NT, PAIRS = STAGE_GROUPS / 2;
// Groups of a stage that one warp takes; of a pair, both or one.
constexpr int OWN_GROUPS = STAGE_GROUPS / WK, OWN_PAIRS = OWN_GROUPS > 1 ? OWN_GROUPS / 2 : 1;
constexpr int OWN_HALVES = OWN_GROUPS > 1 ? 2 : 1;
// Columns of tiles whose sums a warp keeps.
constexpr int OWN_COLUMNS = (NT + WK - 1) / WK;
static_assert(OWN_GROUPS * WK == STAGE_GROUPS && (EPILOGUE != 2 || MT == 2), "whole groups, and gate beside up");

struct Stage {
    uint4 codes[PAIRS][TOKENS][16];
    uint4 bits[TILES][PAIRS][PLANES][32];
    float4 records[STAGE_GROUPS][TOKENS / 2];
    unsigned scales[TILES][32];
};

struct Shared {
    Stage stages[STAGES];
    float4 products[WK > 1 ? 2 : 1][WK > 1 ? STAGE_GROUPS : 1][WK > 1 ? WM * NT : 1][MT][32];
    // Where the weights of this tile of work and of the next begin.
    const uint4* bits[2][TILES];
    const unsigned* scales[2][TILES];
};

struct Part {
    const uint4* bits;
    const unsigned* scales;
    int rows, column;
};

struct Place {
    int part, tile;
};

__device__ __forceinline__ Place place_of(const Part (&parts)[3], int tile) {
    if (EPILOGUE == 2) return {tile & 1, tile >> 1};
    int part = 0;
#pragma unroll
    for (int i = 0; i < PARTS - 1; i++) {
        int tiles = (parts[i].rows + 15) / 16;
        if (part < i || tile < tiles) break;
        part = i + 1, tile -= tiles;
    }
    return {part, tile};
}

// Where the weights of work that begins with ``first`` lie; tiles past the end repeat the last one.
__device__ __forceinline__ void find_weights(Shared& shared, const Part (&parts)[3], int work, int first, int tiles,
                                             int chunks) {
    if (threadIdx.x >= TILES) return;
    int tile = first + threadIdx.x;
    Place place = place_of(parts, tile < tiles ? tile : tiles - 1);
    const Part& part = place.part == 0 ? parts[0] : place.part == 1 ? parts[1] : parts[2];
    shared.bits[work][threadIdx.x] = part.bits + (long long)place.tile * chunks * (PLANES * 64);
    shared.scales[work][threadIdx.x] = part.scales + (long long)place.tile * chunks * 32;
}

// COUNT units of 16 bytes that lie side by side on both sides.
template <int COUNT>
__device__ __forceinline__ void copy_units(uint4* target, const uint4* source) {
#pragma unroll
    for (int i = 0; i < (COUNT + THREADS - 1) / THREADS; i++) {
        int unit = threadIdx.x + i * THREADS;
        if (COUNT % THREADS == 0 || unit < COUNT) copy_async_16(target + unit, source + unit);
    }
}

// Weights of one stage; chunks of 512 columns lie [chunk][plane][pair][lane].
__device__ __forceinline__ void fetch_weights(Shared& shared, int slot, int work, int stage) {
    Stage& target = shared.stages[slot];
    constexpr int COUNT = TILES * PAIRS * PLANES * 32;
#pragma unroll
    for (int i = 0; i < (COUNT + THREADS - 1) / THREADS; i++) {
        int unit = threadIdx.x + i * THREADS;
        if (COUNT % THREADS != 0 && unit >= COUNT) break;
        int lane = unit % 32, plane = unit / 32 % PLANES, own = unit / (32 * PLANES) % PAIRS;
        int tile = unit / (32 * PLANES * PAIRS), pair = stage * PAIRS + own;
        int place = plane * 64 + pair % 2 * 32 + lane;
        const uint4* source = shared.bits[work][tile] + (long long)(pair / 2) * (PLANES * 64) + place;
        copy_async_16(&target.bits[tile][own][plane][lane], source);
    }
#pragma unroll
    for (int i = 0; i < (TILES * 8 + THREADS - 1) / THREADS; i++) {
        int unit = threadIdx.x + i * THREADS;
        if (unit >= TILES * 8) break;
        int chunk = stage * STAGE_GROUPS / 4, place = unit % 8 * 4;
        copy_async_16(&target.scales[unit / 8][place], shared.scales[work][unit / 8] + (long long)chunk * 32 + place);
    }
}

__device__ __forceinline__ void fetch_rows(Shared& shared, int slot, int stage, const uint4* codes,
                                           const float4* records, int first, int capacity) {
    Stage& target = shared.stages[slot];
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
        copy_units<TOKENS * 16>(target.codes[p][0], codes + ((long long)(stage * PAIRS + p) * capacity + first) * 16);
    constexpr int COUNT = STAGE_GROUPS * (TOKENS / 2);
#pragma unroll
    for (int i = 0; i < (COUNT + THREADS - 1) / THREADS; i++) {
        int unit = threadIdx.x + i * THREADS;
        if (COUNT % THREADS != 0 && unit >= COUNT) break;
        int group = unit / (TOKENS / 2), token = unit % (TOKENS / 2);
        const float4* source = records + ((long long)(stage * STAGE_GROUPS + group) * capacity + first) / 2 + token;
        copy_async_16(&target.records[group][token], source);
    }
}

// The codes of one lane's 32 weights: byte b of register i is weight 8 b + i, times 2 for one bit, 0 to 3 for two.
__device__ __forceinline__ void unpack(unsigned (&codes)[8], unsigned high, unsigned low) {
    if (PLANES == 1) {
        codes[0] = high << 1 & 0x02020202u;
#pragma unroll
        for (int i = 1; i < 8; i++) codes[i] = high >> (i - 1) & 0x02020202u;
        return;
    }
    // Two-bit codes of the even and of the odd weights, then a shift for every second.
    unsigned even = (low & 0x55555555u) | (high << 1 & 0xaaaaaaaau);
    unsigned odd = (low >> 1 & 0x55555555u) | (high & 0xaaaaaaaau);
#pragma unroll
    for (int i = 0; i < 8; i += 2) codes[i] = even >> i & 0x03030303u, codes[i + 1] = odd >> i & 0x03030303u;
}

// A fragments of one group: of tile mt, step s.
using Fragments = unsigned[MT][4][4];

__device__ __forceinline__ void unpack_tiles(Fragments& a, const uint4 (&raw)[MT][PLANES], int half) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
        const uint4 &high = raw[mt][0], &low = raw[mt][PLANES - 1];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            unsigned codes[8];
            unsigned first = r ? high.y : high.x, second = r ? high.w : high.z;
            unsigned first_low = r ? low.y : low.x, second_low = r ? low.w : low.z;
            unpack(codes, half ? second : first, half ? second_low : first_low);
#pragma unroll
            for (int s = 0; s < 4; s++) a[mt][s][r] = codes[2 * s], a[mt][s][r + 2] = codes[2 * s + 1];
        }
    }
}

// Four outputs of a lane: rows l / 4 (x, y) and l / 4 + 8 (z, w) of a tile, tokens 2 (l % 4) (x, z) and the next.
using Sums = float[MT][OWN_COLUMNS][4];

// One group's products of all tiles of this warp: added to the sums, or left for later.
__device__ __forceinline__ void multiply_group(Shared& shared, const Stage& stage, Sums& sums, const Fragments& a,
                                               const float (&d)[MT][2], int pair, int half, int parity) {
    int warp = threadIdx.x / 32 % WM, lane = threadIdx.x % 32;
    const uint4* codes = &stage.codes[pair][lane / 4][half * 8 + lane % 4 * 2];
    int swap = lane / 4 % 2;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        uint4 b0 = codes[nt * 128 + swap], b1 = codes[nt * 128 + (swap ^ 1)];
        float4 record = stage.records[pair * 2 + half][nt * 4 + lane % 4];
        const unsigned b[4][2] = {{b0.x, b0.y}, {b0.z, b0.w}, {b1.x, b1.y}, {b1.z, b1.w}};
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            int c[4] = {WHOLE_BITS, WHOLE_BITS, WHOLE_BITS, WHOLE_BITS};
#pragma unroll
            for (int s = 0; s < 4; s++) mma_s8(c, a[mt][s], b[s]);
            float product[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float scale = __fmul_rn(d[mt][i / 2], i % 2 ? record.y : record.x);
                product[i] = __fmul_rn(__fsub_rn(__int_as_float(c[i]), i % 2 ? record.w : record.z), scale);
            }
            if (WK == 1) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sums[mt][nt % OWN_COLUMNS][i] = __fadd_rn(sums[mt][nt % OWN_COLUMNS][i], product[i]);
            } else {
                shared.products[parity][pair * 2 + half][warp * NT + nt][mt][lane] =
                    make_float4(product[0], product[1], product[2], product[3]);
            }
        }
    }
}

__device__ __forceinline__ void multiply(Shared& shared, Sums& sums, int slot, int index, int parity) {
    int warp = threadIdx.x / 32 % WM, share = threadIdx.x / (32 * WM), lane = threadIdx.x % 32;
    const Stage& stage = shared.stages[slot];
#pragma unroll 1
    for (int p = 0; p < OWN_PAIRS; p++) {
        int pair = OWN_GROUPS > 1 ? share * OWN_PAIRS + p : share / 2;
        uint4 raw[MT][PLANES];
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int plane = 0; plane < PLANES; plane++) raw[mt][plane] = stage.bits[warp * MT + mt][pair][plane][lane];
#pragma unroll
        for (int h = 0; h < OWN_HALVES; h++) {
            int half = OWN_GROUPS > 1 ? h : share % 2;
            int group = (index * STAGE_GROUPS + pair * 2 + half) & 3;
            float d[MT][2];
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                unsigned both = stage.scales[warp * MT + mt][lane / 4 * 4 + group];
                d[mt][0] = half_to_float((unsigned short)both), d[mt][1] = half_to_float((unsigned short)(both >> 16));
            }
            Fragments a;
            unpack_tiles(a, raw, half);
            multiply_group(shared, stage, sums, a, d, pair, half, parity);
        }
    }
}

// The products of a stage, group by group in the order of K.
__device__ __forceinline__ void add_products(const Shared& shared, Sums& sums, int parity) {
    int warp = threadIdx.x / 32 % WM, share = threadIdx.x / (32 * WM), lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < OWN_COLUMNS; j++) {
        int nt = share + j * WK;
        if (NT % WK != 0 && nt >= NT) break;
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int g = 0; g < STAGE_GROUPS; g++) {
                float4 p = shared.products[parity][g][warp * NT + nt][mt][lane];
                sums[mt][j][0] = __fadd_rn(sums[mt][j][0], p.x), sums[mt][j][1] = __fadd_rn(sums[mt][j][1], p.y);
                sums[mt][j][2] = __fadd_rn(sums[mt][j][2], p.z), sums[mt][j][3] = __fadd_rn(sums[mt][j][3], p.w);
            }
    }
}

__device__ __forceinline__ void store(const Sums& sums, const Part (&parts)[3], const float* factors, float* out,
                                      int width, int first_tile, int tiles, int first, int live) {
    int warp = threadIdx.x / 32 % WM, share = threadIdx.x / (32 * WM), lane = threadIdx.x % 32;
#pragma unroll
    for (int mt = 0; mt < (EPILOGUE == 2 ? 1 : MT); mt++) {
        int tile = first_tile + warp * MT + mt;
        if (tile >= tiles) break;
        Place place = place_of(parts, tile);
        const Part& part = place.part == 0 ? parts[0] : place.part == 1 ? parts[1] : parts[2];
#pragma unroll
        for (int j = 0; j < OWN_COLUMNS; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int nt = share + j * WK;
                int row = place.tile * 16 + lane / 4 + i / 2 * 8, token = first + nt * 8 + lane % 4 * 2 + i % 2;
                if (nt >= NT || row >= part.rows || token >= live) continue;
                float* target = out + (long long)token * width + part.column + row;
                float factor = NORM ? factors[token] : 1.0f, sum = sums[mt][j][i];
                if (NORM) sum = __fmul_rn(sum, factor);
                if (EPILOGUE == 1) sum = __fadd_rn(*target, sum);
                if (EPILOGUE == 2) {
                    float up = NORM ? __fmul_rn(sums[MT - 1][j][i], factor) : sums[MT - 1][j][i];
                    sum = __fmul_rn(__fdiv_rn(sum, __fadd_rn(1.0f, expf(-sum))), up);
                }
                *target = sum;
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    gemm(const int* step, const uint4* codes, const float4* records, const float* factors, float* out, const uint4* bits0,
         const unsigned* scales0, const uint4* bits1, const unsigned* scales1, const uint4* bits2,
         const unsigned* scales2, int rows0, int rows1, int rows2, int column, int width, int groups, int tiles,
         int capacity) {
    extern __shared__ unsigned char shared_bytes[];
    Shared& shared = *(Shared*)shared_bytes;
    const Part parts[3] = {{bits0, scales0, rows0, column},
                           {bits1, scales1, rows1, EPILOGUE == 2 ? column : column + rows0},
                           {bits2, scales2, rows2, column + rows0 + rows1}};
    int chunks = (groups + 3) / 4, count = (groups + STAGE_GROUPS - 1) / STAGE_GROUPS;
    int across = (tiles + TILES - 1) / TILES;
    let_next_start();
    find_weights(shared, parts, 0, (int)blockIdx.x % across * TILES, tiles, chunks);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        if (i < count) fetch_weights(shared, i, 0, i);
    wait_for_previous();
    int live = GATHER ? step_wanted(step) : step_rows(step);
    int all = (live + TOKENS - 1) / TOKENS * across;
    if (blockIdx.x >= all) {
        copy_async_wait<0>();
        return;
    }
    int next_first = (int)blockIdx.x / across * TOKENS;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < count) fetch_rows(shared, i, i, codes, records, next_first, capacity);
        copy_async_commit();
    }
    // The stage that is fetched next, of the work that it belongs to.
    int next_work = 0, next_stage = STAGES - 1, next_tile = blockIdx.x, slot = 0, parity = 0;
    for (int tile = blockIdx.x, work = 0; tile < all; tile += gridDim.x, work ^= 1) {
        Sums sums = {};
        for (int i = 0; i < count; i++) {
            copy_async_wait<STAGES - 2>();
            __syncthreads();
            // A barrier comes before they are used: there is more than one tile of work only where count >= STAGES.
            if (i == 0) find_weights(shared, parts, work ^ 1, (int)(tile + gridDim.x) % across * TILES, tiles, chunks);
            if (next_stage >= count) {
                next_stage -= count, next_work ^= 1, next_tile += gridDim.x;
                next_first = next_tile / across * TOKENS;
            }
            if (next_tile < all) {
                // The slot that the last stage has left.
                int next = slot == 0 ? STAGES - 1 : slot - 1;
                fetch_weights(shared, next, next_work, next_stage);
                fetch_rows(shared, next, next_stage, codes, records, next_first, capacity);
            }
            copy_async_commit();
            next_stage++;
            if (WK > 1 && i > 0) add_products(shared, sums, parity ^ 1);
            multiply(shared, sums, slot, i, parity);
            slot = slot + 1 == STAGES ? 0 : slot + 1, parity ^= 1;
        }
        if (WK > 1) {
            __syncthreads();
            add_products(shared, sums, parity ^ 1);
        }
        store(sums, parts, factors, out, width, tile % across * TILES, tiles, tile / across * TOKENS, live);
    }
    copy_async_wait<0>();
}
