// out[m] = row of the table that token m names, decoded to float32; a block a row, 32 weights a thread.
//
// Macros: FORMAT, DENSE (FORMAT is F32, F16 or BF16), PLANES (bit planes of tiles, 0 where the table is not in tiles).

#include "linear/cuda/blocks.cuh"
#include "linear/cuda/numbers.cuh"
#include "step.cuh"

#if PLANES
// Weight of bit i of a lane's words; [tile][chunk][plane, pair of groups][lane][group of the pair, half of the tile].
__device__ __forceinline__ void put_row(const unsigned char* bits, const unsigned char* scales, float* out, int row,
                                        int width) {
    long long chunks = (width + 511) / 512, tile = row / 16;
    int half = row % 16 / 8;
    for (int piece = threadIdx.x; piece < width / 32; piece += blockDim.x) {
        int group = piece / 4 % 4, lane = row % 8 * 4 + piece % 4;
        long long at = tile * chunks + piece / 16;
        int item = group % 2 * 2 + half;
        unsigned words[2];
#pragma unroll
        for (int plane = 0; plane < 2; plane++) {
            long long vector = (at * (2 * PLANES) + (plane % PLANES) * 2 + group / 2) * 32 + lane;
            words[plane] = reinterpret_cast<const unsigned*>(bits)[vector * 4 + item];
        }
        float scale = half_at(scales + ((at * 32 + row % 8 * 4 + group) * 2 + half) * 2);
        float4* to = reinterpret_cast<float4*>(out + 32 * piece);
        for (int i = 0; i < 8; i++) {
            float w[4];
#pragma unroll
            for (int b = 0; b < 4; b++) {
                int high = words[0] >> (4 * i + b) & 1, low = PLANES == 2 ? words[1] >> (4 * i + b) & 1 : 0;
                w[b] = __fmul_rn((float)(2 * high + low - 1), scale);
            }
            to[i] = make_float4(w[0], w[1], w[2], w[3]);
        }
    }
}
#elif DENSE
__device__ __forceinline__ void put_row(const unsigned char* data, const unsigned char*, float* out, int row,
                                        int width) {
    const FORMAT::Number* numbers = reinterpret_cast<const FORMAT::Number*>(data) + (long long)row * width;
    for (int k = threadIdx.x; k < width; k += blockDim.x) out[k] = FORMAT::value(numbers[k]);
}
#else
__device__ __forceinline__ void put_row(const unsigned char* data, const unsigned char*, float* out, int row,
                                        int width) {
    using Set = Pieces<FORMAT>;
    const unsigned char* blocks = data + (long long)row * (width / FORMAT::BLOCK) * FORMAT::BYTES;
    for (int index = threadIdx.x; index < width / 32; index += blockDim.x) {
        Set::Type piece;
        Set::read(piece, blocks, index);
        float4* to = reinterpret_cast<float4*>(out + 32 * index);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float w[4];
            Set::decode(w, piece, i);
            to[i] = make_float4(w[0], w[1], w[2], w[3]);
        }
    }
}
#endif

extern "C" __global__ void embed(const unsigned char* data, const unsigned char* scales, float* out, const int* step,
                                 int width) {
    let_next_start();
    wait_for_previous();
    int m = blockIdx.x;
    if (m >= step_rows(step)) return;
    put_row(data, scales, out + (long long)m * width, step_token(step, m), width);
}
