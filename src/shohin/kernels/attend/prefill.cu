// Attention of many rows: a block takes TOKENS consecutive rows and one KV head and goes through the keys chunk by chunk,
// merging each as the last block of decode.cu would. Rows of several sequences are done run by run.

#include "attend/chunk.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS;
// Rows of x whose query heads fill the 16 rows of a warp.
constexpr int A_WARP = 16 / GROUP, TOKENS = A_WARP * WARPS;

struct Shared {
    Stage stage;
    Queries queries[WARPS];
    float turned[WARPS][HD];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    attend_prefill(const int* step, const float* qkv, const float* q_norm, const float* rope, void* keys, void* values,
                   unsigned short* key_scales, unsigned short* value_scales, float* out) {
    extern __shared__ unsigned char shared_bytes[];
    Shared& shared = *(Shared*)shared_bytes;
    let_next_start();
    wait_for_previous();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    int first_row = blockIdx.x * TOKENS, live = step_rows(step);
    if (first_row >= live) return;
    int rows = live - first_row < TOKENS ? live - first_row : TOKENS;
    const Cache cache = {keys, values, key_scales, value_scales};

    for (int i = 0; i < 16; i++) {
        int token = warp * A_WARP + i / GROUP;
        bool there = i < A_WARP * GROUP && token < rows;
        if (there) {
            int m = first_row + token;
            turn_head(qkv + ((long long)m * (NQ + 2 * NKV) + head * GROUP + i % GROUP) * HD,
                      turn_of(q_norm, rope + (long long)step_position(step, m) * HD), shared.turned[warp]);
        }
        for (int d = lane; d < HD; d += 32) put_query(shared.queries[warp], i, d, there ? shared.turned[warp][d] : 0.0f);
        __syncwarp();
    }
    // The token of rows lane / 4 and lane / 4 + 8 of the warp, or -1; its position.
    int token[2], position[2];
    float peak[2], total[2], value[HD / 8][4];
    for (int half = 0; half < 2; half++) {
        int i = lane / 4 + half * 8;
        token[half] = i < A_WARP * GROUP && warp * A_WARP + i / GROUP < rows ? warp * A_WARP + i / GROUP : -1;
        position[half] = token[half] < 0 ? -1 : step_position(step, first_row + token[half]);
        peak[half] = least(), total[half] = 0.0f;
    }
#pragma unroll
    for (int t = 0; t < HD / 8; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) value[t][i] = 0.0f;

    for (int begin = 0, end; begin < rows; begin = end) {
        int sequence = step_sequence(step, first_row + begin), last = step_position(step, first_row + begin);
        for (end = begin + 1; end < rows && step_sequence(step, first_row + end) == sequence; end++)
            last = last > step_position(step, first_row + end) ? last : step_position(step, first_row + end);
        for (int first = 0; first <= last; first += CHUNK) {
            __syncthreads();
            fetch(shared.stage, cache, step, sequence, head, first, last);
            copy_async_wait<0>();
            __syncthreads();
            float s[TILES][4], chunk_peak[2], chunk_total[2];
            bool mine[2];
#pragma unroll
            for (int half = 0; half < 2; half++)
                mine[half] = token[half] >= begin && token[half] < end && position[half] >= first;
            if (!__any_sync(WARP, mine[0] || mine[1])) continue;
#pragma unroll
            for (int j = 0; j < TILES; j += 4) score_tiles<4>(s + j, shared.queries[warp], shared.stage, j);
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (first + j * 8 + lane % 4 * 2 + i % 2 > position[i / 2]) s[j][i] = least();
            weigh(s, chunk_peak, chunk_total);
            Merge merge[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                merge[half] = merge_of(peak[half], chunk_peak[half]);
                if (!mine[half]) continue;
                total[half] = merged(total[half], chunk_total[half], merge[half]);
                peak[half] = merge[half].peak;
            }
#pragma unroll
            for (int t = 0; t < HD / 8; t += 4) {
                float c[4][4];
                mix<4>(c, s, shared.stage, t * 8);
#pragma unroll
                for (int i = 0; i < 16; i++)
                    if (mine[i % 4 / 2])
                        value[t + i / 4][i % 4] = merged(value[t + i / 4][i % 4], c[i / 4][i % 4], merge[i % 4 / 2]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < HD / 8; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int half = i / 2, row = lane / 4 + half * 8;
            if (token[half] < 0) continue;
            float* to = out + ((long long)(first_row + token[half]) * NQ + head * GROUP + row % GROUP) * HD;
            to[t * 8 + lane % 4 * 2 + i % 2] = __fmul_rn(value[t][i], __fdiv_rn(1.0f, total[half]));
        }
}
