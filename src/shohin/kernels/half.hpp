// IEEE binary16 and bfloat16 to and from float32; to binary16 rounds to nearest even, overflow to infinity.
#pragma once

#include "kernels/lanes.hpp"

namespace shohin::SHOHIN_TIER {

inline float from_half_bits(std::uint32_t h) {
    // The exponent is moved by a multiplication, which also makes a binary16 denormal a normal number.
    const std::uint32_t sign = (h & 0x8000u) << 16;
    const float magnitude = std::bit_cast<float>((h & 0x7FFFu) << 13) * 0x1p112f;
    const std::uint32_t special = (h & 0x7C00u) == 0x7C00u ? 0x7F800000u : 0u;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | special | sign);
}

inline std::uint16_t to_half_bits(float x) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = bits >> 16 & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
    if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65520 and more
    if (magnitude < 0x38800000u) {
        // Below 2^-14: adding 0.5 rounds to multiples of 2^-24, the step of binary16's denormals.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u));
    }
    const std::uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
    return static_cast<std::uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

#if SHOHIN_TIER_AVX2

inline float from_half(std::uint16_t h) { return _cvtsh_ss(h); }
inline std::uint16_t to_half(float x) {
    const __m128i halves = _mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT);
    return static_cast<std::uint16_t>(_mm_cvtsi128_si32(halves));
}

inline void from_halves(const std::uint16_t *h, float *out, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(h + i))));
    for (; i < n; ++i) out[i] = from_half(h[i]);
}

inline void to_halves(const float *x, std::uint16_t *out, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; ++i) out[i] = to_half(x[i]);
}

#elif SHOHIN_TIER_NEON

inline float32x4_t widen_halves(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }

inline float from_half(std::uint16_t h) { return vgetq_lane_f32(widen_halves(vdup_n_u16(h)), 0); }
inline std::uint16_t to_half(float x) {
    return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0);
}

inline void from_halves(const std::uint16_t *h, float *out, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(out + i, widen_halves(vld1_u16(h + i)));
    for (; i < n; ++i) out[i] = from_half(h[i]);
}

inline void to_halves(const float *x, std::uint16_t *out, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + 4 <= n; i += 4) vst1_u16(out + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    for (; i < n; ++i) out[i] = to_half(x[i]);
}

#else

inline float from_half(std::uint16_t h) { return from_half_bits(h); }
inline std::uint16_t to_half(float x) { return to_half_bits(x); }

inline void from_halves(const std::uint16_t *h, float *out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = from_half_bits(h[i]);
}

inline void to_halves(const float *x, std::uint16_t *out, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = to_half_bits(x[i]);
}

#endif

// The same from bytes of a block, at any address.
inline float read_half(const std::uint8_t *p) {
    std::uint16_t h;
    std::memcpy(&h, p, sizeof h);
    return from_half(h);
}

inline float read_bfloat(const std::uint8_t *p) {
    std::uint16_t h;
    std::memcpy(&h, p, sizeof h);
    return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}

inline float read_float(const std::uint8_t *p) {
    float x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

}  // namespace shohin::SHOHIN_TIER
