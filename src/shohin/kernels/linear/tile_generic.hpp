// Tiers without kernels for tiles read rows as they lie in the file.
#pragma once

#if !SHOHIN_TIER_AVX2 && !SHOHIN_TIER_NEON

#include "kernels/linear/tile_codes.hpp"

namespace shohin::SHOHIN_TIER {

template <class S>
constexpr const Tiling *tiling() {
    return nullptr;
}

inline void fill_tables(const std::int8_t *, std::int64_t, std::uint8_t *) {}

}  // namespace shohin::SHOHIN_TIER

#endif
