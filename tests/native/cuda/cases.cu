// Small kernels for tests/kernels/test_cuda_emulator.py, one a CASE.

#include "ptx.cuh"
#include "step.cuh"

constexpr unsigned ALL = 0xffffffffu;
#define LANE (threadIdx.x % 32)

template <int COUNT, class T>
__device__ void load(T (&values)[COUNT], const T* from) {
    for (int i = 0; i < COUNT; i++) values[i] = from[threadIdx.x * COUNT + i];
}
template <int COUNT, class T>
__device__ void store(T* to, const T (&values)[COUNT]) {
    for (int i = 0; i < COUNT; i++) to[threadIdx.x * COUNT + i] = values[i];
}

extern "C" __global__ void bits(int* c, const unsigned* a, const unsigned* b) {
    int sums[4];
    load(sums, c);
    mma_b1(sums, a[threadIdx.x * 2], a[threadIdx.x * 2 + 1], b[threadIdx.x]);
    store(c, sums);
}

template <class T, void (&multiply)(T (&)[4], const unsigned (&)[4], const unsigned (&)[2])>
__device__ void product(T* c, const unsigned* a, const unsigned* b) {
    T sums[4];
    unsigned left[4], right[2];
    load(sums, c), load(left, a), load(right, b);
    multiply(sums, left, right);
    store(c, sums);
}
__device__ void s8(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma_s8(c, a, b); }
__device__ void f16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma_f16(c, a, b); }
__device__ void bf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma_bf16(c, a, b); }
extern "C" __global__ void bytes(int* c, const unsigned* a, const unsigned* b) { product<int, s8>(c, a, b); }
extern "C" __global__ void halves(float* c, const unsigned* a, const unsigned* b) { product<float, f16>(c, a, b); }
extern "C" __global__ void bfloats(float* c, const unsigned* a, const unsigned* b) { product<float, bf16>(c, a, b); }

// matrix: 32 rows of 8 halves; out: x4, x4 transposed, x2, x2 transposed.
extern "C" __global__ void matrices(const uint4* matrix, unsigned* out) {
    __shared__ uint4 rows[32];
    rows[threadIdx.x] = matrix[threadIdx.x];
    __syncwarp();
    unsigned four[4], two[2];
    load_matrix_x4(four, &rows[threadIdx.x]);
    store(out, four);
    load_matrix_x4_transposed(four, &rows[threadIdx.x]);
    store(out + 128, four);
    load_matrix_x2(two, &rows[threadIdx.x % 16]);
    store(out + 256, two);
    load_matrix_x2_transposed(two, &rows[threadIdx.x % 16]);
    store(out + 320, two);
}

extern "C" __global__ void lanes(const int* x, int* out) {
    int v = x[threadIdx.x], t = threadIdx.x, n = blockDim.x;
    out[t] = __shfl_sync(ALL, v, 5);
    out[n + t] = __shfl_sync(ALL, v, t + 3, 8);
    out[2 * n + t] = __shfl_xor_sync(ALL, v, 9);
    out[3 * n + t] = __shfl_up_sync(ALL, v, 2, 16);
    out[4 * n + t] = __shfl_down_sync(ALL, v, 3, 8);
    out[5 * n + t] = (int)__ballot_sync(ALL, v > 0);
    out[6 * n + t] = __any_sync(ALL, v == 7) * 2 + __all_sync(ALL, v > -1000);
    out[7 * n + t] = __reduce_add_sync(ALL, v);
    out[8 * n + t] = (int)__reduce_max_sync(ALL, (unsigned)v);
    out[9 * n + t] = (int)__match_any_sync(ALL, (unsigned)v & 3u);
    // The halves of a warp by themselves, in different calls.
    if (LANE < 16)
        out[10 * n + t] = __reduce_min_sync(0xffffu, v);
    else
        out[10 * n + t] = __shfl_sync(0xffff0000u, v, 20);
}

// Each thread's value goes round the block once.
extern "C" __global__ void barriers(const int* x, int* out) {
    __shared__ int values[96];
    int t = threadIdx.x, n = blockDim.x, mine = x[t];
    for (int i = 0; i < n; i++) {
        values[(t + 1) % n] = mine;
        __syncthreads();
        mine = values[t];
        __syncthreads();
        if (i == 4) out[t] = mine;
    }
    out[n + t] = mine;
    out[2 * n + t] = __syncthreads_or(x[t] == 7) * 2 + __syncthreads_and(x[t] > -1000);
    out[3 * n + t] = __syncthreads_count(x[t] > 0);
}

extern "C" __global__ void atomics(const int* x, int* out, unsigned* order) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&out[0], x[i]);
    atomicMax(&out[1], x[i]);
    atomicMin(&out[2], x[i]);
    atomicXor(&out[3], x[i]);
    int old = out[4], seen;
    while ((seen = atomicCAS(&out[4], old, old + 2)) != old) old = seen;
    order[blockIdx.x] = atomicAdd((unsigned*)&out[5], 1u);
}

// Of x and y: functions whose meaning NumPy knows.
extern "C" __global__ void numbers(const float* x, const unsigned* y, unsigned* out) {
    int t = threadIdx.x, n = blockDim.x;
    float v = x[t];
    unsigned u = y[t], w = y[(t + 1) % n];
    out[t] = float_to_half(v);
    out[n + t] = pack_bf16x2(v, -v);
    out[2 * n + t] = pack_half2(v, -v);
    out[3 * n + t] = __float_as_uint(half_to_float((unsigned short)u));
    out[4 * n + t] = (unsigned)__float2int_rn(v);
    out[5 * n + t] = (unsigned)__dp4a((int)u, (int)w, -3);
    out[6 * n + t] = __byte_perm(u, w, 0xf042u);
    out[7 * n + t] = __brev(u) ^ (unsigned)(__popc(u) | __clz((int)(u >> 3)) << 8 | __ffs((int)(u & ~1u)) << 16);
    out[8 * n + t] = __funnelshift_l(u, w, 7) ^ __funnelshift_r(u, w, 9);
    out[9 * n + t] = __umulhi(u, w);
    out[10 * n + t] = __float_as_uint(fast_exp2(v));
}

// What follows is wrong on purpose.
extern "C" __global__ void divergent(int* out) {
    __shared__ int values[64];
    values[threadIdx.x] = 1;
    if (threadIdx.x < 40) __syncthreads();
    out[threadIdx.x] = values[0];
}

extern "C" __global__ void mismatched(int* out) {
    if (LANE < 16)
        out[threadIdx.x] = __shfl_sync(ALL, 1, 0);
    else
        out[threadIdx.x] = __ballot_sync(ALL, 1);
}

extern "C" __global__ void left_out(int* out) { out[threadIdx.x] = __shfl_sync(0xffu, 1, 0); }

extern "C" __global__ void outside(const int* x, int* out, int index) { out[threadIdx.x] = x[index]; }

extern "C" __global__ void beside(int* out, int index) { out[index] = 1; }

extern "C" __global__ void misaligned(const unsigned char* x, uint4* out, int offset) {
    out[threadIdx.x] = *(const uint4*)(x + offset);
}

extern __shared__ __align__(16) unsigned char shared_bytes[];

extern "C" __global__ void dynamic(const unsigned* x, unsigned* out, int index) {
    unsigned* words = (unsigned*)shared_bytes;
    out[threadIdx.x] = words[threadIdx.x];
    __syncthreads();
    words[index + threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void large(int* out) {
    __shared__ int values[2][6 * 1024 + 64 * TOO_LARGE];
    values[1][threadIdx.x] = out[0];
    __syncthreads();
    out[threadIdx.x] = values[1][threadIdx.x ^ 1];
}

// WAITS 1: waits for all copies, 0: for all but the last group.
extern "C" __global__ void copies(const uint4* x, uint4* out) {
    __shared__ uint4 values[2][32];
    for (int i = 0; i < 2; i++) {
        copy_async_16(&values[i][threadIdx.x], &x[i * 32 + threadIdx.x]);
        copy_async_commit();
    }
    copy_async_wait<WAITS ? 0 : 1>();
    __syncthreads();
    for (int i = 0; i < 2; i++) out[i * 32 + threadIdx.x] = values[i][31 - threadIdx.x];
}

// EARLY: 0 right, 1 reads before it waits, 2 does not wait, 3 leaves that to the first block, 4 all blocks leave it.
extern "C" __global__ void follows(const int* x, int* out) {
    if (EARLY == 2) return;
    if (EARLY == 4 || (EARLY == 3 && blockIdx.x > 0)) return another_block_waits();
    int early = EARLY == 1 ? x[threadIdx.x] : 0;
    wait_for_previous();
    out[threadIdx.x] = (EARLY == 1 ? early : x[threadIdx.x]) + 1;
}

// A race: the last thread to write wins.
extern "C" __global__ void races(int* out) {
    __shared__ int value;
    value = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = value;
}

extern "C" __global__ void endless(volatile int* out) {
    while (out[0] == 0) {
    }
}
