// Eight rows of words turned into words of eight rows, so that one vector holds the same place of every row.
#pragma once

#include "kernels/lanes.hpp"

namespace shohin::SHOHIN_TIER {

#if SHOHIN_TIER_AVX2

// out[s][r] = rows[r][s] for eight s at once; stride in words.
inline void deal_eight(const std::uint32_t *rows, std::int64_t stride, std::uint32_t *out) {
    __m256 a[8], b[8];
    for (int r = 0; r < 8; ++r) a[r] = _mm256_loadu_ps(reinterpret_cast<const float *>(rows + r * stride));
    for (int r = 0; r < 8; r += 2) {
        b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
        b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
    }
    for (int half = 0; half < 8; half += 4) {
        a[half] = _mm256_shuffle_ps(b[half], b[half + 2], 0x44);
        a[half + 1] = _mm256_shuffle_ps(b[half], b[half + 2], 0xEE);
        a[half + 2] = _mm256_shuffle_ps(b[half + 1], b[half + 3], 0x44);
        a[half + 3] = _mm256_shuffle_ps(b[half + 1], b[half + 3], 0xEE);
    }
    for (int s = 0; s < 4; ++s) {
        float *low = reinterpret_cast<float *>(out + s * 8);
        float *high = reinterpret_cast<float *>(out + (s + 4) * 8);
        _mm256_storeu_ps(low, _mm256_permute2f128_ps(a[s], a[s + 4], 0x20));
        _mm256_storeu_ps(high, _mm256_permute2f128_ps(a[s], a[s + 4], 0x31));
    }
}

#else

inline void deal_eight(const std::uint32_t *rows, std::int64_t stride, std::uint32_t *out) {
    for (int s = 0; s < 8; ++s)
        for (int r = 0; r < 8; ++r) out[s * 8 + r] = rows[r * stride + s];
}

#endif

inline void deal(const std::uint32_t *rows, std::int64_t stride, std::uint32_t *out, std::int64_t steps) {
    std::int64_t s = 0;
    for (; s + 8 <= steps; s += 8) deal_eight(rows + s, stride, out + s * 8);
    for (; s < steps; ++s)
        for (int r = 0; r < 8; ++r) out[s * 8 + r] = rows[r * stride + s];
}

}  // namespace shohin::SHOHIN_TIER
