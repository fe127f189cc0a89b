// The best token of each wanted row. Operands and parameters: op.py.
#include "kernels/kernel_entry.hpp"
#include "kernels/lanes.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

constexpr std::int64_t kSpan = 16384;  // logits that one item looks at

// The greatest logit of a span; `finite` is false where one is NaN or infinite.
struct Best {
    float value;
    std::int32_t finite;
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

// A float's bits as a number that orders as the float does, but for a negative zero just below zero.
std::int32_t ordered(float x) {
    const auto bits = std::bit_cast<std::int32_t>(x);
    return bits ^ (bits >> 31 & 0x7FFFFFFF);
}

// As integers, so that the loop becomes vector code.
Best best_of(const float *logits, std::int64_t count) {
    std::int32_t top = INT32_MIN, low = INT32_MAX;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int32_t at = ordered(logits[i]);
        top = at > top ? at : top;
        low = at < low ? at : low;
    }
    constexpr std::int32_t kInfinity = 0x7F800000;
    const bool finite = top < kInfinity && low > ~kInfinity;
    return {std::bit_cast<float>(top ^ (top >> 31 & 0x7FFFFFFF)), finite};
}

// The first of `count` logits that equals `value`; one of them does.
std::int64_t index_of(const float *logits, std::int64_t count, float value) {
    constexpr std::int64_t kBlock = 256;
    std::int64_t first = 0;
    for (; first + kBlock <= count; first += kBlock) {
        int hits = 0;
        for (std::int64_t i = first; i < first + kBlock; ++i) hits += logits[i] == value;
        if (hits != 0) break;
    }
    while (logits[first] != value) ++first;
    return first;
}

std::int64_t span_items(const Call &call, const Step &step) { return step.wanted_rows * spans(call); }

void run_spans(const Call &call, const Step &, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
    auto *found = reinterpret_cast<Best *>(scratch.shared);
    for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t row = item / spans(call), first = item % spans(call) * kSpan;
        found[item] = best_of(call[0].as<float>() + row * call[0].columns + first, least(kSpan, vocabulary(call) - first));
    }
}

std::int64_t row_items(const Call &, const Step &step) { return step.wanted_rows; }

void run_rows(const Call &call, const Step &, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
    for (std::int64_t row = begin; row < end; ++row) {
        const Best *found = reinterpret_cast<const Best *>(scratch.shared) + row * spans(call);
        std::int64_t best = 0;
        bool finite = found[0].finite != 0;
        for (std::int64_t s = 1; s < spans(call); ++s) {
            finite = finite && found[s].finite != 0;
            if (found[s].value > found[best].value) best = s;
        }
        std::int64_t index = -1;
        if (finite) {
            const std::int64_t first = best * kSpan;
            const float *logits = call[0].as<float>() + row * call[0].columns + first;
            index = first + index_of(logits, least(kSpan, vocabulary(call) - first), found[best].value);
        }
        call[1].as<std::int32_t>()[row] = static_cast<std::int32_t>(index);
        call[2].as<std::int32_t>()[row] = index < 0;
    }
}

constexpr Stage kStages[] = {{span_items, run_spans}, {row_items, run_rows}};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(pick, prepare, nullptr, kStages)
