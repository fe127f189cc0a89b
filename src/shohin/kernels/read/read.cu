// Sums of chunks of 32-bit words, modulo 2^32: every byte is loaded once, as fast as the memory gives it. A block adds up
// its share of a chunk; the last block of a chunk to end writes the chunk's sum. Whole numbers: the order doesn't matter.
//
// Macros: THREADS, LOADS (of 16 bytes a thread).

#include "ptx.cuh"

__device__ __forceinline__ int sum_of(uint4 v) { return (int)(v.x + v.y + v.z + v.w); }

__device__ __forceinline__ int share_sum(const int* words, int count) {
    int sum = 0;
    if (count == 4 * THREADS * LOADS && (reinterpret_cast<unsigned long long>(words) & 15) == 0) {
        const uint4* wide = reinterpret_cast<const uint4*>(words) + threadIdx.x;
        uint4 held[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) held[i] = load_streaming(wide + i * THREADS);
#pragma unroll
        for (int i = 0; i < LOADS; i++) sum += sum_of(held[i]);
        return sum;
    }
    for (int i = threadIdx.x; i < count; i += THREADS) sum += words[i];
    return sum;
}

// totals: {sum so far, blocks that have ended} of each chunk, zero before and after.
extern "C" __global__ void __launch_bounds__(THREADS)
    read_words(const int* words, int* out, int* totals, int length, int shares) {
    __shared__ int total;
    let_next_start();
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    wait_for_previous();
    int chunk = blockIdx.x / shares, first = blockIdx.x % shares * (4 * THREADS * LOADS);
    int count = length - first < 4 * THREADS * LOADS ? length - first : 4 * THREADS * LOADS;
    int sum = share_sum(words + (long long)chunk * length + first, count);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) atomicAdd(&total, sum);
    __syncthreads();
    if (threadIdx.x != 0) return;
    int* mine = totals + 2 * chunk;
    atomicAdd(&mine[0], total);
    __threadfence();
    if (atomicAdd(&mine[1], 1) != shares - 1) return;
    __threadfence();
    out[chunk] = atomicAdd(&mine[0], 0);
    mine[0] = mine[1] = 0;
}
