// What the kernels of tiles know of a format: how its codes lie in a byte, and what an integer sum of codes means.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/half.hpp"
#include "kernels/linear/tiles.hpp"

namespace shohin::SHOHIN_TIER {

// How far ahead of a kernel its weights are asked for. Measured: below 4 KB a one-bit kernel waits, above 32 KB the lines
// leave the first cache again before they are used.
constexpr int kAhead = 8192;

inline void prefetch_group(const std::uint8_t *group, std::int64_t bytes) {
    for (std::int64_t i = 0; i < bytes; i += 64) prefetch(group + kAhead + i);
}

// Bits of a code, weights of a group, and the shift of a sum of codes that makes the sum of weights
// (code << kShift) - 1: signs are the codes 0 and 1, two-bit weights the codes 0 to 3.
template <int Bits, int Group>
struct TileCodes {
    static constexpr int kBits = Bits, kGroup = Group, kFields = 8 / Bits, kMask = (1 << Bits) - 1;
    static constexpr int kShift = Bits == 1 ? 1 : 0;
    static constexpr int kCodeBytes = Group * Bits / 8, kBytes = kScaleBytes + kCodeBytes;
    static constexpr int kWords = kCodeBytes / 4;  // of a row in a group
    static constexpr std::int64_t kGroupBytes = group_bytes(kBytes);
    static constexpr std::int64_t kPanelBytes = std::int64_t{kGroup} * kTile;
    // The 16-bit sums of AVX2 hold all products of a group, two of them in a lane a step.
    static_assert(kMask * 127 * 2 * (kGroup / 4) < 32768);
};

constexpr std::int64_t kTilePanelBytes = TileCodes<2, 128>::kPanelBytes;  // of the widest group

// Sums live in registers only where every function that touches them is inlined.
#if defined(_MSC_VER)
#define SHOHIN_INLINE __forceinline
#else
#define SHOHIN_INLINE inline __attribute__((always_inline))
#endif

// f(0), f(1), ... with constants, so that arrays indexed by them live in registers whatever a compiler unrolls when.
template <class F, int... I>
SHOHIN_INLINE void call_each(const F &f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>{}), ...);
}

template <int N, class F>
SHOHIN_INLINE void unrolled(const F &f) {
    call_each(f, std::make_integer_sequence<int, N>{});
}

// Four int8 activations as one word.
SHOHIN_INLINE std::int32_t four(const std::int8_t *q) {
    std::int32_t word;
    std::memcpy(&word, q, sizeof word);
    return word;
}

}  // namespace shohin::SHOHIN_TIER
