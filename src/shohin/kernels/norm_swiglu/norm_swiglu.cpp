// RMSNorm, gate and up projections, SwiGLU. Operands and parameters: op.py.
#include "kernels/kernel_entry.hpp"
#include "kernels/linear/projection.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

Projection view(const Call &call) {
    return {0, 1, 2, 2, call.ints[0] == 1, false, static_cast<float>(call.floats[0])};
}

Needs prepare(const Call &call) {
    expect_operands(call, 5, 5, 1, 1);
    int8_mode(call, 0);
    expect_eps(call, 0);
    std::int64_t n = 0;
    const Needs needs = prepare_projection(call, view(call), n);
    if (call[2].rows != call[3].rows)
        fail("norm_swiglu: gate has %lld rows and up %lld", static_cast<long long>(call[2].rows),
             static_cast<long long>(call[3].rows));
    expect_buffer(call, 4, "out", Kind::f32, call.rows, call[2].rows, true);
    return needs;
}

std::int64_t strips(const Call &call, const Step &step) { return strips_of(call[2]) * chunks_of(step.rows); }

// A strip takes rows r of gate and of up together, so that the product needs no second pass.
void run_products(const Call &call, const Step &step, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
    const Input in = input_of(call, step, view(call), scratch.shared);
    auto &space = *reinterpret_cast<Workspace *>(scratch.own);
    const Operand &out = call[4];
    const std::int64_t per_chunk = strips_of(call[2]);
    for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t m0 = item / per_chunk * kRowChunk, m1 = least(m0 + kRowChunk, step.rows);
        const std::int64_t strip = item % per_chunk, column = strip * kTile;
        for (int w = 0; w < 2; ++w) project(call[2 + w], strip, in, w, m0, m1, space, space.acc[w]);
        const std::int64_t columns = least(kTile, out.columns - column);
        for (std::int64_t m = m0; m < m1; ++m) {
            const float *gate = space.acc[0] + (m - m0) * kTile, *up = space.acc[1] + (m - m0) * kTile;
            float product[kTile];
            for (int r = 0; r < kTile; ++r) product[r] = gate[r] / (1.0f + exponential(-gate[r])) * up[r];
            std::memcpy(out.as<float>() + m * out.columns + column, product,
                        static_cast<std::size_t>(columns) * sizeof(float));
        }
    }
}

constexpr Stage kStages[] = {kRowStage<view>, {strips, run_products}};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(norm_swiglu, prepare, nullptr, kStages)
