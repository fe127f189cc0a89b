// Row sums of 32-bit words: the widest loads of the tier with several sums in flight. Operands: op.py.
#include "kernels/kernel_entry.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

// Four vectors of the widest tier; the compiler keeps them in registers.
constexpr std::int64_t kLanes = 64;

Needs prepare(const Call &call) {
    expect_operands(call, 2, 2, 0, 0);
    expect_buffer(call, 0, "words", Kind::i32, call[0].rows, call[0].columns, false);
    expect_buffer(call, 1, "out", Kind::i32, call[0].rows, 1, true);
    return {};
}

std::int64_t items(const Call &call, const Step &) { return call[0].rows; }

std::uint32_t sum(const std::uint32_t *words, std::int64_t n) {
    std::uint32_t lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += words[i + j];
    std::uint32_t total = 0;
    for (; i < n; ++i) total += words[i];
    for (const std::uint32_t lane : lanes) total += lane;
    return total;
}

void run(const Call &call, const Step &, std::int64_t begin, std::int64_t end, const Scratch &) {
    const std::int64_t n = call[0].columns;
    for (std::int64_t row = begin; row < end; ++row)
        call[1].as<std::uint32_t>()[row] = sum(call[0].as<std::uint32_t>() + row * n, n);
}

constexpr Stage kStages[] = {{items, run}};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(read, prepare, nullptr, kStages)
