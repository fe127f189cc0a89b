// Q1_0, Q2_0 and PQ2_0: an f16 scale, then one or two bits a weight. Their trick: a word holds 32 or 16 codes of one
// row, and a shift and a mask bring out four of them as bytes, eight rows at a time, with no dealing afterwards.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/linear/deal.hpp"

namespace shohin::SHOHIN_TIER {

// Signs are the codes 0 and 2 less 1.
struct OneBit {
    static constexpr int kBlock = 128, kGroup = 128, kBytes = 18, kOffset = 1, kWiden = 32, kSteps = 8;
    static constexpr Order kOrder = Order::by8;
    static constexpr bool kMinimum = false;

    static std::uint32_t step(std::uint32_t word, int k) {
        return (k == 0 ? word << 1 : word >> (k - 1)) & 0x02020202u;
    }
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scale, float *) {
        *scale = read_half(block);
        for (int j = 0; j < kBlock; ++j) codes[j] = static_cast<std::uint8_t>((block[2 + j / 8] >> (j % 8) & 1) << 1);
    }
};

template <int Block, int Widen>
struct TwoBit {
    static constexpr int kBlock = Block, kGroup = Block, kBytes = 2 + Block / 4, kOffset = 1, kWiden = Widen;
    static constexpr int kSteps = 4;
    static constexpr Order kOrder = Order::by4;
    static constexpr bool kMinimum = false;

    static std::uint32_t step(std::uint32_t word, int k) { return word >> (2 * k) & 0x03030303u; }
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scale, float *) {
        *scale = read_half(block);
        for (int j = 0; j < kBlock; ++j) codes[j] = static_cast<std::uint8_t>(block[2 + j / 4] >> (2 * (j % 4)) & 3);
    }
};

// The steps of one word of eight rows. Steps are constants, so that they become immediate shifts.
template <class S, int... Steps>
inline void put_steps(const std::uint32_t *words, std::uint32_t *out, std::integer_sequence<int, Steps...>) {
    const auto put = [&](auto step) {
        for (int r = 0; r < kLanes; ++r) out[step * kLanes + r] = S::step(words[r], step);
    };
    (put(std::integral_constant<int, Steps>{}), ...);
}

// A panel of words: the same contract as Format::panel.
template <class S>
void word_panel(const std::uint8_t *first, std::int64_t stride, int rows, int blocks, Panel &panel) {
    constexpr int kWords = (S::kBytes - 2) / 4;
    static_assert(kWords % 4 == 0);
    const std::uint8_t *row[kLanes];
    for (int r = 0; r < kLanes; ++r) row[r] = first + (r < rows ? r : rows - 1) * stride;
    auto *out = reinterpret_cast<std::uint32_t *>(panel.codes);
    for (int b = 0; b < blocks; ++b) {
        for (int r = 0; r < kLanes; ++r) prefetch(row[r] + kLanes * stride);
        deal_halves(row, panel.scales + b * kLanes);
        for (int r = 0; r < kLanes; ++r) row[r] += 2;
        for (int four = 0; four < kWords / 4; ++four) {
            std::uint32_t words[4][kLanes];
            deal_words(row, words);
            for (int j = 0; j < 4; ++j, out += S::kSteps * kLanes)
                put_steps<S>(words[j], out, std::make_integer_sequence<int, S::kSteps>{});
            for (int r = 0; r < kLanes; ++r) row[r] += 16;
        }
    }
}

}  // namespace shohin::SHOHIN_TIER
