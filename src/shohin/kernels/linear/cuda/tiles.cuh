// One weight out of the tiles of devices/cuda/packing.py.
#pragma once

#include "ptx.cuh"

// Index of the word that holds weight (row, k) of bit plane ``plane``: [tile][chunk][plane, pair of groups][lane][item].
template <int PLANES_OF>
__device__ __forceinline__ long long tile_word(int chunks, long long row, int k, int plane) {
    int lane = (int)(row % 8) * 4 + k % 128 / 32;
    int pair = plane * 2 + k % 512 / 256, item = k % 256 / 128 * 2 + (int)(row % 16) / 8;
    return ((((row / 16) * chunks + k / 512) * (2 * PLANES_OF) + pair) * 32 + lane) * 4 + item;
}

// Index of the float16 scale of (row, k).
__device__ __forceinline__ long long tile_scale(int chunks, long long row, int k) {
    int lane = (int)(row % 8) * 4 + k % 512 / 128;
    return (((row / 16) * chunks + k / 512) * 32 + lane) * 2 + (row % 16) / 8;
}

template <int PLANES_OF>
__device__ __forceinline__ float tile_weight(const unsigned* bits, const unsigned* scales, int chunks, long long row, int k) {
    float scale = half_to_float(((const unsigned short*)scales)[tile_scale(chunks, row, k)]);
    int code = bits[tile_word<PLANES_OF>(chunks, row, k, 0)] >> (k % 32) & 1;
    if (PLANES_OF == 1) return code ? scale : -scale;
    code = 2 * code + (bits[tile_word<PLANES_OF>(chunks, row, k, 1)] >> (k % 32) & 1);
    return __fmul_rn((float)(code - 1), scale);
}
