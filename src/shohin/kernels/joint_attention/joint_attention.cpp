// Non-causal attention of all tokens over all tokens. Operands and parameters: op.py.
#include "kernels/attend/softmax.hpp"
#include "kernels/kernel_entry.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

enum { kQ, kK, kV, kOut };

std::int64_t heads(const Call &call) { return call.ints[0]; }
std::int64_t tokens(const Call &call) { return call.ints[1]; }
std::int64_t dim(const Call &call) { return call.ints[2]; }

Needs prepare(const Call &call) {
    expect_operands(call, 4, 4, 3, 0);
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    if (heads(call) < 1 || tokens(call) < 1 || dim(call) < 1 || dim(call) > kMostHeadDim ||
        heads(call) > kMost / tokens(call))
        fail("joint_attention: %lld heads of %lld tokens of %lld are not supported",
             static_cast<long long>(heads(call)), static_cast<long long>(tokens(call)),
             static_cast<long long>(dim(call)));
    const char *names[] = {"q", "k", "v"};
    for (int i = 0; i < 3; ++i)
        expect_buffer(call, i, names[i], Kind::f32, heads(call) * tokens(call), dim(call), false);
    expect_buffer(call, kOut, "out", Kind::f32, tokens(call), heads(call) * dim(call), true);
    return {0, static_cast<std::int64_t>(sizeof(Attention))};
}

// One item is up to kMostQueries tokens of one head, which then share one pass over the keys.
std::int64_t runs(const Call &call) { return (tokens(call) + kMostQueries - 1) / kMostQueries; }

std::int64_t items(const Call &call, const Step &) { return heads(call) * runs(call); }

void run(const Call &call, const Step &, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
    auto &a = *reinterpret_cast<Attention *>(scratch.own);
    const std::int64_t d = dim(call), s = tokens(call), padded = round_up(d, 8);
    const auto row = [&](const Operand &from, std::int64_t at, float *room) -> const float * {
        const float *x = from.as<float>() + at * d;
        if (d == padded) return x;
        for (std::int64_t i = 0; i < padded; ++i) room[i] = i < d ? x[i] : 0.0f;
        return room;
    };
    for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t head = item / runs(call), first = item % runs(call) * kMostQueries;
        const int queries = static_cast<int>(least(kMostQueries, s - first));
        for (int g = 0; g < queries; ++g) {
            const float *q = call[kQ].as<float>() + (head * s + first + g) * d;
            for (std::int64_t i = 0; i < padded; ++i) a.q[g][i] = i < d ? q[i] : 0.0f;
        }
        weighted_sums(
            a, queries, d, s, [&](std::int64_t t, float *room) { return row(call[kK], head * s + t, room); },
            [&](std::int64_t t, float *room) { return row(call[kV], head * s + t, room); });
        for (int g = 0; g < queries; ++g)
            std::memcpy(call[kOut].as<float>() + ((first + g) * heads(call) + head) * d, a.out[g],
                        static_cast<std::size_t>(d) * sizeof(float));
    }
}

constexpr Stage kStages[] = {{items, run}};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(joint_attention, prepare, nullptr, kStages)
