// A few rows times low-bit weights in tiles, while the memory's stream of weights never stops.
//
// A block owns consecutive row tiles. Its unit of work is 16 rows x 512 columns. Before the input exists, every thread has
// started copying the weights of its first units into slots that only it will read; then the block quantises the input
// (decode_input.cuh), leaves an integer sum for every row and group of 128 in shared memory (decode_dot.cuh), and adds
// these, times their scales, in the order of K. Integers are exact, so the bits of a row depend neither on how many rows
// there are nor on which matrix units make the sums.
//
// Macros: K, PLANES (bits a weight), PARTS and TILES_i, N_i, COLUMN_i (weights side by side), EPILOGUE (0 store, 1 add,
// 2 swiglu: tiles of gate and up alternate), NORM, EPS, GATHER (row i of out belongs to the step's wanted row i), WIDTH
// (values in a row of out), CAPACITY (rows, at most 8), BINARY (1-bit matrix units, else int8), THREADS, MIN_BLOCKS,
// SLOTS (units in flight a warp), ROUND (tiles a round), BLOCK_TILES (tiles a block).

#include "linear/cuda/decode_dot.cuh"
#include "step.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int ALL_TILES = EPILOGUE == 2 ? 2 * TILES_0 : TILES_0 + (PARTS > 1 ? TILES_1 : 0) + (PARTS > 2 ? TILES_2 : 0);
constexpr int ROUND_UNITS = ROUND * CHUNKS, ROUND_ROWS = 16 * ROUND;
// 16-byte items between the products of two rows of the input: one more than a multiple of 4, for the banks.
constexpr int STRIDE = ROUND_UNITS * 16 + 1;
constexpr int BUFFERS = BLOCK_TILES > ROUND ? 2 : 1;
// Groups and rows that are loaded before the first is used.
constexpr int BATCH = PASSES < 4 ? PASSES : 4;
constexpr int BATCH_ROWS = 4 / BATCH < CAPACITY ? 4 / BATCH : CAPACITY;
// All of a block's units are in flight from the start.
constexpr bool WHOLE = SLOTS * WARPS >= BLOCK_TILES * CHUNKS;
// Every warp has units of one chunk only.
[[maybe_unused]] constexpr bool ONE_CHUNK = BINARY && CAPACITY == 1 && WARPS % CHUNKS == 0;
// Sums that a thread makes in a round.
constexpr int FINISHES = (CAPACITY * ROUND_ROWS + THREADS - 1) / THREADS;
static_assert(CAPACITY <= WARPS, "a warp a row makes the scales");
static_assert(EPILOGUE != 2 || (ROUND % 2 == 0 && BLOCK_TILES % 2 == 0), "a tile of gate and its tile of up stay together");

struct Shared {
    uint4 bits[SLOTS][WARPS][VECTORS][32];
    unsigned scales[SLOTS][WARPS][32];
    Input input;
    uint4 products[BUFFERS][CAPACITY][STRIDE];
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

// Starts the copy of one of the block's units into this thread's own slots; one past the end is an empty group of copies.
__device__ __forceinline__ void fetch(Shared& shared, const Weights& weights, int slot, int first, int unit, int units) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (unit < units) {
        int index = first * CHUNKS + unit;
        const uint4* bits = weights.bits[0];
        const unsigned* scales = weights.scales[0];
        if (EPILOGUE == 2) {
            Place at = place_of(first + unit / CHUNKS);
            index = at.tile * CHUNKS + unit % CHUNKS;
            if (at.part) bits = weights.bits[1], scales = weights.scales[1];
        }
        if (PARTS > 1 && index >= TILES_0 * CHUNKS) {
            index -= TILES_0 * CHUNKS, bits = weights.bits[1], scales = weights.scales[1];
            if (PARTS > 2 && index >= TILES_1 * CHUNKS)
                index -= TILES_1 * CHUNKS, bits = weights.bits[2], scales = weights.scales[2];
        }
        bits += (long long)index * (VECTORS * 32) + lane;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) copy_async_16(&shared.bits[slot][warp][j][lane], bits + j * 32);
        copy_async_4(&shared.scales[slot][warp][lane], scales + (long long)index * 32 + lane);
    }
    copy_async_commit();
}

// The oldest of this thread's units, once it is there.
__device__ __forceinline__ Unit take(const Shared& shared, int slot) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    copy_async_wait<SLOTS - 1>();
    Unit unit;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) unit.bits[j] = shared.bits[slot][warp][j][lane];
    unit.scales = shared.scales[slot][warp][lane];
    return unit;
}

// The first BATCH of this thread's groups from pass ``pass`` on.
__device__ __forceinline__ void load_groups(float (&values)[BATCH][8], const float* row, int pass) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        int group = threadIdx.x / 16 + (pass + i) * (THREADS / 16);
#pragma unroll
        for (int e = 0; e < 8; e++) values[i][e] = 0.0f;
        if (group < GROUPS) load_eight(values[i], row + group * 128 + threadIdx.x % 16 * 8);
    }
}

__device__ __forceinline__ void quantise_row(Input& input, int m, int pass, const float (&x)[BATCH][8],
                                             const float (&norm)[BATCH][8]) {
    int first = threadIdx.x / 16 + pass * (THREADS / 16);
    if (!NORM) return quantise_groups<BATCH>(input, m, first, x, x);
    float v[BATCH][8];
#pragma unroll
    for (int i = 0; i < BATCH; i++)
#pragma unroll
        for (int e = 0; e < 8; e++) v[i][e] = __fmul_rn(x[i][e], norm[i][e]);
    quantise_groups<BATCH>(input, m, first, x, v);
}

// Sums of one output row's products in the order of K.
__device__ __forceinline__ float add_in_order(const uint4* products, const float4* scales) {
    float total = 0.0f;
#pragma unroll 4
    for (int c = 0; c < CHUNKS; c++) {
        uint4 words = products[c * 16];
        float4 s = scales[c];
        total = __fadd_rn(total, summand(words.x, s.x));
        total = __fadd_rn(total, summand(words.y, s.y));
        total = __fadd_rn(total, summand(words.z, s.z));
        total = __fadd_rn(total, summand(words.w, s.w));
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
                                       float old) {
    const uint4* products = shared.products[buffer][m] + index / 16 * (CHUNKS * 16) + index % 16;
    float total = add_in_order(products, shared.input.scales[m]);
    if (EPILOGUE == 2) {
        float up = __shfl_down_sync(WHOLE_WARP, total, 16);
        total = __fmul_rn(__fdiv_rn(total, __fadd_rn(1.0f, expf(-total))), up);
    }
    if (EPILOGUE == 1) total = __fadd_rn(old, total);
    if (column >= 0) out[(long long)m * WIDTH + column] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    decode(const int* step, const float* x, const float* norm, float* out, const uint4* bits0, const unsigned* scales0,
           const uint4* bits1, const unsigned* scales1, const uint4* bits2, const unsigned* scales2) {
    extern __shared__ unsigned char shared_bytes[];
    Shared& shared = *(Shared*)shared_bytes;
    const Weights weights = {{bits0, bits1, bits2}, {scales0, scales1, scales2}};
    int warp = threadIdx.x / 32;
    int first = blockIdx.x * BLOCK_TILES;
    int tiles = ALL_TILES - first < BLOCK_TILES ? ALL_TILES - first : BLOCK_TILES;
    int units = tiles * CHUNKS;

    let_next_start();
#pragma unroll
    for (int i = 0; i < SLOTS; i++) fetch(shared, weights, i, first, warp + i * WARPS, units);
    float w[BATCH][8];
    if (NORM) load_groups(w, norm, 0);
    wait_for_previous();
    int live = GATHER ? step_wanted(step) : step_rows(step);
    if (live > CAPACITY) live = CAPACITY;

    for (int base = 0; base < CAPACITY; base += BATCH_ROWS) {
        if (base > 0 && base >= live) break;
        for (int pass = 0; pass < PASSES; pass += BATCH) {
            float values[BATCH_ROWS][BATCH][8];
            if (NORM && PASSES > BATCH) load_groups(w, norm, pass);
            // Rows that are not live may be read, and then these loads do not wait for the number of those that are.
#pragma unroll
            for (int r = 0; r < BATCH_ROWS; r++) {
                int m = base + r < CAPACITY ? base + r : 0;
                if (GATHER) m = ROWS > 1 && m < live ? step_row(step, m) : 0;
                load_groups(values[r], x + (long long)m * K, pass);
            }
#pragma unroll
            for (int r = 0; r < BATCH_ROWS; r++)
                if (base + r < live) quantise_row(shared.input, base + r, pass, values[r], w);
        }
    }
    __syncthreads();
    // A warp a row, from that with the fewest units on.
    if (NORM && WARPS - 1 - warp < live) scale_row(shared.input, WARPS - 1 - warp);
#if BINARY
    Columns own = {};
    if (ONE_CHUNK) own = columns_of(shared.input, 0, warp % CHUNKS);
#endif

    int unit = warp, slot = 0;
    for (int round = 0; round * ROUND < tiles && live > 0; round++) {
        int end = (round + 1) * ROUND_UNITS < units ? (round + 1) * ROUND_UNITS : units;
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

        uint4(&products)[CAPACITY][STRIDE] = shared.products[BUFFERS > 1 ? round & 1 : 0];
        for (; unit < end; unit += WARPS) {
            Unit weight = take(shared, slot);
            int chunk = unit % CHUNKS, place = (unit - round * ROUND_UNITS) * 16;
#if BINARY
#pragma unroll
            for (int m = 0; m < CAPACITY; m++) {
                if (m >= live) break;
                Columns columns = ONE_CHUNK ? own : columns_of(shared.input, m, chunk);
                binary_unit(weight, columns, (unsigned*)(products[m] + place));
            }
#else
            int8_unit(weight, shared.input, chunk, (unsigned*)(products[0] + place), STRIDE * 4);
#endif
            if (WHOLE)
                copy_async_commit();
            else
                fetch(shared, weights, slot, first, unit + SLOTS * WARPS, units);
            slot = slot + 1 == SLOTS ? 0 : slot + 1;
        }
        __syncthreads();
#pragma unroll 1
        for (int j = 0; j < FINISHES; j++) {
            unsigned i = index + j * THREADS;
            if (i >= sums) break;
            int m = (int)(i / ROUND_ROWS), row = (int)(i % ROUND_ROWS);
            if (j > 0) {
                column = column_of(first + round * ROUND, row);
                if (EPILOGUE == 1 && column >= 0) old = out[(long long)m * WIDTH + column];
            }
            if (row < rows) finish(shared, BUFFERS > 1 ? round & 1 : 0, m, row, column, out, old);
        }
    }
    copy_async_wait<0>();
}
