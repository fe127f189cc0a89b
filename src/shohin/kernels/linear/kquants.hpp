// ggml's blocks of 256 weights: groups of 16 or 32, each with a small integer scale (and minimum) times an f16 of the block.
#pragma once

#include "kernels/half.hpp"
#include "kernels/linear/words.hpp"

namespace shohin::SHOHIN_TIER {

struct KQuant {
    static constexpr int kBlock = 256;
    static constexpr Order kOrder = Order::straight;
    static constexpr bool kMinimum = false;
};

// 64 bytes: pair s of byte l in half h is weight 128 h + 32 s + l.
inline void read_pairs(const std::uint8_t *SHOHIN_RESTRICT from, std::uint8_t *SHOHIN_RESTRICT codes) {
    for (int h = 0; h < 2; ++h)
        for (int l = 0; l < 32; l += 8) {
            const std::uint64_t word = get(from + 32 * h + l);
            for (int s = 0; s < 4; ++s) put(codes + 128 * h + 32 * s + l, field(word, 2 * s, 3));
        }
}

// 128 bytes: of each 32, the low nibbles are 32 weights and the high nibbles the next 32.
inline void read_nibble_rows(const std::uint8_t *SHOHIN_RESTRICT from, std::uint8_t *SHOHIN_RESTRICT codes) {
    for (int i = 0; i < 4; ++i)
        for (int l = 0; l < 32; l += 8) {
            const std::uint64_t word = get(from + 32 * i + l);
            put(codes + 64 * i + l, field(word, 0, 15));
            put(codes + 64 * i + 32 + l, field(word, 4, 15));
        }
}

// 32 bytes: bit `run` of byte l is one more bit, worth 2^place, of weight 32 run + l.
inline void add_high_bits(const std::uint8_t *SHOHIN_RESTRICT from, int place, std::uint8_t *SHOHIN_RESTRICT codes) {
    for (int l = 0; l < 32; l += 8) {
        const std::uint64_t word = get(from + l);
        for (int run = 0; run < 8; ++run) {
            std::uint8_t *at = codes + 32 * run + l;
            put(at, get(at) | field(word, run, 1) << place);
        }
    }
}

struct Q2_K : KQuant {
    static constexpr int kBytes = 84, kGroup = 16, kOffset = 0, kWiden = 4;
    static constexpr bool kMinimum = true;
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scales, float *SHOHIN_RESTRICT minima) {
        const float scale = read_half(block + 80), depth = read_half(block + 82);
        for (int g = 0; g < 16; ++g) {
            scales[g] = scale * static_cast<float>(block[g] & 15);
            minima[g] = -(depth * static_cast<float>(block[g] >> 4));
        }
        read_pairs(block + 16, codes);
    }
};

struct Q3_K : KQuant {
    static constexpr int kBytes = 110, kGroup = 16, kOffset = 4, kWiden = 4;
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scales, float *) {
        const float scale = read_half(block + 108);
        const std::uint8_t *small = block + 96;
        for (int g = 0; g < 16; ++g) {
            const int low = g < 8 ? small[g] & 15 : small[g - 8] >> 4;
            const int high = small[8 + g % 4] >> (2 * (g / 4)) & 3;
            scales[g] = scale * static_cast<float>((low | high << 4) - 32);
        }
        read_pairs(block + 32, codes);
        add_high_bits(block, 2, codes);
    }
};

// Eight six-bit scales and eight six-bit minima in twelve bytes.
inline void read_small(const std::uint8_t *block, float *SHOHIN_RESTRICT scales, float *SHOHIN_RESTRICT minima) {
    const float scale = read_half(block), depth = read_half(block + 2);
    const std::uint8_t *first = block + 4, *second = block + 8, *third = block + 12;
    for (int g = 0; g < 4; ++g) {
        scales[g] = scale * static_cast<float>(first[g] & 63);
        minima[g] = -(depth * static_cast<float>(second[g] & 63));
        scales[g + 4] = scale * static_cast<float>((third[g] & 15) | (first[g] >> 6) << 4);
        minima[g + 4] = -(depth * static_cast<float>(third[g] >> 4 | (second[g] >> 6) << 4));
    }
}

struct Q4_K : KQuant {
    static constexpr int kBytes = 144, kGroup = 32, kOffset = 0, kWiden = 8;
    static constexpr bool kMinimum = true;
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scales, float *SHOHIN_RESTRICT minima) {
        read_small(block, scales, minima);
        read_nibble_rows(block + 16, codes);
    }
};

struct Q5_K : KQuant {
    static constexpr int kBytes = 176, kGroup = 32, kOffset = 0, kWiden = 4;
    static constexpr bool kMinimum = true;
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scales, float *SHOHIN_RESTRICT minima) {
        read_small(block, scales, minima);
        read_nibble_rows(block + 48, codes);
        add_high_bits(block + 16, 4, codes);
    }
};

struct Q6_K : KQuant {
    static constexpr int kBytes = 210, kGroup = 16, kOffset = 32, kWiden = 2;
    static void unpack(const std::uint8_t *SHOHIN_RESTRICT block, std::uint8_t *SHOHIN_RESTRICT codes,
                       float *SHOHIN_RESTRICT scales, float *) {
        const float scale = read_half(block + 208);
        for (int g = 0; g < 16; ++g)
            scales[g] = scale * static_cast<float>(static_cast<std::int8_t>(block[192 + g]));
        for (int h = 0; h < 2; ++h)
            for (int l = 0; l < 32; l += 8) {
                const std::uint64_t high = get(block + 128 + 32 * h + l);
                for (int s = 0; s < 4; ++s) {
                    const std::uint64_t low = field(get(block + 64 * h + 32 * (s & 1) + l), s < 2 ? 0 : 4, 15);
                    put(codes + 128 * h + 32 * s + l, low | field(high, 2 * s, 3) << 4);
                }
            }
    }
};

}  // namespace shohin::SHOHIN_TIER
