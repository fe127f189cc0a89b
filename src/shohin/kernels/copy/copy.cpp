// Live rows copied as they are. Operands: op.py.
#include "kernels/kernel_entry.hpp"
#include "kernels/lanes.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

Needs prepare(const Call &call) {
    expect_operands(call, 2, 2, 0, 0);
    expect_buffer(call, 0, "x", Kind::f32, call.rows, call[0].columns, false);
    expect_buffer(call, 1, "out", Kind::f32, call.rows, call[0].columns, true);
    return {};
}

std::int64_t items(const Call &, const Step &step) { return step.rows; }

void run(const Call &call, const Step &, std::int64_t begin, std::int64_t end, const Scratch &) {
    const std::int64_t n = call[0].columns;
    std::memmove(call[1].as<float>() + begin * n, call[0].as<float>() + begin * n,
                 static_cast<std::size_t>((end - begin) * n) * sizeof(float));
}

constexpr Stage kStages[] = {{items, run}};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(copy, prepare, nullptr, kStages)
