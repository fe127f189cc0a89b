// Attention of few rows: blocks share a KV head's chunks of keys, and the last one to end merges what they found, in
// order. With one row the same launch norms, rotates and stores its key and value (FUSED); else store.cu has.
//
// Macros: as heads.cuh, and FUSED, SPLITS (blocks a row and KV head), CHUNKS (most chunks a sequence may have).

#include "attend/chunk.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
// Floats that a chunk leaves: weighted sums [GROUP][HD], then largest scores and sums of weights [GROUP].
constexpr int PARTIAL = GROUP * (HD + 2);

struct Shared {
    Stage stage;
    Queries queries;
    float scores[16][CHUNK + 4];
    float turned[WARPS][HD];
    float own[2][HD];
};

__device__ __forceinline__ void fetch(Shared& shared, const Cache& cache, const int* step, int sequence, int head, int first,
                                      int last) {
    fetch_part<0, THREADS>(shared.stage, cache, step, sequence, head, first, last);
    fetch_part<1, THREADS>(shared.stage, cache, step, sequence, head, first, last);
}

// The queries of a group, and (FUSED) this token's key and value as the cache will hold them.
__device__ __forceinline__ void prepare(Shared& shared, const float* row, const Turn& first_turn, const float* q_norm,
                                        const float* k_norm, const float* angles, int head) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = warp; i < GROUP + 2 * FUSED; i += WARPS) {
        Turn turn = i < WARPS ? first_turn : turn_of(i < GROUP ? q_norm : k_norm, angles);
        float* out = i < GROUP ? shared.turned[warp] : shared.own[i - GROUP];
        if (i == GROUP + 1) {
            for (int d = lane; d < HD; d += 32) out[d] = row[(NQ + NKV + head) * HD + d];
            continue;
        }
        turn_head(row + (i < GROUP ? head * GROUP + i : NQ + head) * HD, turn, out);
        if (i < GROUP) put_query(shared.queries, i, out);
        __syncwarp();
    }
    for (int i = GROUP + warp; i < 16; i += WARPS) put_query(shared.queries, i, nullptr);
}

// One chunk of this block; results go to ``out`` when it is the row's only one, else to ``partial``.
__device__ __forceinline__ void attend_chunk(Shared& shared, int first, int position, float* partial, float* out) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TILES / WARPS; i++) {
        int tile = warp + i * WARPS;
        float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (first + tile * 8 <= position) score_tiles<1>(&s, shared.queries, shared.stage, tile);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int key = tile * 8 + lane % 4 * 2 + j % 2;
            shared.scores[lane / 4 + j / 2 * 8][key] = first + key <= position ? s[j] : least();
        }
    }
    __syncthreads();
    float p[TILES][4];
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[j][i] = shared.scores[lane / 4 + i / 2 * 8][j * 8 + lane % 4 * 2 + i % 2];
    Weights w;
    weigh(w, p, shared.stage);
    for (int d = warp * 16; d < HD; d += WARPS * 16) {
        float c[2][4];
        mix(c, w, shared.stage, d);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int row = lane / 4 + i % 4 / 2 * 8, column = d + i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (row >= GROUP) continue;
            if (out)
                out[row * HD + column] = __fmul_rn(c[i / 4][i % 4], __fdiv_rn(1.0f, w.total[i % 4 / 2]));
            else
                partial[row * HD + column] = c[i / 4][i % 4];
        }
    }
    if (out == nullptr && warp == 0 && lane % 4 == 0)
        for (int half = 0; half < 2; half++)
            if (lane / 4 + half * 8 < GROUP) {
                partial[GROUP * HD + lane / 4 + half * 8] = w.peak[half];
                partial[GROUP * (HD + 1) + lane / 4 + half * 8] = w.total[half];
            }
}

// All chunks of one row and KV head, in order.
__device__ __forceinline__ void merge_chunks(const float* partials, int chunks, float* out) {
    for (int i = threadIdx.x; i < GROUP * HD; i += THREADS) {
        int row = i / HD;
        float peak = least(), total = 0.0f, value = 0.0f;
#pragma unroll 16
        for (int c = 0; c < chunks; c++) {
            const float* part = partials + (long long)c * PARTIAL;
            Merge m = merge_of(peak, __ldcg(part + GROUP * HD + row));
            total = merged(total, __ldcg(part + GROUP * (HD + 1) + row), m);
            value = merged(value, __ldcg(part + i), m);
            peak = m.peak;
        }
        out[i] = __fmul_rn(value, __fdiv_rn(1.0f, total));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attend_decode(const int* step, const float* qkv, const float* q_norm, const float* k_norm, const float* rope, void* keys,
                  void* values, unsigned short* key_scales, unsigned short* value_scales, float* out, float* partials,
                  int* arrived) {
    extern __shared__ unsigned char shared_bytes[];
    __shared__ bool last;
    Shared& shared = *(Shared*)shared_bytes;
    let_next_start();
    // Only the projection and, with several rows, the rows just stored have to be waited for.
    reads_from_before_the_graph();
    int split = blockIdx.x, head = blockIdx.y, m = blockIdx.z;
    int position = m < step_rows(step) ? step_position(step, m) : -1;
    int sequence = position < 0 ? 0 : step_sequence(step, m), chunks = position < 0 ? 0 : position / CHUNK + 1;
    const Cache cache = {keys, values, key_scales, value_scales};
    // What the cache holds already; with one row this token's own comes from the projection.
    int held = FUSED ? position - 1 : position;
    if (FUSED && split < chunks) fetch(shared, cache, step, sequence, head, split * CHUNK, held);
    const float* angles = rope + (long long)(position < 0 ? 0 : position) * HD;
    Turn turn = turn_of(threadIdx.x / 32 < GROUP ? q_norm : k_norm, angles);
    wait_for_previous();
    if (split >= chunks) return;
    if (!FUSED) fetch(shared, cache, step, sequence, head, split * CHUNK, held);
    out += ((long long)m * NQ + head * GROUP) * HD;
    partials += ((long long)m * NKV + head) * CHUNKS * PARTIAL;
    prepare(shared, qkv + (long long)m * (NQ + 2 * NKV) * HD, turn, q_norm, k_norm, angles, head);
    for (int c = split; c < chunks; c += SPLITS) {
        copy_async_wait<0>();
        __syncthreads();
        if (FUSED && c == chunks - 1) {
            int warp = threadIdx.x / 32, at = position % CHUNK;
            long long place = place_of(step, sequence, position, head);
            Stage& stage = shared.stage;
            if (warp == 0) store_row(keys, key_scales, place, shared.own[0], stage.keys[at], &stage.key_scales[at]);
            if (warp == 1) store_row(values, value_scales, place, shared.own[1], stage.values[at], &stage.value_scales[at]);
            __syncthreads();
        }
        attend_chunk(shared, c * CHUNK, position, partials + (long long)c * PARTIAL, chunks == 1 ? out : nullptr);
        __syncthreads();
        if (c + SPLITS < chunks) fetch(shared, cache, step, sequence, head, (c + SPLITS) * CHUNK, held);
    }
    if (chunks == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        int blocks = chunks < SPLITS ? chunks : SPLITS;
        last = atomicAdd(&arrived[m * NKV + head], 1) == blocks - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    merge_chunks(partials, chunks, out);
    if (threadIdx.x == 0) arrived[m * NKV + head] = 0;
}
