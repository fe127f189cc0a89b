// Eight bytes at a time in one integer: the same code is quick in every tier, whatever a compiler makes of byte loops.
#pragma once

#include "kernels/lanes.hpp"

namespace shohin::SHOHIN_TIER {

inline std::uint64_t get(const std::uint8_t *p) {
    std::uint64_t word;
    std::memcpy(&word, p, sizeof word);
    return word;
}

inline void put(std::uint8_t *p, std::uint64_t word) { std::memcpy(p, &word, sizeof word); }

// The same byte eight times.
constexpr std::uint64_t each(std::uint64_t byte) { return byte * 0x0101010101010101u; }

// The bits `mask` of every byte of a word after a shift to the right: what crosses a byte's border is masked off.
inline std::uint64_t field(std::uint64_t word, int shift, std::uint64_t mask) { return word >> shift & each(mask); }

// Bit j of a byte as byte j of a word: 0, or 128 where it is set.
inline std::uint64_t spread(std::uint8_t bits) {
    // Byte j keeps only bit j, and adding 127 carries any bit up to the top one.
    return ((each(bits) & 0x8040201008040201u) + each(0x7F)) & each(0x80);
}

}  // namespace shohin::SHOHIN_TIER
