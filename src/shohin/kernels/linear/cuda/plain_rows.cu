// Live rows prepared for the plain kernels, one block a row. GROUP, RUN_LENGTH, LANES: the template parameters of
// prepare_row. NORM: whether the rows are normed; GATHER: whether row i is the step's wanted row i.

#include "linear/cuda/plain_rows.cuh"
#include "step.cuh"

extern __shared__ __align__(16) unsigned char shared_bytes[];

// value_stride: bytes of a row of values; scale_stride, sum_stride: floats of a row.
extern "C" __global__ void prepare(const float* x, const float* norm, unsigned char* values, float* scales, float* sums,
                                   const int* step, int width, float eps, int value_stride, int scale_stride,
                                   int sum_stride) {
    let_next_start();
    wait_for_previous();
    int i = blockIdx.x, live = GATHER ? step_wanted(step) : step_rows(step);
    if (i >= live) return;
    long long source = GATHER ? step_row(step, i) : i;
    RowPlace place = {values + (long long)i * value_stride, scales + (long long)i * scale_stride,
                      sums + (long long)i * sum_stride};
    float* squares = reinterpret_cast<float*>(shared_bytes);
    prepare_row<GROUP, RUN_LENGTH, LANES>(place, x + source * width, NORM ? norm : nullptr, width, eps, squares);
}
