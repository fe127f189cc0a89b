// ggml's blocks of 256 weights: groups of 16 or 32, each with a small integer scale (and minimum) times an f16 of the block.
#pragma once

#include "kernels/half.hpp"

namespace shohin::SHOHIN_TIER {

struct KQuant {
    static constexpr int kBlock = 256;
    static constexpr Order kOrder = Order::straight;
    static constexpr bool kMinimum = false;
};

// 64 bytes: pair s of byte l in half h is weight 128 h + 32 s + l.
inline void read_pairs(const std::uint8_t *field, std::uint8_t *codes) {
    for (int h = 0; h < 2; ++h)
        for (int s = 0; s < 4; ++s)
            for (int l = 0; l < 32; ++l)
                codes[128 * h + 32 * s + l] = static_cast<std::uint8_t>(field[32 * h + l] >> (2 * s) & 3);
}

// 128 bytes: of each 32, the low nibbles are 32 weights and the high nibbles the next 32.
inline void read_nibble_rows(const std::uint8_t *field, std::uint8_t *codes) {
    for (int i = 0; i < 4; ++i)
        for (int l = 0; l < 32; ++l) {
            codes[64 * i + l] = static_cast<std::uint8_t>(field[32 * i + l] & 15);
            codes[64 * i + 32 + l] = static_cast<std::uint8_t>(field[32 * i + l] >> 4);
        }
}

struct Q2_K : KQuant {
    static constexpr int kBytes = 84, kGroup = 16, kOffset = 0, kWiden = 4;
    static constexpr bool kMinimum = true;
    static void unpack(const std::uint8_t *block, std::uint8_t *codes, float *scales, float *minima) {
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
    static void unpack(const std::uint8_t *block, std::uint8_t *codes, float *scales, float *) {
        const float scale = read_half(block + 108);
        const std::uint8_t *small = block + 96;
        for (int g = 0; g < 16; ++g) {
            const int low = g < 8 ? small[g] & 15 : small[g - 8] >> 4;
            const int high = small[8 + g % 4] >> (2 * (g / 4)) & 3;
            scales[g] = scale * static_cast<float>((low | high << 4) - 32);
        }
        read_pairs(block + 32, codes);
        for (int run = 0; run < 8; ++run)
            for (int l = 0; l < 32; ++l)
                codes[32 * run + l] = static_cast<std::uint8_t>(codes[32 * run + l] | (block[l] >> run & 1) << 2);
    }
};

// Eight six-bit scales and eight six-bit minima in twelve bytes.
inline void read_small(const std::uint8_t *block, float *scales, float *minima) {
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
    static void unpack(const std::uint8_t *block, std::uint8_t *codes, float *scales, float *minima) {
        read_small(block, scales, minima);
        read_nibble_rows(block + 16, codes);
    }
};

struct Q5_K : KQuant {
    static constexpr int kBytes = 176, kGroup = 32, kOffset = 0, kWiden = 4;
    static constexpr bool kMinimum = true;
    static void unpack(const std::uint8_t *block, std::uint8_t *codes, float *scales, float *minima) {
        read_small(block, scales, minima);
        read_nibble_rows(block + 48, codes);
        for (int g = 0; g < 8; ++g)
            for (int l = 0; l < 32; ++l)
                codes[32 * g + l] = static_cast<std::uint8_t>(codes[32 * g + l] | (block[16 + l] >> g & 1) << 4);
    }
};

struct Q6_K : KQuant {
    static constexpr int kBytes = 210, kGroup = 16, kOffset = 32, kWiden = 2;
    static void unpack(const std::uint8_t *block, std::uint8_t *codes, float *scales, float *) {
        const float scale = read_half(block + 208);
        for (int g = 0; g < 16; ++g)
            scales[g] = scale * static_cast<float>(static_cast<std::int8_t>(block[192 + g]));
        for (int h = 0; h < 2; ++h)
            for (int s = 0; s < 4; ++s)
                for (int l = 0; l < 32; ++l) {
                    const int byte = block[64 * h + 32 * (s & 1) + l];
                    const int low = s < 2 ? byte & 15 : byte >> 4;
                    const int high = block[128 + 32 * h + l] >> (2 * s) & 3;
                    codes[128 * h + 32 * s + l] = static_cast<std::uint8_t>(low | high << 4);
                }
    }
};

}  // namespace shohin::SHOHIN_TIER
