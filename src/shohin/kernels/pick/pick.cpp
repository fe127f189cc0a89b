// The best token of each wanted row. Operands and parameters: op.py.
#include "kernels/kernel_entry.hpp"
#include "kernels/lanes.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

constexpr std::int64_t kSpan = 16384;  // logits that one item looks at

// The best of a span: its lowest index, or -1 where a logit is NaN or infinite.
struct Best {
    float value;
    std::int32_t index;
};

std::int64_t vocabulary(const Call &call) { return call.ints[0]; }

std::int64_t spans(const Call &call) { return (vocabulary(call) + kSpan - 1) / kSpan; }

Needs prepare(const Call &call) {
    expect_operands(call, 3, 3, 1, 0);
    expect_buffer(call, 0, "logits", Kind::f32, call.wanted, call[0].columns, false);
    if (vocabulary(call) < 1 || vocabulary(call) > call[0].columns || call[0].columns > INT32_MAX)
        fail("pick: a vocabulary of %lld asked of logits %lld wide", static_cast<long long>(vocabulary(call)),
             static_cast<long long>(call[0].columns));
    // ids and status are vectors: one row of `wanted` columns.
    expect_buffer(call, 1, "ids", Kind::i32, 1, call.wanted, true);
    expect_buffer(call, 2, "status", Kind::i32, 1, call.wanted, true);
    return {call.wanted * spans(call) * static_cast<std::int64_t>(sizeof(Best)), 0};
}

Best best_of(const float *logits, std::int64_t first, std::int64_t last) {
    float top = logits[first];
    std::uint32_t size = 0;
    for (std::int64_t i = first; i < last; ++i) {
        const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(logits[i]) & 0x7FFFFFFFu;
        size = magnitude > size ? magnitude : size;
    }
    if (size >= 0x7F800000u) return {0.0f, -1};
    F8 tops = all(top);
    std::int64_t i = first;
    float lanes[8];
    store(lanes, tops);
    for (; i + 8 <= last; i += 8)
        for (int l = 0; l < 8; ++l) lanes[l] = logits[i + l] > lanes[l] ? logits[i + l] : lanes[l];
    for (int l = 0; l < 8; ++l) top = lanes[l] > top ? lanes[l] : top;
    for (; i < last; ++i) top = logits[i] > top ? logits[i] : top;
    i = first;
    while (!(logits[i] == top)) ++i;
    return {top, static_cast<std::int32_t>(i)};
}

std::int64_t span_items(const Call &call, const Step &step) { return step.wanted_rows * spans(call); }

void run_spans(const Call &call, const Step &, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
    auto *found = reinterpret_cast<Best *>(scratch.shared);
    for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t row = item / spans(call), first = item % spans(call) * kSpan;
        found[item] = best_of(call[0].as<float>() + row * call[0].columns, first,
                              least(first + kSpan, vocabulary(call)));
    }
}

std::int64_t row_items(const Call &, const Step &step) { return step.wanted_rows; }

void run_rows(const Call &call, const Step &, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
    for (std::int64_t row = begin; row < end; ++row) {
        const Best *found = reinterpret_cast<const Best *>(scratch.shared) + row * spans(call);
        Best best = found[0];
        for (std::int64_t s = 1; s < spans(call); ++s) {
            if (best.index < 0 || found[s].index < 0)
                best.index = -1;
            else if (found[s].value > best.value)
                best = found[s];
        }
        call[1].as<std::int32_t>()[row] = best.index;
        call[2].as<std::int32_t>()[row] = best.index < 0;
    }
}

constexpr Stage kStages[] = {{span_items, run_spans}, {row_items, run_rows}};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(pick, prepare, nullptr, kStages)
