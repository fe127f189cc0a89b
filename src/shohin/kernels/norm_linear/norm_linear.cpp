// RMSNorm and a list of projections. Operands and parameters: op.py.
#include "kernels/kernel_entry.hpp"
#include "kernels/linear/projection.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

Projection view(const Call &call) {
    return {0, 1, 3, call.count - 3, call.ints[0] == 1, call.ints[1] == 1, static_cast<float>(call.floats[0])};
}

Needs prepare(const Call &call) {
    expect_operands(call, 4, 3 + kMostWeights, 2, 1);
    int8_mode(call, 0);
    expect_eps(call, 0);
    const Projection p = view(call);
    std::int64_t n = 0;
    const Needs needs = prepare_projection(call, p, n);
    expect_buffer(call, 2, "out", Kind::f32, p.capacity(call), n, true);
    return needs;
}

constexpr Stage kStages[] = {kRowStage<view>, kStripStage<view, put_strip, 2>};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(norm_linear, prepare, nullptr, kStages)
