// Softmax-weighted sums over keys in chunks of 256, merged in order (softmax.py): what both attention ops run.
//
// A chunk's sums depend on its keys and on one query only, so it makes no difference which queries share a pass over the
// keys, or whether chunks are merged as they come or kept and merged later.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/attend/tile.hpp"

namespace shohin::SHOHIN_TIER {

constexpr std::int64_t kKeyChunk = 256;
constexpr std::int64_t kRowBlock = 16;  // keys or values that stay in the first-level cache while all queries take them
constexpr int kMostQueries = 32;          // that share one pass over the keys; a multiple of kTogether
constexpr int kMostHeadDim = 256;

// Of one worker. Rows of dimensions are `padded` long: a multiple of kWidth, with zeros past the end.
struct Attention {
    int queries;
    std::int64_t padded;
    float factor;                      // of every score: 1 / sqrt(dim)
    std::int64_t keys[kMostQueries];   // how many each query sees, at least one
    float top[kMostQueries];           // of the chunk: maximum and sum of exponentials
    float total[kMostQueries];
    float all_top[kMostQueries];       // the same of all chunks so far
    float all_total[kMostQueries];
    alignas(64) float q[kMostQueries * kMostHeadDim];
    alignas(64) float part[kMostQueries * kMostHeadDim];  // weighted sums of a chunk
    alignas(64) float out[kMostQueries * kMostHeadDim];
    alignas(64) float scores[kMostQueries][kKeyChunk];
    alignas(64) float rows[kRowBlock * kMostHeadDim];   // keys or values as floats
    alignas(64) float key_scales[kKeyChunk];
    alignas(64) float value_scales[kKeyChunk];

    // Keys of the chunk at `first` that query g sees.
    std::int64_t seen(int g, std::int64_t first) const {
        const std::int64_t n = keys[g] - first;
        return n < 0 ? 0 : least(n, kKeyChunk);
    }
    std::int64_t longest() const {
        std::int64_t n = 0;
        for (int g = 0; g < queries; ++g) n = keys[g] > n ? keys[g] : n;
        return n;
    }
};

// Start a pass: queries of `dim` dimensions, none yet.
inline void begin(Attention &a, std::int64_t dim) {
    a.queries = 0;
    a.padded = round_up(dim, kWidth);
    a.factor = 1.0f / std::sqrt(static_cast<float>(dim));
}

inline void add_query(Attention &a, const float *q, std::int64_t dim, std::int64_t keys) {
    float *to = a.q + a.queries * a.padded;
    std::memcpy(to, q, static_cast<std::size_t>(dim) * sizeof(float));
    for (std::int64_t d = dim, end = a.padded; d < end; ++d) to[d] = 0.0f;
    a.keys[a.queries++] = keys;
}

// Queries are worked on in pairs; an odd last one gets a companion whose sums nobody reads.
inline int pair_up(Attention &a) {
    const int queries = a.queries;
    if (queries % 2 != 0) {
        std::memset(a.q + queries * a.padded, 0, static_cast<std::size_t>(a.padded) * sizeof(float));
        a.keys[queries] = a.keys[queries - 1];
        ++a.queries;
    }
    return queries;
}

// Rows of keys or values side by side in memory, `stride` values apart.
struct Block {
    const void *rows;
    Kind kind;  // f32, f16 or i8
    std::int64_t stride;
    Ahead ahead;  // as many rows
};

// run(pointer to the first row) with the type of its values.
template <class Run>
inline void typed(const Block &block, const Run &run) {
    if (block.kind == Kind::f32)
        run(static_cast<const float *>(block.rows));
    else if (block.kind == Kind::f16)
        run(static_cast<const std::uint16_t *>(block.rows));
    else
        run(static_cast<const std::int8_t *>(block.rows));
}

// run(how many as a type, first) for queries side by side.
template <class Run>
inline void in_groups(int queries, const Run &run) {
    int g = 0;
    for (; g + kTogether <= queries; g += kTogether) run(std::integral_constant<int, kTogether>{}, g);
    for (; g < queries; g += 2) run(std::integral_constant<int, 2>{}, g);
}

template <class Keys>
inline void score_chunk(Attention &a, std::int64_t first, std::int64_t count, const Keys &keys) {
    for (std::int64_t t = 0; t < count; t += kRowBlock) {
        const std::int64_t n = least(kRowBlock, count - t);
        const Block block = keys.block(first + t, n, round_up(n, kKeyBlock), a);
        typed(block, [&](const auto *rows) {
            in_groups(a.queries, [&](auto group, int g) {
                std::int64_t most = 0;
                for (int i = g; i < g + group; ++i) most = a.seen(i, first) > most ? a.seen(i, first) : most;
                for (std::int64_t i = 0; i < least(n, most - t); i += kKeyBlock) {
                    if (g == 0)
                        for (int row = 0; row < kKeyBlock; ++row) SHOHIN_ASK_FOR(block.ahead, i + row);
                    score_block<group>(a.q + g * a.padded, rows + i * block.stride, block.stride, a.padded,
                                       a.scores[g] + t + i, kKeyChunk);
                }
            });
        });
    }
}

inline float highest(const float *scores, std::int64_t count) {
    F16 tops = all16(scores[0]);
    std::int64_t t = 0;
    for (; t + kWidth <= count; t += kWidth) tops = higher(load16(scores + t), tops);
    float lanes[kWidth], top = scores[0];
    store16(lanes, tops);
    for (float lane : lanes) top = lane > top ? lane : top;
    for (; t < count; ++t) top = scores[t] > top ? scores[t] : top;
    return top;
}

// exp(s - max) of one chunk's scores in place; returns their sum, in sixteen running sums.
inline float exponentials(float *SHOHIN_RESTRICT scores, std::int64_t count, float top) {
    for (std::int64_t t = 0; t < count; ++t) scores[t] = exponential(scores[t] - top);
    F16 total = zeros16();
    std::int64_t t = 0;
    for (; t + kWidth <= count; t += kWidth) total = total + load16(scores + t);
    float s = sum(total);
    for (; t < count; ++t) s += scores[t];
    return s;
}

// Scores to weights. A cache of codes has a scale a key: it is applied to the score and to the weight of the value.
template <class Keys, class Values>
inline void weigh_chunk(Attention &a, std::int64_t first, std::int64_t count, const Keys &keys, const Values &values) {
    const bool scaled = keys.scales(first, count, a.key_scales);
    if (scaled) values.scales(first, count, a.value_scales);
    for (int g = 0; g < a.queries; ++g) {
        const std::int64_t n = a.seen(g, first);
        if (n == 0) continue;
        float *SHOHIN_RESTRICT s = a.scores[g];
        if (scaled)
            for (std::int64_t t = 0; t < n; ++t) s[t] *= a.key_scales[t];
        for (std::int64_t t = 0; t < n; ++t) s[t] *= a.factor;
        a.top[g] = highest(s, n);
        a.total[g] = exponentials(s, n, a.top[g]);
        if (scaled)
            for (std::int64_t t = 0; t < n; ++t) s[t] *= a.value_scales[t];
    }
}

template <class Values>
inline void sum_chunk(Attention &a, std::int64_t first, std::int64_t count, const Values &values, float *into) {
    std::memset(into, 0, static_cast<std::size_t>(a.queries * a.padded) * sizeof(float));
    for (std::int64_t t = 0; t < count; t += kRowBlock) {
        const std::int64_t n = least(kRowBlock, count - t);
        const Block block = values.block(first + t, n, n, a);
        typed(block, [&](const auto *rows) {
            in_groups(a.queries, [&](auto group, int g) {
                std::int64_t all = n;  // that all of the group see
                for (int i = g; i < g + group; ++i) all = least(all, a.seen(i, first) - t);
                all = all < 0 ? 0 : all;
                if (all > 0)
                    add_values<group>(a.scores[g] + t, kKeyChunk, rows, block.stride, all, into + g * a.padded, a.padded,
                                      g == 0 ? block.ahead : Ahead{});
                for (int i = g; all < n && i < g + group; ++i) {
                    const std::int64_t rest = least(n, a.seen(i, first) - t) - all;
                    if (rest > 0)
                        add_values<1>(a.scores[i] + t + all, kKeyChunk, rows + all * block.stride, block.stride, rest,
                                      into + i * a.padded, a.padded, Ahead{});
                }
            });
        });
    }
}

// Sums over the keys first to first + 255: into [query][padded], a.top and a.total of every query that sees any of them.
//
// Keys and Values: block(t, n, fill, a) gives keys t to t + n - 1 as they lie in memory, or, where that does not do, as
// floats [fill][padded] in a.rows, with zeros past the n-th; scales(t, n, to) writes a scale for each, or returns false
// where there are none.
template <class Keys, class Values>
inline void chunk_sums(Attention &a, std::int64_t first, const Keys &keys, const Values &values, float *into) {
    const std::int64_t count = least(kKeyChunk, a.longest() - first);
    score_chunk(a, first, count, keys);
    weigh_chunk(a, first, count, keys, values);
    sum_chunk(a, first, count, values, into);
}

// Merge a chunk (its maximum m, sum l and weighted sums) into what came before it.
inline void merge(float &top, float &total, float *out, float m, float l, const float *part, std::int64_t padded) {
    const float merged = m > top ? m : top;
    const float before = exponential(top - merged), now = exponential(m - merged);
    total = total * before + l * now;
    for (std::int64_t d = 0; d < padded; d += 8)
        store(out + d, load(out + d) * all(before) + load(part + d) * all(now));
    top = merged;
}

inline void normalise(float *out, float total, std::int64_t padded) {
    const F8 inverse = all(1.0f / total);
    for (std::int64_t d = 0; d < padded; d += 8) store(out + d, load(out + d) * inverse);
}

// a.out[g] = softmax over the keys that query g sees of q[g] . key * factor, times the values.
template <class Keys, class Values>
void weighted_sums(Attention &a, const Keys &keys, const Values &values) {
    const int queries = pair_up(a);
    const std::int64_t longest = a.longest();
    for (std::int64_t first = 0; first < longest; first += kKeyChunk) {
        chunk_sums(a, first, keys, values, first == 0 ? a.out : a.part);
        for (int g = 0; g < queries; ++g) {
            if (first == 0) {
                a.all_top[g] = a.top[g];
                a.all_total[g] = a.total[g];
            } else if (a.seen(g, first) > 0) {
                merge(a.all_top[g], a.all_total[g], a.out + g * a.padded, a.top[g], a.total[g],
                      a.part + g * a.padded, a.padded);
            }
        }
    }
    for (int g = 0; g < queries; ++g) normalise(a.out + g * a.padded, a.all_total[g], a.padded);
}

}  // namespace shohin::SHOHIN_TIER
