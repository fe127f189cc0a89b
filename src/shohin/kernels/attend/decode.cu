// Attention of few rows: blocks share a KV head's chunks of keys, and the last one to end merges what they found, in
// order. With one row the same launch norms, rotates and stores its key and value (FUSED); else store.cu has.
//
// Macros: as heads.cuh, and FUSED, SPLITS (blocks a row and KV head), CHUNKS (most chunks a sequence may have).

#include "attend/chunk.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
// Floats that a chunk leaves: weighted sums [GROUP][HD], then largest scores and sums of weights [GROUP].
constexpr int PARTIAL = GROUP * (HD + 2);
// Of the 16 rows of a product, those that are computed: 8 or all.
constexpr int HALVES = GROUP > 8 ? 2 : 1;
// Chunks whose results are loaded at once.
constexpr int MERGED = 16;
static_assert(WARPS == CHUNK / 16, "a warp makes the weights of one step of 16 keys");

struct Shared {
    Stage stage;
    Queries queries;
    // Heads that are being turned, at first; then weights as they are summed.
    union {
        float turned[WARPS][HD];
        float weights[16][CHUNK + 8];
    };
    // Of each warp's 16 keys: largest scores, largest scaled weights, and the weights as operands.
    float tops[WARPS][16];
    float mosts[WARPS][16];
    uint4 high[WARPS][32];
    uint4 low[WARPS][32];
    float own[2][HD];
};

// One row: where it is, what of its sequence the cache holds already, and the cache.
struct Place {
    const int* step;
    Cache cache;
    int head, sequence, position, held;
};

template <int PART>
__device__ __forceinline__ void fetch(Shared& shared, const Place& place, int chunk) {
    fetch_part<PART, THREADS, FUSED>(shared.stage, place.cache, place.step, place.sequence, place.head, chunk * CHUNK,
                                     place.held);
}

// This token's key (part 0) or value into the cache and among the chunk's; one warp.
__device__ __forceinline__ void store_own(Shared& shared, const Place& place, int part) {
    const Cache& cache = place.cache;
    Stage& stage = shared.stage;
    int at = place.position % CHUNK;
    long long row = place_of(place.step, place.sequence, place.position, place.head);
    store_row(part ? cache.values : cache.keys, part ? cache.value_scales : cache.key_scales, row, shared.own[part],
              part ? stage.values[at] : stage.keys[at], part ? &stage.value_scales[at] : &stage.key_scales[at]);
}

// The queries of a group, and (FUSED) this token's key and value as the cache will hold them; store: right away.
__device__ __forceinline__ void prepare(Shared& shared, const Place& place, const float* row, const Turn& first_turn,
                                        const float* q_norm, const float* k_norm, const float* angles, bool store) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = warp; i < GROUP + 2 * FUSED; i += WARPS) {
        Turn turn = i < WARPS ? first_turn : turn_of(i < GROUP ? q_norm : k_norm, angles);
        float* out = i < GROUP ? shared.turned[warp] : shared.own[i - GROUP];
        if (i == GROUP + 1) {
            for (int d = lane; d < HD; d += 32) out[d] = row[(NQ + NKV + place.head) * HD + d];
            __syncwarp();
        } else {
            turn_head(row + (i < GROUP ? place.head * GROUP + i : NQ + place.head) * HD, turn, out);
        }
        if (i < GROUP)
            put_query(shared.queries, i, out);
        else if (store)
            store_own(shared, place, i - GROUP);
        __syncwarp();
    }
}

// Largest score of this warp's 16 keys, row by row; keys that are not seen become least().
__device__ __forceinline__ void score_own(Shared& shared, float (&s)[2][4], int seen) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp * 16 < seen) score_tiles<2>(s, shared.queries, shared.stage, warp * 2);
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        float top = least();
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                if (warp * 16 + t * 8 + lane % 4 * 2 + i % 2 >= seen) s[t][i] = least();
                top = fmaxf(top, s[t][i]);
            }
        top = most_of_quad(top);
        if (lane % 4 == 0) shared.tops[warp][half * 8 + lane / 4] = top;
    }
}

__device__ __forceinline__ float most_of_warps(const float (&found)[WARPS][16], int row) {
    float most = found[0][row];
#pragma unroll
    for (int i = 1; i < WARPS; i++) most = fmaxf(most, found[i][row]);
    return most;
}

// The weights of this warp's keys, after the barrier that follows the scores.
__device__ __forceinline__ void weigh_own(Shared& shared, Weights& w, float (&s)[2][4]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        int row = half * 8 + lane / 4;
        float top = most_of_warps(shared.tops, row), base = base_of(top), most = 0.0f;
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                int key = warp * 16 + t * 8 + lane % 4 * 2 + i % 2;
                float weight = weight_of(s[t][i], base);
                shared.weights[row][key] = weight;
                s[t][i] = scaled_weight(weight, s[t][i], shared.stage, key);
                most = fmaxf(most, s[t][i]);
            }
        w.peak[half] = top;
        if (KIND == 1) {
            most = most_of_quad(most);
            if (lane % 4 == 0) shared.mosts[warp][row] = most;
        }
    }
    if (KIND == 1) __syncthreads();
    unsigned high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        int biased = exponent_of(KIND == 1 ? most_of_warps(shared.mosts, half * 8 + lane / 4) : 1.0f);
        w.lift[half] = from_fourteen(biased);
#pragma unroll
        for (int t = 0; t < 2; t++)
            split(high[2 * t + half], low[2 * t + half], __fmul_rn(s[t][2 * half], to_fourteen(biased)),
                  __fmul_rn(s[t][2 * half + 1], to_fourteen(biased)));
    }
    shared.high[warp][lane] = make_uint4(high[0], high[1], high[2], high[3]);
    shared.low[warp][lane] = make_uint4(low[0], low[1], low[2], low[3]);
}

// All weights of the chunk, after the barrier that follows them; sums in the order of ``weigh``.
__device__ __forceinline__ void gather(const Shared& shared, Weights& w) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < WARPS; k++) {
        uint4 high = shared.high[k][lane], low = shared.low[k][lane];
        w.high[k][0] = high.x, w.high[k][1] = high.y, w.high[k][2] = high.z, w.high[k][3] = high.w;
        w.low[k][0] = low.x, w.low[k][1] = low.y, w.low[k][2] = low.z, w.low[k][3] = low.w;
    }
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            float2 pair = *(const float2*)&shared.weights[half * 8 + lane / 4][j * 8 + lane % 4 * 2];
            sum = __fadd_rn(__fadd_rn(sum, pair.x), pair.y);
        }
        w.total[half] = sum_of_quad(sum);
    }
}

// Results go to ``out`` when the chunk is the row's only one, else to ``partial``.
__device__ __forceinline__ void mix_own(const Shared& shared, const Weights& w, int seen, float* partial, float* out) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int d = warp * 16; d < HD; d += WARPS * 16) {
        float c[2][4];
        mix<HALVES, 2>(c, w, shared.stage, d, seen);
#pragma unroll
        for (int i = 0; i < 4 * HALVES; i++) {
            int half = i / 4, row = lane / 4 + half * 8, column = d + i % 4 / 2 * 8 + lane % 4 * 2 + i % 2;
            if (row >= GROUP) continue;
            float sum = c[i % 4 / 2][half * 2 + i % 2];
            if (out)
                out[row * HD + column] = __fmul_rn(sum, __fdiv_rn(1.0f, w.total[half]));
            else
                partial[row * HD + column] = sum;
        }
    }
    if (out != nullptr || warp != 0 || lane % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < HALVES; half++)
        if (lane / 4 + half * 8 < GROUP) {
            partial[GROUP * HD + lane / 4 + half * 8] = w.peak[half];
            partial[GROUP * (HD + 1) + lane / 4 + half * 8] = w.total[half];
        }
}

// All chunks of one row and KV head, in order; a thread takes two columns, and loads of many chunks are on their way at once.
__device__ __forceinline__ void merge_chunks(const float* partials, int chunks, float* out) {
    for (int i = threadIdx.x * 2; i < GROUP * HD; i += THREADS * 2) {
        int row = i / HD;
        float peak = least(), total = 0.0f;
        float2 value = make_float2(0.0f, 0.0f);
        for (int begin = 0; begin < chunks; begin += MERGED) {
            float peaks[MERGED], totals[MERGED];
            float2 values[MERGED];
#pragma unroll
            for (int j = 0; j < MERGED; j++) {
                const float* part = partials + (long long)(begin + j < chunks ? begin + j : begin) * PARTIAL;
                peaks[j] = __ldcg(part + GROUP * HD + row), totals[j] = __ldcg(part + GROUP * (HD + 1) + row);
                values[j] = make_float2(__ldcg(part + i), __ldcg(part + i + 1));
            }
#pragma unroll
            for (int j = 0; j < MERGED; j++) {
                if (begin + j >= chunks) break;
                Merge m = merge_of(peak, peaks[j]);
                total = merged(total, totals[j], m);
                value = make_float2(merged(value.x, values[j].x, m), merged(value.y, values[j].y, m));
                peak = m.peak;
            }
        }
        float whole = __fdiv_rn(1.0f, total);
        *(float2*)(out + i) = make_float2(__fmul_rn(value.x, whole), __fmul_rn(value.y, whole));
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
    int chunks = position < 0 ? 0 : position / CHUNK + 1;
    // A block without keys gives its place to one that has some.
    if (split >= chunks) {
        if (split == 0)
            wait_for_previous();
        else
            another_block_waits();
        return;
    }
    int sequence = step_sequence(step, m);
    // With one row this token's own key and value come from the projection.
    const Place place = {step, {keys, values, key_scales, value_scales}, head, sequence, position, position - FUSED};
    if (FUSED) {
        fetch<0>(shared, place, split);
        fetch<1>(shared, place, split);
    }
    const float* angles = rope + (long long)position * HD;
    Turn turn = turn_of(threadIdx.x / 32 < GROUP ? q_norm : k_norm, angles);
    wait_for_previous();
    if (!FUSED) {
        fetch<0>(shared, place, split);
        fetch<1>(shared, place, split);
    }
    out += ((long long)m * NQ + head * GROUP) * HD;
    partials += ((long long)m * NKV + head) * CHUNKS * PARTIAL;
    qkv += (long long)m * (NQ + 2 * NKV) * HD;
    prepare(shared, place, qkv, turn, q_norm, k_norm, angles, split == chunks - 1);
    for (int c = split; c < chunks; c += SPLITS) {
        int seen = position - c * CHUNK + 1;
        float s[2][4];
        Weights w;
        // Keys are there, values may be on their way; the next chunk's come as soon as there is room.
        copy_async_wait<1>();
        __syncthreads();
        if (FUSED && c == chunks - 1 && c != split) {
            if (threadIdx.x < 64) store_own(shared, place, threadIdx.x / 32);
            __syncthreads();
        }
        score_own(shared, s, seen);
        __syncthreads();
        if (c + SPLITS < chunks)
            fetch<0>(shared, place, c + SPLITS);
        else
            copy_async_commit();
        copy_async_wait<1>();
        weigh_own(shared, w, s);
        __syncthreads();
        gather(shared, w);
        mix_own(shared, w, seen, partials + (long long)c * PARTIAL, chunks == 1 ? out : nullptr);
        if (c + SPLITS < chunks) {
            __syncthreads();
            fetch<1>(shared, place, c + SPLITS);
        }
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
