// Keys and values of all rows into the cache, before any row reads them. A warp takes one KV head of one row.

#include "attend/heads.cuh"

extern "C" __global__ void __launch_bounds__(128)
    store(const int* step, const float* qkv, const float* k_norm, const float* rope, void* keys, void* values,
          unsigned short* key_scales, unsigned short* value_scales) {
    __shared__ float turned[4][HD];
    let_next_start();
    wait_for_previous();
    int warp = threadIdx.x / 32, index = blockIdx.x * 4 + warp, m = index / NKV, head = index % NKV;
    if (m >= step_rows(step)) return;
    int position = step_position(step, m);
    const float* row = qkv + (long long)m * (NQ + 2 * NKV) * HD;
    long long place = place_of(step, step_sequence(step, m), position, head);
    turn_head(row + (NQ + head) * HD, turn_of(k_norm, rope + (long long)position * HD), turned[warp]);
    store_row(keys, key_scales, place, turned[warp]);
    store_row(values, value_scales, place, row + (NQ + NKV + head) * HD);
}
