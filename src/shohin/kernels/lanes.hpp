// Eight floats or sums side by side, and the few operations that the kernels need of them.
//
// Everything is written once over these types; a tier differs only in what is behind them. Each lane does the same
// IEEE operations in the same order in every tier (no fused multiply-add: -ffp-contract=off), so results are the same
// bits. Inline functions live in the tier's own namespace: the linker must never share them between tiers.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "devices/native/kernel.hpp"

#if SHOHIN_TIER_AVX2
#include <immintrin.h>
#elif SHOHIN_TIER_NEON
#include <arm_neon.h>
#endif

static_assert(std::endian::native == std::endian::little, "block formats are read as little-endian words");

// Bytes may alias anything; where they don't, saying so is what lets a loop become vector code.
#if defined(_MSC_VER)
#define SHOHIN_RESTRICT __restrict
#else
#define SHOHIN_RESTRICT __restrict__
#endif

namespace shohin::SHOHIN_TIER {

#if SHOHIN_TIER_AVX2

struct F8 {
    __m256 v;
};

inline F8 zeros() { return {_mm256_setzero_ps()}; }
inline F8 all(float x) { return {_mm256_set1_ps(x)}; }
inline F8 load(const float *p) { return {_mm256_loadu_ps(p)}; }
inline void store(float *p, F8 a) { _mm256_storeu_ps(p, a.v); }
inline F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F8 floats(const std::int32_t *p) {
    return {_mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)))};
}

#elif SHOHIN_TIER_NEON

struct F8 {
    float32x4_t low, high;
};

inline F8 zeros() { return {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}; }
inline F8 all(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline F8 load(const float *p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float *p, F8 a) {
    vst1q_f32(p, a.low);
    vst1q_f32(p + 4, a.high);
}
inline F8 operator+(F8 a, F8 b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline F8 operator*(F8 a, F8 b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline F8 floats(const std::int32_t *p) { return {vcvtq_f32_s32(vld1q_s32(p)), vcvtq_f32_s32(vld1q_s32(p + 4))}; }

#else

struct F8 {
    float v[8];
};

inline F8 zeros() { return {}; }
inline F8 all(float x) { return {{x, x, x, x, x, x, x, x}}; }
inline F8 load(const float *p) {
    F8 a;
    std::memcpy(a.v, p, sizeof a.v);
    return a;
}
inline void store(float *p, F8 a) { std::memcpy(p, a.v, sizeof a.v); }
inline F8 operator+(F8 a, F8 b) {
    F8 c;
    for (int i = 0; i < 8; ++i) c.v[i] = a.v[i] + b.v[i];
    return c;
}
inline F8 operator*(F8 a, F8 b) {
    F8 c;
    for (int i = 0; i < 8; ++i) c.v[i] = a.v[i] * b.v[i];
    return c;
}
inline F8 floats(const std::int32_t *p) {
    F8 c;
    for (int i = 0; i < 8; ++i) c.v[i] = static_cast<float>(p[i]);
    return c;
}

#endif

// The eight lanes added in one fixed order.
inline float sum(F8 a) {
    float v[8];
    store(v, a);
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

inline void prefetch(const void *p) {
#if defined(__GNUC__)
    __builtin_prefetch(p);
#else
    (void)p;
#endif
}

// sum of a[i] * b[i] over n values: eight running sums, then their sum, then the values past the last eight.
inline float dot(const float *a, const float *b, std::int64_t n) {
    F8 total = zeros();
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) total = total + load(a + i) * load(b + i);
    float s = sum(total);
    for (; i < n; ++i) s += a[i] * b[i];
    return s;
}

// To the nearest whole number, halves to even, for |x| below 2^22: adding 1.5 * 2^23 leaves no bits for a fraction.
inline float nearest(float x) {
    constexpr float kShift = 12582912.0f;
    return (x + kShift) - kShift;
}

// exp in float32, about 1 ulp: exp(x) = 2^n exp(r) with n = nearest(x / ln 2), and exp(r) = 1 + r + r^2 P(r) with P
// fitted to (exp(r) - 1 - r) / r^2 over |r| <= ln 2 / 2 (Chebyshev interpolation, relative error 7e-8 of the term).
// Free of branches, so that a loop over it becomes vector code. NaN gives NaN, overflow infinity, underflow 0.
inline float exponential(float x) {
    constexpr float kShift = 12582912.0f;
    x = x < -110.0f ? -110.0f : x;
    x = x > 100.0f ? 100.0f : x;
    const float shifted = x * 1.44269504f + kShift;
    const float whole = shifted - kShift;
    // ln 2 in two parts, the first short enough that its product with n is exact.
    const float r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    float p = 0.00139262131f * r + 0.00836320315f;
    p = p * r + 0.0416665561f;
    p = p * r + 0.166665763f;
    p = p * r + 0.5f;
    p = (p * (r * r) + r) + 1.0f;
    // 2^n as a product of two, since n reaches past the exponents of normal numbers on both sides.
    const std::uint32_t n = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kShift);
    const std::uint32_t half = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) >> 1);
    const float first = std::bit_cast<float>((half + 127u) << 23);
    const float second = std::bit_cast<float>((n - half + 127u) << 23);
    return (p * first) * second;
}

}  // namespace shohin::SHOHIN_TIER
