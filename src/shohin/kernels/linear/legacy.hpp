// ggml's blocks of 32 weights. Each snippet: block bytes -> codes in order, the group's scale, its minimum where it has one.
#pragma once

#include "kernels/half.hpp"

namespace shohin::SHOHIN_TIER {

// Byte j holds weight j in its low nibble and weight j + 16 in its high one.
inline void read_nibbles(const std::uint8_t *field, std::uint8_t *codes) {
    for (int j = 0; j < 16; ++j) {
        codes[j] = static_cast<std::uint8_t>(field[j] & 15);
        codes[j + 16] = static_cast<std::uint8_t>(field[j] >> 4);
    }
}

// Bit j of four bytes is the fifth bit of weight j.
inline void add_fifth_bits(const std::uint8_t *field, std::uint8_t *codes) {
    for (int byte = 0; byte < 4; ++byte)
        for (int bit = 0; bit < 8; ++bit)
            codes[8 * byte + bit] = static_cast<std::uint8_t>(codes[8 * byte + bit] | (field[byte] >> bit & 1) << 4);
}

struct Legacy {
    static constexpr int kBlock = 32, kGroup = 32;
    static constexpr Order kOrder = Order::straight;
    static constexpr bool kMinimum = false;
};

struct Q4_0 : Legacy {
    static constexpr int kBytes = 18, kOffset = 8, kWiden = 8;
    static void unpack(const std::uint8_t *block, std::uint8_t *codes, float *scale, float *) {
        *scale = read_half(block);
        read_nibbles(block + 2, codes);
    }
};

struct Q4_1 : Legacy {
    static constexpr int kBytes = 20, kOffset = 0, kWiden = 8;
    static constexpr bool kMinimum = true;
    static void unpack(const std::uint8_t *block, std::uint8_t *codes, float *scale, float *minimum) {
        *scale = read_half(block);
        *minimum = read_half(block + 2);
        read_nibbles(block + 4, codes);
    }
};

struct Q5_0 : Legacy {
    static constexpr int kBytes = 22, kOffset = 16, kWiden = 4;
    static void unpack(const std::uint8_t *block, std::uint8_t *codes, float *scale, float *) {
        *scale = read_half(block);
        read_nibbles(block + 6, codes);
        add_fifth_bits(block + 2, codes);
    }
};

struct Q5_1 : Legacy {
    static constexpr int kBytes = 24, kOffset = 0, kWiden = 4;
    static constexpr bool kMinimum = true;
    static void unpack(const std::uint8_t *block, std::uint8_t *codes, float *scale, float *minimum) {
        *scale = read_half(block);
        *minimum = read_half(block + 2);
        read_nibbles(block + 8, codes);
        add_fifth_bits(block + 4, codes);
    }
};

struct Q8_0 : Legacy {
    static constexpr int kBytes = 34, kOffset = 0, kWiden = 0;
    static void unpack(const std::uint8_t *block, std::uint8_t *codes, float *scale, float *) {
        *scale = read_half(block);
        std::memcpy(codes, block + 2, 32);
    }
};

}  // namespace shohin::SHOHIN_TIER
