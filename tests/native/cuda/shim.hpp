// Lets a C++ compiler for CPUs take our CUDA sources as they are. Included before them.
#pragma once

#include "runtime.hpp"

#include "vectors.hpp"

#include "intrinsics.hpp"

#include <utility>

// Since one thread of the machine runs a block, and blocks follow each other, the compiler's thread-local variables are
// a block's shared ones; their segment is easily found and poisoned.
#define __shared__ thread_local
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __managed__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
// Another thread may write between two reads as far as the compiler knows.
#define __restrict__
#define __builtin_assume(condition) ((void)0)

#define threadIdx (::emulator::emulator_now->thread)
#define blockIdx (::emulator::emulator_grid.block)
#define blockDim (::emulator::emulator_grid.block_size)
#define gridDim (::emulator::emulator_grid.size)
constexpr int warpSize = 32;

#define __CUDACC__ 1
#define SHOHIN_EMULATOR 1
