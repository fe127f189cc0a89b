// The two products of attention in registers: keys against a few queries, and weighted values into as many outputs.
//
// Each score is sixteen running sums over the dimensions and then their sum, in one fixed order; each output is one
// running sum over the keys. So how much is computed side by side changes no bits.
#pragma once

#include "kernels/half.hpp"

namespace shohin::SHOHIN_TIER {

constexpr int kWidth = 16;    // rows of dimensions are padded to a multiple of it
constexpr int kKeyBlock = 4;  // keys that are scored one after the other

// What there are registers for.
#if SHOHIN_TIER_AVX512
constexpr int kTogether = 4;   // queries
constexpr int kKeys = 4;       // keys, for all those queries
constexpr int kColumns = 4;    // vectors of output, likewise
#else
constexpr int kTogether = 2;
constexpr int kKeys = 2;
constexpr int kColumns = 2;
#endif

#if SHOHIN_TIER_AVX512

struct F16 {
    __m512 v;
};

inline F16 zeros16() { return {_mm512_setzero_ps()}; }
inline F16 all16(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load16(const float *p) { return {_mm512_loadu_ps(p)}; }
inline F16 load16(const std::uint16_t *p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)))};
}
inline F16 load16(const std::int8_t *p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))))};
}
inline void store16(float *p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 higher(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F8 fold(F16 a) {
    return {_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1))};
}

#else

struct F16 {
    F8 low, high;
};

inline F16 zeros16() { return {zeros(), zeros()}; }
inline F16 all16(float x) { return {all(x), all(x)}; }
inline F16 load16(const float *p) { return {load(p), load(p + 8)}; }
inline void store16(float *p, F16 a) {
    store(p, a.low);
    store(p + 8, a.high);
}
inline F16 operator+(F16 a, F16 b) { return {a.low + b.low, a.high + b.high}; }
inline F16 operator*(F16 a, F16 b) { return {a.low * b.low, a.high * b.high}; }
inline F8 fold(F16 a) { return a.low + a.high; }

#if SHOHIN_TIER_AVX2

inline F16 load16(const std::uint16_t *p) {
    const auto *halves = reinterpret_cast<const __m128i *>(p);
    return {{_mm256_cvtph_ps(_mm_loadu_si128(halves))}, {_mm256_cvtph_ps(_mm_loadu_si128(halves + 1))}};
}
inline F16 load16(const std::int8_t *p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))},
            {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))}};
}
// a > b ? a : b in each lane.
inline F16 higher(F16 a, F16 b) { return {{_mm256_max_ps(a.low.v, b.low.v)}, {_mm256_max_ps(a.high.v, b.high.v)}}; }

#elif SHOHIN_TIER_NEON

inline F8 load_halves(const std::uint16_t *p) { return {widen_halves(vld1_u16(p)), widen_halves(vld1_u16(p + 4))}; }
inline F8 code_floats(int16x8_t codes) {
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(codes))), vcvtq_f32_s32(vmovl_high_s16(codes))};
}
inline F16 load16(const std::uint16_t *p) { return {load_halves(p), load_halves(p + 8)}; }
inline F16 load16(const std::int8_t *p) {
    const int8x16_t codes = vld1q_s8(p);
    return {code_floats(vmovl_s8(vget_low_s8(codes))), code_floats(vmovl_high_s8(codes))};
}
// a > b ? a : b in each lane, so that b is what comes of a not-a-number.
inline float32x4_t higher(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline F16 higher(F16 a, F16 b) {
    return {{higher(a.low.low, b.low.low), higher(a.low.high, b.low.high)},
            {higher(a.high.low, b.high.low), higher(a.high.high, b.high.high)}};
}

#else

template <class T>
inline F16 load16(const T *p) {
    float x[kWidth];
    if constexpr (sizeof(T) == sizeof(std::uint16_t))
        from_halves(p, x, kWidth);
    else
        for (int i = 0; i < kWidth; ++i) x[i] = static_cast<float>(p[i]);
    return load16(static_cast<const float *>(x));
}
inline F16 higher(F16 a, F16 b) {
    float x[kWidth], y[kWidth];
    store16(x, a);
    store16(y, b);
    for (int i = 0; i < kWidth; ++i) x[i] = x[i] > y[i] ? x[i] : y[i];
    return load16(static_cast<const float *>(x));
}

#endif

#endif

inline float sum(F16 a) { return sum(fold(a)); }

// to[i] = sum(a[i]) for four.
#if SHOHIN_TIER_AVX2
inline void put_sums(const F16 (&a)[4], float *to) {
    const __m256 x = _mm256_insertf128_ps(fold(a[0]).v, _mm256_castps256_ps128(fold(a[1]).v), 1);
    const __m256 halves_a = _mm256_permute2f128_ps(fold(a[0]).v, fold(a[1]).v, 0x31);
    const __m256 halves_b = _mm256_permute2f128_ps(fold(a[2]).v, fold(a[3]).v, 0x31);
    const __m256 y = _mm256_insertf128_ps(fold(a[2]).v, _mm256_castps256_ps128(fold(a[3]).v), 1);
    // [a0 + a4, a1 + a5, a2 + a6, a3 + a7] of a[0] and a[1], of a[2] and a[3].
    const __m256 p = _mm256_add_ps(x, halves_a), q = _mm256_add_ps(y, halves_b);
    // Then a0 + a2 and a1 + a3 of those, and the sum of both: a[0], a[2] | a[1], a[3].
    const __m256d wide_p = _mm256_castps_pd(p), wide_q = _mm256_castps_pd(q);
    const __m256 pairs = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(wide_p, wide_q)),
                                       _mm256_castpd_ps(_mm256_unpackhi_pd(wide_p, wide_q)));
    const __m256 sums = _mm256_add_ps(pairs, _mm256_movehdup_ps(pairs));
    const __m128 low = _mm256_castps256_ps128(sums), high = _mm256_extractf128_ps(sums, 1);
    // low: a[0], -, a[2], -; high: a[1], -, a[3], -.
    _mm_storeu_ps(to, _mm_unpacklo_ps(_mm_shuffle_ps(low, low, 0x08), _mm_shuffle_ps(high, high, 0x08)));
}
#elif SHOHIN_TIER_NEON
// [a0 + a4 + a2 + a6, a1 + a5 + a3 + a7] of a and of b.
inline float32x4_t pairs_of(F8 a, F8 b) {
    const float64x2_t x = vreinterpretq_f64_f32(vaddq_f32(a.low, a.high));
    const float64x2_t y = vreinterpretq_f64_f32(vaddq_f32(b.low, b.high));
    return vaddq_f32(vreinterpretq_f32_f64(vtrn1q_f64(x, y)), vreinterpretq_f32_f64(vtrn2q_f64(x, y)));
}
inline void put_sums(const F16 (&a)[4], float *to) {
    vst1q_f32(to, vpaddq_f32(pairs_of(fold(a[0]), fold(a[1])), pairs_of(fold(a[2]), fold(a[3]))));
}
#else
inline void put_sums(const F16 (&a)[4], float *to) {
    for (int i = 0; i < 4; ++i) to[i] = sum(a[i]);
}
#endif

// Rows that come later, to be asked of memory a few at a time: all at once they would wait for each other. Each is
// `bytes` long; none where that is 0.
struct Ahead {
    const std::uint8_t *rows = nullptr;
    std::int64_t bytes = 0;
};

// A macro: gcc takes a function that only prefetches for one without effects and drops its calls.
#if defined(__GNUC__)
#define SHOHIN_ASK_FOR(ahead, row) \
    for (std::int64_t at = 0; at < (ahead).bytes; at += 64) __builtin_prefetch((ahead).rows + (row) * (ahead).bytes + at)
#else
#define SHOHIN_ASK_FOR(ahead, row) static_cast<void>(0)
#endif

// scores[g * score_stride + 0..3] = query g . key of four keys that lie `stride` values apart, over `padded` dimensions.
template <int Queries, class T>
inline void score_block(const float *q, const T *keys, std::int64_t stride, std::int64_t padded, float *scores,
                        std::int64_t score_stride) {
    F16 total[Queries][kKeyBlock];
    for (int from = 0; from < kKeyBlock; from += kKeys) {
        F16 part[Queries][kKeys];
        for (int g = 0; g < Queries; ++g)
            for (int i = 0; i < kKeys; ++i) part[g][i] = zeros16();
        for (std::int64_t d = 0; d < padded; d += kWidth) {
            F16 k[kKeys];
            for (int i = 0; i < kKeys; ++i) k[i] = load16(keys + (from + i) * stride + d);
            for (int g = 0; g < Queries; ++g) {
                const F16 a = load16(q + g * padded + d);
                for (int i = 0; i < kKeys; ++i) part[g][i] = part[g][i] + a * k[i];
            }
        }
        for (int g = 0; g < Queries; ++g)
            for (int i = 0; i < kKeys; ++i) total[g][from + i] = part[g][i];
    }
    for (int g = 0; g < Queries; ++g) put_sums(total[g], scores + g * score_stride);
}

// 16 * Vectors columns of out[g] += p[g * p_stride + t] * value t, for `count` values that lie `stride` values apart.
template <int Queries, int Vectors, class T>
inline void add_columns(const float *p, std::int64_t p_stride, const T *values, std::int64_t stride, std::int64_t count,
                        float *out, std::int64_t padded, Ahead ahead) {
    F16 part[Queries][Vectors];
    for (int g = 0; g < Queries; ++g)
        for (int i = 0; i < Vectors; ++i) part[g][i] = load16(out + g * padded + kWidth * i);
    for (std::int64_t t = 0; t < count; ++t) {
        SHOHIN_ASK_FOR(ahead, t);
        F16 v[Vectors];
        for (int i = 0; i < Vectors; ++i) v[i] = load16(values + t * stride + kWidth * i);
        for (int g = 0; g < Queries; ++g) {
            const F16 weight = all16(p[g * p_stride + t]);
            for (int i = 0; i < Vectors; ++i) part[g][i] = part[g][i] + weight * v[i];
        }
    }
    for (int g = 0; g < Queries; ++g)
        for (int i = 0; i < Vectors; ++i) store16(out + g * padded + kWidth * i, part[g][i]);
}

template <int Queries, class T>
inline void add_values(const float *p, std::int64_t p_stride, const T *values, std::int64_t stride, std::int64_t count,
                       float *out, std::int64_t padded, Ahead ahead) {
    std::int64_t d = 0;
    for (; d + kWidth * kColumns <= padded; d += kWidth * kColumns)
        add_columns<Queries, kColumns>(p, p_stride, values + d, stride, count, out + d, padded, d == 0 ? ahead : Ahead{});
    for (; d < padded; d += kWidth)
        add_columns<Queries, 1>(p, p_stride, values + d, stride, count, out + d, padded, d == 0 ? ahead : Ahead{});
}

}  // namespace shohin::SHOHIN_TIER
