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

// Keys or values of one head; what chunk_sums asks for.
struct HeadRows {
    const float *head;
    std::int64_t dim, padded;

    Block block(std::int64_t t, std::int64_t n, std::int64_t fill, Attention &a) const {
        const float *from = head + t * dim;
        if (dim == padded && n == fill) return {from, Kind::f32, dim, {}};
        for (std::int64_t i = 0; i < fill; ++i)
            for (std::int64_t d = 0; d < padded; ++d)
                a.rows[i * padded + d] = i < n && d < dim ? from[i * dim + d] : 0.0f;
        return {a.rows, Kind::f32, padded, {}};
    }
    bool scales(std::int64_t, std::int64_t, float *) const { return false; }
};

void run(const Call &call, const Step &, std::int64_t begin_item, std::int64_t end_item, const Scratch &scratch) {
    auto &a = *reinterpret_cast<Attention *>(scratch.own);
    const std::int64_t d = dim(call), s = tokens(call);
    for (std::int64_t item = begin_item; item < end_item; ++item) {
        const std::int64_t head = item / runs(call), first = item % runs(call) * kMostQueries;
        const std::int64_t last = least(first + kMostQueries, s);
        begin(a, d);
        for (std::int64_t t = first; t < last; ++t) add_query(a, call[kQ].as<float>() + (head * s + t) * d, d, s);
        weighted_sums(a, HeadRows{call[kK].as<float>() + head * s * d, d, a.padded},
                      HeadRows{call[kV].as<float>() + head * s * d, d, a.padded});
        for (std::int64_t t = first; t < last; ++t)
            std::memcpy(call[kOut].as<float>() + (t * heads(call) + head) * d, a.out + (t - first) * a.padded,
                        static_cast<std::size_t>(d) * sizeof(float));
    }
}

constexpr Stage kStages[] = {{items, run}};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(joint_attention, prepare, nullptr, kStages)
