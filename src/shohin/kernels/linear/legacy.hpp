// ggml's blocks of 32 weights. Each snippet: block bytes -> codes in order, the group's scale, its minimum where it has one.
#pragma once

#include "kernels/half.hpp"
#include "kernels/linear/words.hpp"

namespace shohin::SHOHIN_TIER {

// Byte j holds weight j in its low nibble and weight j + 16 in its high one.
inline void read_nibbles(const std::uint8_t *SHOHIN_RESTRICT from, std::uint8_t *SHOHIN_RESTRICT codes) {
    for (int j = 0; j < 16; j += 8) {
        const std::uint64_t word = get(from + j);
        put(codes + j, field(word, 0, 15));
        put(codes + j + 16, field(word, 4, 15));
    }
}

// Bit j of four bytes is the fifth bit of weight j.
inline void add_fifth_bits(const std::uint8_t *SHOHIN_RESTRICT from, std::uint8_t *SHOHIN_RESTRICT codes) {
    for (int j = 0; j < 4; ++j) put(codes + 8 * j, get(codes + 8 * j) | spread(from[j]) >> 3);
}

struct Legacy {
    static constexpr int kBlock = 32, kGroup = 32;
    static constexpr Order kOrder = Order::straight;
    static constexpr bool kMinimum = false;
};

struct Q4_0 : Legacy {
    static constexpr int kBytes = 18, kOffset = 8, kWiden = 8;
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scale, float *) {
        *scale = read_half(block);
        read_nibbles(block + 2, codes);
    }
};

struct Q4_1 : Legacy {
    static constexpr int kBytes = 20, kOffset = 0, kWiden = 8;
    static constexpr bool kMinimum = true;
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scale, float *SHOHIN_RESTRICT minimum) {
        *scale = read_half(block);
        *minimum = read_half(block + 2);
        read_nibbles(block + 4, codes);
    }
};

struct Q5_0 : Legacy {
    static constexpr int kBytes = 22, kOffset = 16, kWiden = 4;
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scale, float *) {
        *scale = read_half(block);
        read_nibbles(block + 6, codes);
        add_fifth_bits(block + 2, codes);
    }
};

struct Q5_1 : Legacy {
    static constexpr int kBytes = 24, kOffset = 0, kWiden = 4;
    static constexpr bool kMinimum = true;
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scale, float *SHOHIN_RESTRICT minimum) {
        *scale = read_half(block);
        *minimum = read_half(block + 2);
        read_nibbles(block + 8, codes);
        add_fifth_bits(block + 4, codes);
    }
};

struct Q8_0 : Legacy {
    static constexpr int kBytes = 34, kOffset = 0, kWiden = 0;
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scale, float *) {
        *scale = read_half(block);
        std::memcpy(codes, block + 2, 32);
    }
};

}  // namespace shohin::SHOHIN_TIER
