// Softmax-weighted sums over keys in chunks of 256, merged in order (softmax.py): what both attention ops run.
#pragma once

#include <cmath>

#include "kernels/lanes.hpp"

namespace shohin::SHOHIN_TIER {

constexpr std::int64_t kKeyChunk = 256;
constexpr int kMostQueries = 16;    // that share the keys of one pass
constexpr int kMostHeadDim = 256;

// Of one worker: queries, their scores in a chunk, and the chunk's and the merged sums. Rows are padded with zeros.
struct Attention {
    alignas(64) float q[kMostQueries][kMostHeadDim];
    alignas(64) float scores[kMostQueries][kKeyChunk];
    alignas(64) float part[kMostQueries][kMostHeadDim];
    alignas(64) float out[kMostQueries][kMostHeadDim];
    alignas(64) float row[kMostHeadDim];  // a key or value as floats
    float top[kMostQueries];
    float total[kMostQueries];
};

// exp(s - max) of one chunk's scores in place; returns their sum, in eight running sums.
inline float exponentials(float *scores, std::int64_t count, float top) {
    for (std::int64_t t = 0; t < count; ++t) scores[t] = exponential(scores[t] - top);
    F8 sums = zeros();
    std::int64_t t = 0;
    for (; t + 8 <= count; t += 8) sums = sums + load(scores + t);
    float total = sum(sums);
    for (; t < count; ++t) total += scores[t];
    return total;
}

// Merge a chunk (its maximum m, sum l, and a.part) into query g.
inline void merge(Attention &a, int g, float m, float l, std::int64_t padded) {
    const float merged = m > a.top[g] ? m : a.top[g];
    const float before = exponential(a.top[g] - merged), now = exponential(m - merged);
    a.total[g] = a.total[g] * before + l * now;
    for (std::int64_t d = 0; d < padded; d += 8)
        store(a.out[g] + d, load(a.out[g] + d) * all(before) + load(a.part[g] + d) * all(now));
    a.top[g] = merged;
}

// a.out[g] = softmax over `keys` keys of q[g] . key / sqrt(dim), times the values, for `queries` queries in a.q.
// key(t, room) and value(t, room) give row t as floats, padded with zeros to a multiple of 8; room is theirs to use.
template <class Key, class Value>
void weighted_sums(Attention &a, int queries, std::int64_t dim, std::int64_t keys, const Key &key, const Value &value) {
    const std::int64_t padded = round_up(dim, 8);
    const float factor = 1.0f / std::sqrt(static_cast<float>(dim));
    for (std::int64_t first = 0; first < keys; first += kKeyChunk) {
        const std::int64_t count = least(kKeyChunk, keys - first);
        for (std::int64_t t = 0; t < count; ++t) {
            const float *k = key(first + t, a.row);
            for (int g = 0; g < queries; ++g) a.scores[g][t] = dot(a.q[g], k, padded) * factor;
        }
        float m[kMostQueries], l[kMostQueries];
        for (int g = 0; g < queries; ++g) {
            m[g] = a.scores[g][0];
            for (std::int64_t t = 1; t < count; ++t) m[g] = a.scores[g][t] > m[g] ? a.scores[g][t] : m[g];
            l[g] = exponentials(a.scores[g], count, m[g]);
            std::memset(first == 0 ? a.out[g] : a.part[g], 0, static_cast<std::size_t>(padded) * sizeof(float));
        }
        for (std::int64_t t = 0; t < count; ++t) {
            const float *v = value(first + t, a.row);
            for (int g = 0; g < queries; ++g) {
                float *into = first == 0 ? a.out[g] : a.part[g];
                const F8 p = all(a.scores[g][t]);
                for (std::int64_t d = 0; d < padded; d += 8) store(into + d, load(into + d) + p * load(v + d));
            }
        }
        for (int g = 0; g < queries; ++g) {
            if (first == 0) {
                a.top[g] = m[g];
                a.total[g] = l[g];
            } else {
                merge(a, g, m[g], l[g], padded);
            }
        }
    }
    for (int g = 0; g < queries; ++g) {
        const F8 inverse = all(1.0f / a.total[g]);
        for (std::int64_t d = 0; d < padded; d += 8) store(a.out[g] + d, load(a.out[g] + d) * inverse);
    }
}

}  // namespace shohin::SHOHIN_TIER
