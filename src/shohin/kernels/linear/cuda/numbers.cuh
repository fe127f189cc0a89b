// Plain numbers as they lie in a file.
#pragma once

#include "ptx.cuh"

struct F32 {
    using Number = float;
    __device__ static float value(float x) { return x; }
};

struct F16 {
    using Number = unsigned short;
    __device__ static float value(unsigned short x) { return half_to_float(x); }
};

struct BF16 {
    using Number = unsigned short;
    __device__ static float value(unsigned short x) { return __uint_as_float((unsigned)x << 16); }
};
