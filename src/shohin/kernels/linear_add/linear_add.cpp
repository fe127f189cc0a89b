// A projection added to the residual stream. Operands and parameters: op.py.
#include "kernels/kernel_entry.hpp"
#include "kernels/linear/projection.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

Projection view(const Call &call) { return {0, -1, 1, 1, call.ints[0] == 1, false, 0}; }

Needs prepare(const Call &call) {
    expect_operands(call, 3, 3, 1, 0);
    int8_mode(call, 0);
    std::int64_t n = 0;
    const Needs needs = prepare_projection(call, view(call), n);
    expect_buffer(call, 2, "hidden", Kind::f32, call.rows, n, true);
    return needs;
}

constexpr Stage kStages[] = {kRowStage<view>, kStripStage<view, add_strip, 2>};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(linear_add, prepare, nullptr, kStages)
