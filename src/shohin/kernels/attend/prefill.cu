// Attention of many rows: a block takes TOKENS consecutive rows and one KV head and goes through the keys chunk by chunk,
// merging each as the last block of decode.cu would. Rows of several sequences are done run by run. The next chunk's keys
// come while values are mixed, its values while scores are made.
//
// Macros: as heads.cuh, and WARPS.

#include "attend/chunk.cuh"

constexpr int THREADS = 32 * WARPS;
// Rows of x whose query heads fill the 16 rows of a warp.
constexpr int A_WARP = 16 / GROUP, TOKENS = A_WARP * WARPS;
// Heads of which a warp has the values on their way at once.
constexpr int AT_ONCE = HD > 128 ? 2 : 4;
// Tiles of 8 columns that are mixed side by side.
constexpr int ABREAST = 4;

struct Shared {
    Stage stage;
    Queries queries[WARPS];
    float turned[WARPS][HD];
    // Keys of the chunk whose value is not finite.
    unsigned broken[CHUNK / 32];
};

// Consecutive rows of one sequence, counted from the block's first row; their lowest and highest positions.
struct Run {
    int begin, end, sequence, lowest, last;
};

// What a lane keeps of rows lane / 4 and lane / 4 + 8 of its warp: the token of the block (or -1) and its position.
struct Rows {
    int token[2], position[2];
    float peak[2], total[2], value[HD / 8][4];
};

__device__ __forceinline__ void prepare(Shared& shared, const int* step, const float* qkv, const float* q_norm,
                                        const float* rope, int head, int first_row, int rows) {
    int warp = threadIdx.x / 32;
#pragma unroll 1
    for (int first = 0; first < 16; first += AT_ONCE) {
        Values values[AT_ONCE];
        Turn turns[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = first + j, token = warp * A_WARP + i / GROUP;
            int m = first_row + (token < rows ? token : 0);
            values[j] = load_head(qkv + ((long long)m * (NQ + 2 * NKV) + head * GROUP + i % GROUP) * HD);
            turns[j] = turn_of(q_norm, rope + (long long)step_position(step, m) * HD);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = first + j;
            bool there = i < A_WARP * GROUP && warp * A_WARP + i / GROUP < rows;
            turn_head(values[j], turns[j], shared.turned[warp]);
            put_query(shared.queries[warp], i, there ? shared.turned[warp] : nullptr);
            __syncwarp();
        }
    }
}

__device__ __forceinline__ Run run_from(const int* step, int first_row, int begin, int rows) {
    int position = step_position(step, first_row + begin);
    Run run = {begin, begin + 1, step_sequence(step, first_row + begin), position, position};
    for (; run.end < rows && step_sequence(step, first_row + run.end) == run.sequence; run.end++) {
        position = step_position(step, first_row + run.end);
        run.lowest = run.lowest < position ? run.lowest : position;
        run.last = run.last > position ? run.last : position;
    }
    return run;
}

// Values that are not finite would reach rows that do not see them, as zero times infinity: they become zeros, and
// the rows that see their keys become NaN.
__device__ __forceinline__ void clear_broken(Shared& shared) {
    for (int key = threadIdx.x; key < CHUNK; key += THREADS) {
        uint4* row = (uint4*)shared.stage.values[key];
        bool broken = false;
#pragma unroll 4
        for (int i = 0; i < HD / 8; i++) {
            const unsigned words[4] = {row[i].x, row[i].y, row[i].z, row[i].w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                broken |= (words[j] & 0x7c00u) == 0x7c00u || (words[j] & 0x7c000000u) == 0x7c000000u;
        }
        if (broken)
            for (int i = 0; i < HD / 8; i++) row[i] = make_uint4(0, 0, 0, 0);
        unsigned all = __ballot_sync(WARP, broken);
        if (key % 32 == 0) shared.broken[key / 32] = all;
    }
}

// Whether one of the chunk's first ``count`` keys is broken.
__device__ __forceinline__ bool sees_broken(const Shared& shared, int count) {
    bool found = false;
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) {
        int seen = count - i * 32;
        unsigned mask = seen >= 32 ? 0xffffffffu : seen > 0 ? (1u << seen) - 1 : 0;
        found |= (shared.broken[i] & mask) != 0;
    }
    return found;
}

__device__ __forceinline__ void add_chunk(Shared& shared, Rows& rows, float (&s)[TILES][4], const bool (&mine)[2], int first,
                                          bool guarded) {
    Weights w;
    Merge merge[2];
    weigh(w, s, shared.stage);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (guarded && mine[half] && sees_broken(shared, rows.position[half] - first + 1))
            w.total[half] = __uint_as_float(0x7fffffffu);
        merge[half] = merge_of(rows.peak[half], w.peak[half]);
        if (!mine[half]) continue;
        rows.total[half] = merged(rows.total[half], w.total[half], merge[half]);
        rows.peak[half] = merge[half].peak;
    }
#pragma unroll
    for (int t = 0; t < HD / 8; t += ABREAST) {
        float c[ABREAST][4];
        mix<2, ABREAST>(c, w, shared.stage, t * 8, CHUNK);
#pragma unroll
        for (int i = 0; i < ABREAST * 4; i++) {
            float& value = rows.value[t + i / 4][i % 4];
            if (mine[i % 4 / 2]) value = merged(value, c[i / 4][i % 4], merge[i % 4 / 2]);
        }
    }
}

__device__ __forceinline__ void attend_run(Shared& shared, Rows& rows, const Cache& cache, const int* step, const Run& run,
                                           int head) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    fetch_part<0, THREADS, 0>(shared.stage, cache, step, run.sequence, head, 0, run.last);
    fetch_part<1, THREADS, 0>(shared.stage, cache, step, run.sequence, head, 0, run.last);
    copy_async_wait<1>();
    __syncthreads();
    for (int first = 0; first <= run.last; first += CHUNK) {
        int next = first + CHUNK;
        bool mine[2], guarded = KIND == 0 && (next - 1 < run.last ? next - 1 : run.last) > run.lowest;
#pragma unroll
        for (int half = 0; half < 2; half++)
            mine[half] = rows.token[half] >= run.begin && rows.token[half] < run.end && rows.position[half] >= first;
        bool any = __any_sync(WARP, mine[0] || mine[1]);
        float s[TILES][4];
        if (any) {
            score_tiles<TILES>(s, shared.queries[warp], shared.stage, 0);
            bool all = __all_sync(WARP, rows.position[0] >= next - 1 && rows.position[1] >= next - 1);
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!all && first + j * 8 + lane % 4 * 2 + i % 2 > rows.position[i / 2]) s[j][i] = least();
        }
        copy_async_wait<0>();
        __syncthreads();
        if (next <= run.last) fetch_part<0, THREADS, 0>(shared.stage, cache, step, run.sequence, head, next, run.last);
        if (guarded) {
            clear_broken(shared);
            __syncthreads();
        }
        if (any) add_chunk(shared, rows, s, mine, first, guarded);
        copy_async_wait<0>();
        __syncthreads();
        if (next <= run.last) fetch_part<1, THREADS, 0>(shared.stage, cache, step, run.sequence, head, next, run.last);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attend_prefill(const int* step, const float* qkv, const float* q_norm, const float* rope, void* keys, void* values,
                   unsigned short* key_scales, unsigned short* value_scales, float* out) {
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    Shared& shared = *(Shared*)shared_bytes;
    let_next_start();
    wait_for_previous();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    int first_row = blockIdx.x * TOKENS, live = step_rows(step) - first_row;
    if (live <= 0) return;
    if (live > TOKENS) live = TOKENS;
    const Cache cache = {keys, values, key_scales, value_scales};
    prepare(shared, step, qkv, q_norm, rope, head, first_row, live);
    Rows rows;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int i = lane / 4 + half * 8, token = warp * A_WARP + i / GROUP;
        rows.token[half] = i < A_WARP * GROUP && token < live ? token : -1;
        rows.position[half] = rows.token[half] < 0 ? -1 : step_position(step, first_row + token);
        rows.peak[half] = least(), rows.total[half] = 0.0f;
    }
#pragma unroll
    for (int t = 0; t < HD / 8; t++) rows.value[t][0] = rows.value[t][1] = rows.value[t][2] = rows.value[t][3] = 0.0f;

    for (int begin = 0; begin < live;) {
        Run run = run_from(step, first_row, begin, live);
        attend_run(shared, rows, cache, step, run, head);
        begin = run.end;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (rows.token[half] < 0) continue;
        float* to = out + ((long long)(first_row + rows.token[half]) * NQ + head * GROUP + (lane / 4 + half * 8) % GROUP) * HD;
        float whole = __fdiv_rn(1.0f, rows.total[half]);
#pragma unroll
        for (int t = 0; t < HD / 8; t++)
            *(float2*)(to + t * 8 + lane % 4 * 2) =
                make_float2(__fmul_rn(rows.value[t][half * 2], whole), __fmul_rn(rows.value[t][half * 2 + 1], whole));
    }
}
