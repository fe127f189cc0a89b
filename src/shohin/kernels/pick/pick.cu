// The best token of each wanted row: every block looks at SHARE logits, and the last one to end at what all found.

#include "ptx.cuh"
#include "step.cuh"

constexpr int THREADS = 256, LOADS = SHARE / THREADS;
constexpr unsigned EVERYBODY = 0xffffffffu;

// A place in the order: larger for a larger logit, and for the lower index among equals. What is not finite stands above
// every number.
struct Place {
    unsigned size, index;
};

constexpr unsigned BROKEN = 0xffffffffu;

__device__ __forceinline__ Place place_of(float logit, int index) {
    // The sum turns -0 into +0, its equal.
    unsigned bits = __float_as_uint(__fadd_rn(logit, 0.0f));
    if ((bits & 0x7fffffffu) >= 0x7f800000u) return {BROKEN, 0};
    return {bits & 0x80000000u ? ~bits : bits | 0x80000000u, (unsigned)index};
}

__device__ __forceinline__ Place better(Place a, Place b) {
    return b.size > a.size || (b.size == a.size && b.index < a.index) ? b : a;
}

// The best place of the block, in thread 0.
__device__ __forceinline__ Place best_of_block(Place best) {
    __shared__ Place parts[THREADS / 32];
    for (int step = 16; step > 0; step /= 2) {
        Place other = {__shfl_xor_sync(EVERYBODY, best.size, step), __shfl_xor_sync(EVERYBODY, best.index, step)};
        best = better(best, other);
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < THREADS / 32; i++) best = better(best, parts[i]);
    __syncthreads();
    return best;
}

// found: [rows][blocks]; arrived: a counter a row, zero before and after.
extern "C" __global__ void __launch_bounds__(THREADS)
    pick(const float* logits, int* ids, int* status, uint2* found, int* arrived, const int* step, int vocabulary,
         int width) {
    __shared__ bool last;
    let_next_start();
    wait_for_previous();
    int row = blockIdx.y, blocks = gridDim.x;
    if (row >= step_wanted(step)) return;
    const float* values = logits + (long long)row * width;
    int first = blockIdx.x * SHARE + threadIdx.x;
    float held[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) held[i] = first + i * THREADS < vocabulary ? values[first + i * THREADS] : 0.0f;
    Place best = {0, EVERYBODY};
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        if (first + i * THREADS < vocabulary) best = better(best, place_of(held[i], first + i * THREADS));
    best = best_of_block(best);
    if (threadIdx.x == 0) {
        found[(long long)row * blocks + blockIdx.x] = make_uint2(best.size, best.index);
        __threadfence();
        last = atomicAdd(&arrived[row], 1) == blocks - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    best = {0, EVERYBODY};
    for (int i = threadIdx.x; i < blocks; i += THREADS) {
        const volatile unsigned* theirs = reinterpret_cast<const volatile unsigned*>(found + (long long)row * blocks + i);
        best = better(best, {theirs[0], theirs[1]});
    }
    best = best_of_block(best);
    if (threadIdx.x != 0) return;
    ids[row] = best.size == BROKEN ? -1 : (int)best.index;
    status[row] = best.size == BROKEN;
    arrived[row] = 0;
}
