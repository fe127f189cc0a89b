// What a chain of dependent phases costs before any of them computes: a phase is a launch that waits for the one before
// it (pass), or the time between two meetings of all blocks of one launch (meet).

#include "ptx.cuh"

// count: left in ``met`` unless it is 0.
extern "C" __global__ void __launch_bounds__(256) pass(int* met, int count) {
    let_next_start();
    wait_for_previous();
    if (count && blockIdx.x == 0 && threadIdx.x == 0) *met = count;
}

// arrived: zero before and after. Every block has a multiprocessor of its own, so all of them run at once.
extern "C" __global__ void __launch_bounds__(256) meet(int* met, int* arrived, int count) {
    wait_for_previous();
    for (int i = 1; i <= count; i++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(arrived, 1);
            while (*(volatile int*)arrived < i * (int)gridDim.x) {
            }
            __threadfence();
        }
        __syncthreads();
    }
    let_next_start();
    // The last block to leave clears what all of them have read: it counts on from where the meetings end.
    if (threadIdx.x == 0 && atomicAdd(arrived, 1) + 1 == (count + 1) * (int)gridDim.x) {
        *met = count;
        *arrived = 0;
    }
}
