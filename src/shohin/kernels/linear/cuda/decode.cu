// A few rows times low-bit weights in tiles, while the memory's stream of weights never stops.
//
// A block owns consecutive row tiles. Its unit of work is 16 rows x 512 columns, and a warp's units are those of one chunk
// of columns (of PASSES chunks where there are more than warps), so that all it needs of the input is that chunk. Before
// the input exists, every thread has started copying the weights of its first units into slots that only it will read;
// then its warp quantises its chunk (decode_input.cuh) and leaves a product for every row and group of 128 in shared
// memory (decode_dot.cuh). After the block's only barrier a round these are added in the order of K. Integer sums are
// exact, so the bits of a row depend neither on how many rows there are nor on which matrix units make the sums.
// The factor of RMSNorm comes last.
//
// Macros: K, PLANES (bits a weight), PARTS and TILES_i, N_i, COLUMN_i (weights side by side), EPILOGUE (0 store, 1 add,
// 2 swiglu: tiles of gate and up alternate), NORM, EPS, GATHER (row i of out belongs to the step's wanted row i), WIDTH
// (values in a row of out), CAPACITY (rows, at most 8), BINARY (1-bit matrix units, else int8), CHUNK_WARPS (warps side
// by side along K), SHARES (warps that share a chunk, taking tiles in turn), MIN_BLOCKS, SLOTS (units in flight a warp),
// ROUND (tiles a round, SHARES divides it), BLOCK_TILES (tiles a block).

#include "linear/cuda/decode_dot.cuh"
#include "step.cuh"

constexpr int WARPS = CHUNK_WARPS * SHARES, THREADS = 32 * WARPS;
constexpr int PASSES = (CHUNKS + CHUNK_WARPS - 1) / CHUNK_WARPS;
constexpr int STEP = EPILOGUE == 2 ? 2 : 1;
constexpr int ALL_TILES = EPILOGUE == 2 ? 2 * TILES_0 : TILES_0 + (PARTS > 1 ? TILES_1 : 0) + (PARTS > 2 ? TILES_2 : 0);
constexpr int ROUND_ROWS = 16 * ROUND, OWN_TILES = ROUND / SHARES, ROUNDS = (BLOCK_TILES + ROUND - 1) / ROUND;
// 16-byte items between the products of two rows of the input: one more than a multiple of 4, for the banks.
constexpr int STRIDE = ROUND * CHUNKS * 16 + 1;
constexpr int BUFFERS = ROUNDS > 1 ? 2 : 1;
// All of a block's units are in flight from the start.
constexpr bool WHOLE = SLOTS >= ROUNDS * OWN_TILES * PASSES;
// A warp's units are those of one chunk of one weight, equally far apart in memory.
constexpr bool UNIFORM = PASSES == 1 && PARTS == 1 && SHARES % STEP == 0;
constexpr int APART = SHARES / STEP * CHUNKS;
// Sums that a thread makes in a round.
constexpr int FINISHES = (CAPACITY * ROUND_ROWS + THREADS - 1) / THREADS;
// Rows whose input is loaded before the first is quantised.
constexpr int BATCH = CAPACITY % 2 == 0 ? 2 : 1;
static_assert(ROUND % SHARES == 0, "warps that share a chunk have as many tiles of a round each");
static_assert(EPILOGUE != 2 || (ROUND % 2 == 0 && BLOCK_TILES % 2 == 0), "a tile of gate and its tile of up stay together");

struct Shared {
    uint4 bits[SLOTS][WARPS][VECTORS][32];
    unsigned scales[SLOTS][WARPS][32];
    float4 products[BUFFERS][CAPACITY][STRIDE];
    float squares[CAPACITY][PADDED];
    float factors[CAPACITY];
#if BINARY
    alignas(16) Input input;
#else
    alignas(16) Staged staged[PASSES * CHUNK_WARPS];
#endif
};

struct Weights {
    const uint4* bits[3];
    const unsigned* scales[3];
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

// A warp's units in order: round by round, pass by pass, tile by tile.
struct Turn {
    int tile, chunk;
};

__device__ __forceinline__ Turn turn_of(int unit) {
    int warp = threadIdx.x / 32, own = unit % OWN_TILES, pass = unit / OWN_TILES % PASSES;
    int round = unit / (OWN_TILES * PASSES);
    return {round * ROUND + own * SHARES + warp / CHUNK_WARPS, pass * CHUNK_WARPS + warp % CHUNK_WARPS};
}

// This thread's part of a unit: 16 bytes of bits (VECTORS times, 512 bytes apart) and a pair of scales.
struct Source {
    const uint4* bits;
    const unsigned* scales;
};

__device__ __forceinline__ Source source_of(const Weights& weights, int tile, int chunk) {
    Place at = place_of(tile);
    long long index = (long long)at.tile * CHUNKS + chunk;
    const uint4* bits = at.part == 0 ? weights.bits[0] : at.part == 1 ? weights.bits[1] : weights.bits[2];
    const unsigned* scales = at.part == 0 ? weights.scales[0] : at.part == 1 ? weights.scales[1] : weights.scales[2];
    return {bits + index * (VECTORS * 32) + threadIdx.x % 32, scales + index * 32 + threadIdx.x % 32};
}

// What a block multiplies by, and where this warp's units begin.
struct Work {
    Weights weights;
    Source source;
    int first, tiles, units;
};

// Starts the copy of one of this warp's units into this thread's own slots; one past the end is an empty group of copies.
__device__ __forceinline__ void fetch(Shared& shared, const Work& work, int slot, int unit) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Turn turn = turn_of(unit);
    if (UNIFORM ? unit < work.units : turn.tile < work.tiles && (CHUNKS % CHUNK_WARPS == 0 || turn.chunk < CHUNKS)) {
        Source source = work.source;
        if (UNIFORM)
            source.bits += unit * (APART * VECTORS * 32), source.scales += unit * (APART * 32);
        else
            source = source_of(work.weights, work.first + turn.tile, turn.chunk);
#pragma unroll
        for (int j = 0; j < VECTORS; j++) copy_async_16(&shared.bits[slot][warp][j][lane], source.bits + j * 32);
        copy_async_4(&shared.scales[slot][warp][lane], source.scales);
    }
    copy_async_commit();
}

// The oldest of this thread's units.
__device__ __forceinline__ Unit take(const Shared& shared, int slot) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Unit unit;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) unit.bits[j] = shared.bits[slot][warp][j][lane];
    unit.scales = shared.scales[slot][warp][lane];
    return unit;
}

// What this warp multiplies its weights by, where it is kept in registers.
struct Operand {
#if BINARY
    Columns columns[PASSES][CAPACITY];
#endif
};

__device__ __forceinline__ void quantise_row(Shared& shared, Operand& operand, int pass, int m, const Values& x,
                                             const Values& norm) {
    int warp = threadIdx.x / 32, chunk = pass * CHUNK_WARPS + warp % CHUNK_WARPS, half = warp / CHUNK_WARPS;
    Values v;
#pragma unroll
    for (int g = 0; g < OWN; g++)
#pragma unroll
        for (int e = 0; e < 4; e++) v[g][e] = NORM ? __fmul_rn(x[g][e], norm[g][e]) : x[g][e];
    if (NORM) put_squares(shared.squares[m], x, chunk * 4 + half * OWN);
    Codes codes = quantise_groups(v);
#if BINARY
    exchange_planes(codes.words);
    if (!ALONE) return put_half(shared.input, m, chunk, half, codes);
    operand.columns[pass][m].offset = codes.offset, operand.columns[pass][m].scale = codes.scale;
#pragma unroll
    for (int g = 0; g < OWN; g++) operand.columns[pass][m].words[g] = codes.words[g];
#else
    put_row(shared.staged[chunk], m, half, codes);
#endif
}

// This warp's groups of all live rows; weights are the norm's of the first pass.
__device__ __forceinline__ void quantise(Shared& shared, Operand& operand, const int* step, const float* x,
                                         const float* norm, Values& weights, int live) {
    int warp = threadIdx.x / 32, half = warp / CHUNK_WARPS;
    if (half >= HALVES) return;
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        int chunk = pass * CHUNK_WARPS + warp % CHUNK_WARPS, group = chunk * 4 + half * OWN;
        if (CHUNKS % CHUNK_WARPS != 0 && chunk >= CHUNKS) break;
        if (NORM && pass > 0) load_groups(weights, norm, group);
#if BINARY
#pragma unroll
#else
#pragma unroll 1
#endif
        for (int base = 0; base < CAPACITY; base += BATCH) {
            if (base > 0 && base >= live) break;
            Values values[BATCH];
            // Rows that are not live may be read, and then these loads do not wait for the number of those that are.
#pragma unroll
            for (int r = 0; r < BATCH; r++) {
                int m = base + r;
                if (GATHER) m = ROWS > 1 && m < live ? step_row(step, m) : 0;
                load_groups(values[r], x + (long long)m * K, group);
            }
#pragma unroll
            for (int r = 0; r < BATCH; r++)
                if (base + r < live) quantise_row(shared, operand, pass, base + r, values[r], weights);
        }
#if !BINARY
        __syncwarp();
        arrange(shared.staged[chunk], half);
#endif
    }
}

// Reads what the warps that share a chunk have left.
__device__ __forceinline__ void load_operand(const Shared& shared, Operand& operand) {
#if BINARY
    int chunk = threadIdx.x / 32 % CHUNK_WARPS;
    if (ALONE) return;
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
        for (int m = 0; m < CAPACITY; m++)
            if (CHUNKS % CHUNK_WARPS == 0 || pass * CHUNK_WARPS + chunk < CHUNKS)
                operand.columns[pass][m] = load_columns(shared.input, m, pass * CHUNK_WARPS + chunk);
#endif
}

// Sums of one output row's products in the order of K.
__device__ __forceinline__ float add_in_order(const float4* products) {
    float total = 0.0f;
#pragma unroll 4
    for (int c = 0; c < CHUNKS; c++) {
        float4 p = products[c * 16];
        total = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(total, p.x), p.y), p.z), p.w);
    }
    return total;
}

// Where row ``index`` of a round that begins at first_tile belongs in a row of out; -1 for padding, and for a row of up.
__device__ __forceinline__ int column_of(int first_tile, int index) {
    int tile = first_tile + index / 16;
    if (tile >= ALL_TILES) return -1;
    Place at = place_of(tile);
    int row = at.tile * 16 + index % 16;
    if (EPILOGUE == 2) return at.part == 0 && row < N_0 ? COLUMN_0 + row : -1;
    int n = at.part == 0 ? N_0 : at.part == 1 ? N_1 : N_2;
    int column = at.part == 0 ? COLUMN_0 : at.part == 1 ? COLUMN_1 : COLUMN_2;
    return row < n ? column + row : -1;
}

// One output row of one input row. For swiglu 16 lanes have rows of gate, the next 16 the same rows of up.
__device__ __forceinline__ void finish(const Shared& shared, int buffer, int m, int index, int column, float* out,
                                       float factor, float old) {
    float total = add_in_order(shared.products[buffer][m] + index / 16 * (CHUNKS * 16) + index % 16);
    if (NORM) total = __fmul_rn(total, factor);
    if (EPILOGUE == 2) {
        float up = __shfl_down_sync(WHOLE_WARP, total, 16);
        total = __fmul_rn(__fdiv_rn(total, __fadd_rn(1.0f, expf(-total))), up);
    }
    if (EPILOGUE == 1) total = __fadd_rn(old, total);
    if (column >= 0) out[(long long)m * WIDTH + column] = total;
}

// RMSNorm's factors: the only row's in every thread, those of several in shared memory.
__device__ __forceinline__ float factors_of(Shared& shared, int live) {
    if (!NORM) return 1.0f;
    if (CAPACITY == 1) return norm_factor(shared.squares[0], GROUPS, EPS);
    for (int m = threadIdx.x / 32; m < live; m += WARPS) {
        float factor = norm_factor(shared.squares[m], GROUPS, EPS);
        if (threadIdx.x % 32 == 0) shared.factors[m] = factor;
    }
    __syncthreads();
    return 1.0f;
}

// This warp's units of one round. unit: the first of them; slot: where it lies.
__device__ __forceinline__ void multiply(Shared& shared, Operand& operand, const Work& work, int round, int live,
                                         int& unit, int& slot) {
    int warp = threadIdx.x / 32, share = warp / CHUNK_WARPS;
    float4(&products)[CAPACITY][STRIDE] = shared.products[BUFFERS > 1 ? round & 1 : 0];
    int tiles = work.tiles - round * ROUND < ROUND ? work.tiles - round * ROUND : ROUND;
#if BINARY
    const Planes planes = planes_of();
#endif
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        int chunk = pass * CHUNK_WARPS + warp % CHUNK_WARPS;
        if (CHUNKS % CHUNK_WARPS != 0 && chunk >= CHUNKS) break;
        float4* target = products[0] + (share * CHUNKS + chunk) * 16;
#pragma unroll 1
        for (int t = share; t < tiles; t += SHARES) {
            copy_async_wait<SLOTS - 1>();
            Unit weight = take(shared, slot);
#if BINARY
#pragma unroll
            for (int m = 0; m < CAPACITY; m++)
                if (m < live) binary_unit(weight, operand.columns[pass][m], planes, (float*)(target + m * STRIDE));
#else
            int8_unit(weight, shared.staged[chunk], (float*)target, STRIDE * 4);
#endif
            if (WHOLE)
                copy_async_commit();
            else
                fetch(shared, work, slot, unit + SLOTS);
            unit++, target += SHARES * CHUNKS * 16;
            slot = !WHOLE && slot + 1 == SLOTS ? 0 : slot + 1;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    decode(const int* step, const float* x, const float* norm, float* out, const uint4* bits0, const unsigned* scales0,
           const uint4* bits1, const unsigned* scales1, const uint4* bits2, const unsigned* scales2) {
    extern __shared__ unsigned char shared_bytes[];
    Shared& shared = *(Shared*)shared_bytes;
    int warp = threadIdx.x / 32, share = warp / CHUNK_WARPS;
    // Before the weights, whose copies it would otherwise queue behind.
    reads_from_before_the_graph();
    int live = GATHER ? step_wanted(step) : step_rows(step);
    if (live > CAPACITY) live = CAPACITY;
    // As even as whole tiles go.
    int first = (int)blockIdx.x * (ALL_TILES / STEP) / (int)gridDim.x * STEP;
    int tiles = ((int)blockIdx.x + 1) * (ALL_TILES / STEP) / (int)gridDim.x * STEP - first;
    Work work = {{{bits0, bits1, bits2}, {scales0, scales1, scales2}}, {}, first, tiles, 0};
    if (UNIFORM) {
        work.source = source_of(work.weights, first + share, warp % CHUNK_WARPS);
        work.units = (tiles - share + SHARES - 1) / SHARES;
        keep_in_register(work.source.bits), keep_in_register(work.source.scales), keep_in_register(work.units);
    }
#pragma unroll
    for (int i = 0; i < SLOTS; i++) fetch(shared, work, i, i);
    Values norm_weights;
    if (NORM && share < HALVES) load_groups(norm_weights, norm, warp % CHUNK_WARPS * 4 + share * OWN);
    wait_for_previous();
    // Not earlier: only now does every multiprocessor have one block of this kernel, and room for one of the next.
    let_next_start();

    Operand operand;
    quantise(shared, operand, step, x, norm, norm_weights, live);
    if (!ALONE) __syncthreads();
    load_operand(shared, operand);

    int unit = 0, slot = 0;
    float factor = 1.0f;
    for (int round = 0; round < ROUNDS && round * ROUND < tiles && live > 0; round++) {
        int rows = (tiles - round * ROUND) * 16 < ROUND_ROWS ? (tiles - round * ROUND) * 16 : ROUND_ROWS;
        // The threads that finish change from round to round, so that no warp falls behind.
        unsigned index = (threadIdx.x + THREADS - (unsigned)(round * ROUND_ROWS) % THREADS) % THREADS;
        unsigned sums = (unsigned)(live * ROUND_ROWS);
        int column = -1;
        float old = 0.0f;
        if (index < sums) {
            column = column_of(first + round * ROUND, index % ROUND_ROWS);
            if (EPILOGUE == 1 && column >= 0) old = out[(long long)(index / ROUND_ROWS) * WIDTH + column];
        }
        multiply(shared, operand, work, round, live, unit, slot);
        __syncthreads();
        if (round == 0) factor = factors_of(shared, live);
#pragma unroll 1
        for (int j = 0; j < FINISHES; j++) {
            unsigned i = index + j * THREADS;
            if (i >= sums) break;
            int m = (int)(i / ROUND_ROWS), row = (int)(i % ROUND_ROWS);
            if (j > 0) {
                column = column_of(first + round * ROUND, row);
                if (EPILOGUE == 1 && column >= 0) old = out[(long long)m * WIDTH + column];
            }
            if (NORM && CAPACITY > 1) factor = shared.factors[m];
            if (row < rows) finish(shared, BUFFERS > 1 ? round & 1 : 0, m, row, column, out, factor, old);
        }
    }
    copy_async_wait<0>();
}
