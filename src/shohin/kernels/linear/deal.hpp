// Eight rows of words turned into words of eight rows, so that one vector holds the same place of every row.
#pragma once

#include "kernels/half.hpp"

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

// words[j][r] = word j of the 16 bytes at rows[r], which lie at any address.
inline void deal_words(const std::uint8_t *const *rows, std::uint32_t (*words)[8]) {
    __m256i pair[4];
    for (int r = 0; r < 4; ++r) {
        const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i *>(rows[r]));
        const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i *>(rows[r + 4]));
        pair[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    const __m256i low01 = _mm256_unpacklo_epi32(pair[0], pair[1]), high01 = _mm256_unpackhi_epi32(pair[0], pair[1]);
    const __m256i low23 = _mm256_unpacklo_epi32(pair[2], pair[3]), high23 = _mm256_unpackhi_epi32(pair[2], pair[3]);
    auto *out = reinterpret_cast<__m256i *>(words);
    _mm256_storeu_si256(out, _mm256_unpacklo_epi64(low01, low23));
    _mm256_storeu_si256(out + 1, _mm256_unpackhi_epi64(low01, low23));
    _mm256_storeu_si256(out + 2, _mm256_unpacklo_epi64(high01, high23));
    _mm256_storeu_si256(out + 3, _mm256_unpackhi_epi64(high01, high23));
}

// The f16 at each of eight addresses.
inline void deal_halves(const std::uint8_t *const *rows, float *out) {
    std::uint16_t h[8];
    for (int r = 0; r < 8; ++r) std::memcpy(&h[r], rows[r], 2);
    const __m128i halves = _mm_setr_epi16(static_cast<short>(h[0]), static_cast<short>(h[1]), static_cast<short>(h[2]),
                                          static_cast<short>(h[3]), static_cast<short>(h[4]), static_cast<short>(h[5]),
                                          static_cast<short>(h[6]), static_cast<short>(h[7]));
    _mm256_storeu_ps(out, _mm256_cvtph_ps(halves));
}

#elif SHOHIN_TIER_NEON

// out[8 s + r] = word s of rows[r], four rows of four words.
inline void turn_four(const uint32x4_t (&rows)[4], std::uint32_t *out) {
    const uint32x4_t even01 = vtrn1q_u32(rows[0], rows[1]), odd01 = vtrn2q_u32(rows[0], rows[1]);
    const uint32x4_t even23 = vtrn1q_u32(rows[2], rows[3]), odd23 = vtrn2q_u32(rows[2], rows[3]);
    const auto put = [&](int s, uint64x2_t words) { vst1q_u32(out + 8 * s, vreinterpretq_u32_u64(words)); };
    put(0, vtrn1q_u64(vreinterpretq_u64_u32(even01), vreinterpretq_u64_u32(even23)));
    put(1, vtrn1q_u64(vreinterpretq_u64_u32(odd01), vreinterpretq_u64_u32(odd23)));
    put(2, vtrn2q_u64(vreinterpretq_u64_u32(even01), vreinterpretq_u64_u32(even23)));
    put(3, vtrn2q_u64(vreinterpretq_u64_u32(odd01), vreinterpretq_u64_u32(odd23)));
}

// out[s][r] = rows[r][s] for eight s at once; stride in words.
inline void deal_eight(const std::uint32_t *rows, std::int64_t stride, std::uint32_t *out) {
    for (int r = 0; r < 8; r += 4)
        for (int s = 0; s < 8; s += 4) {
            const std::uint32_t *from = rows + r * stride + s;
            turn_four({vld1q_u32(from), vld1q_u32(from + stride), vld1q_u32(from + 2 * stride), vld1q_u32(from + 3 * stride)},
                      out + 8 * s + r);
        }
}

// words[j][r] = word j of the 16 bytes at rows[r], which lie at any address.
inline void deal_words(const std::uint8_t *const *rows, std::uint32_t (*words)[8]) {
    const auto row = [&](int r) { return vreinterpretq_u32_u8(vld1q_u8(rows[r])); };
    for (int r = 0; r < 8; r += 4) turn_four({row(r), row(r + 1), row(r + 2), row(r + 3)}, words[0] + r);
}

// The f16 at each of eight addresses.
inline void deal_halves(const std::uint8_t *const *rows, float *out) {
    std::uint16_t h[8];
    for (int r = 0; r < 8; ++r) std::memcpy(&h[r], rows[r], 2);
    from_halves(h, out, 8);
}

#else

inline void deal_words(const std::uint8_t *const *rows, std::uint32_t (*words)[8]) {
    for (int r = 0; r < 8; ++r)
        for (int j = 0; j < 4; ++j) std::memcpy(&words[j][r], rows[r] + 4 * j, 4);
}

inline void deal_halves(const std::uint8_t *const *rows, float *out) {
    for (int r = 0; r < 8; ++r) out[r] = read_half(rows[r]);
}

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
