// Keys and values as float16, for fast.cu. A thread rounds eight numbers; count is a multiple of 16.

#include "ptx.cuh"

extern "C" __global__ void __launch_bounds__(256)
    joint_halves(const float* keys, const float* values, uint4* halves, int count) {
    let_next_start();
    wait_for_previous();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count / 8) return;
    const float4* from = (const float4*)(blockIdx.y == 0 ? keys : values) + 2ll * i;
    float4 a = from[0], b = from[1];
    halves[(long long)blockIdx.y * (count / 8) + i] =
        make_uint4(pack_half2(a.x, a.y), pack_half2(a.z, a.w), pack_half2(b.x, b.y), pack_half2(b.z, b.w));
}
