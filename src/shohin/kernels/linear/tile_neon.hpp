// Products of tiles with NEON's dot products of bytes. A 32-bit lane is a row; a tile is eight vectors wide.
#pragma once

#if SHOHIN_TIER_NEON

#include "kernels/linear/tile_codes.hpp"

namespace shohin::SHOHIN_TIER {

constexpr int kLaneRows = 4;                 // rows of a vector
constexpr int kVectors = kTile / kLaneRows;  // of a tile

SHOHIN_INLINE uint8x16_t load_bytes(const std::uint8_t *p) { return vld1q_u8(p); }

// acc += whole * (scale * activation) for four rows.
SHOHIN_INLINE void add_four(const std::uint8_t *scales, int32x4_t whole, float activation, float *acc) {
    const float32x4_t scale = widen_halves(vreinterpret_u16_u8(vld1_u8(scales)));
    const float32x4_t added = vmulq_f32(vcvtq_f32_s32(whole), vmulq_n_f32(scale, activation));
    vst1q_f32(acc, vaddq_f32(vld1q_f32(acc), added));
}

// The same from sums of codes.
template <class S>
SHOHIN_INLINE void add_codes(const std::uint8_t *scales, int32x4_t codes, std::int32_t code_sum, float activation, float *acc) {
    const int32x4_t whole = vsubq_s32(vshlq_n_s32(codes, S::kShift), vdupq_n_s32(code_sum));
    add_four(scales, whole, activation, acc);
}

// sum += four products in each lane: the codes of four rows times four activations, which are word Lane of `a`.
template <int Lane>
SHOHIN_INLINE int32x4_t add_dot(int32x4_t sum, int8x16_t codes, int8x16_t a) {
    return vdotq_laneq_s32(sum, codes, a, Lane);
}

// Field F of every byte as codes.
template <class S, int F>
SHOHIN_INLINE int8x16_t field_of(uint8x16_t bytes) {
    const uint8x16_t mask = vdupq_n_u8(S::kMask);
    if constexpr (F == 0)
        return vreinterpretq_s8_u8(vandq_u8(bytes, mask));
    else if constexpr (F == S::kFields - 1)
        return vreinterpretq_s8_u8(vshrq_n_u8(bytes, 8 - S::kBits));
    else
        return vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(bytes, S::kBits * F), mask));
}

// Where codes of one bit are asked for at their place, as 0 and -1, a field takes one instruction before its product.
template <class S>
SHOHIN_INLINE void multiply_bits(const std::uint8_t *words, const std::int8_t *q, int32x4_t (&sums)[kVectors]) {
    for (int w = 0; w < S::kWords; ++w, words += 4 * kTile, q += 4 * S::kFields) {
        const int8x16_t a[2] = {vld1q_s8(q), vld1q_s8(q + 16)};
        uint8x16_t bytes[kVectors];
        unrolled<kVectors>([&](auto e) { bytes[e] = load_bytes(words + 16 * e); });
        unrolled<S::kFields>([&](auto f) {
            const uint8x16_t bit = vdupq_n_u8(1u << f);
            unrolled<kVectors>([&](auto e) {
                sums[e] = add_dot<f % 4>(sums[e], vreinterpretq_s8_u8(vtstq_u8(bytes[e], bit)), a[f / 4]);
            });
        });
    }
    for (int32x4_t &sum : sums) sum = vnegq_s32(sum);
}

// Codes of two bits in half of a tile's rows: the lower fields stay at their place and have sums of their own, which are
// divided, without a rest, once a group; the highest would be negative there.
template <class S>
SHOHIN_INLINE void multiply_pairs(const std::uint8_t *words, const std::int8_t *q, int32x4_t *sums) {
    constexpr int kHalf = kVectors / 2;
    int32x4_t part[S::kFields][kHalf];
    unrolled<S::kFields>([&](auto f) { unrolled<kHalf>([&](auto e) { part[f][e] = vdupq_n_s32(0); }); });
    for (int w = 0; w < S::kWords; ++w, words += 4 * kTile, q += 4 * S::kFields) {
        const int8x16_t a = vld1q_s8(q);
        uint8x16_t bytes[kHalf];
        unrolled<kHalf>([&](auto e) { bytes[e] = load_bytes(words + 16 * e); });
        unrolled<S::kFields>([&](auto f) {
            unrolled<kHalf>([&](auto e) {
                int8x16_t codes = vreinterpretq_s8_u8(vandq_u8(bytes[e], vdupq_n_u8(S::kMask << (S::kBits * f) & 0xFF)));
                if constexpr (f == S::kFields - 1) codes = field_of<S, f>(bytes[e]);
                part[f][e] = add_dot<f>(part[f][e], codes, a);
            });
        });
    }
    unrolled<kHalf>([&](auto e) {
        sums[e] = vaddq_s32(part[0][e], part[S::kFields - 1][e]);
        unrolled<S::kFields - 2>([&](auto f) { sums[e] = vaddq_s32(sums[e], vshrq_n_s32(part[f + 1][e], S::kBits * (f + 1))); });
    });
}

// One row of activations.
template <class S>
void multiply_one(const std::uint8_t *tile, const Activations &in, std::int64_t m, float *acc) {
    const std::int8_t *q = in.codes + m * in.code_stride;
    for (std::int64_t g = 0; g < in.k / S::kGroup; ++g, tile += S::kGroupBytes, q += S::kGroup) {
        prefetch_group(tile, S::kGroupBytes);
        const std::uint8_t *words = tile + kTile * kScaleBytes;
        int32x4_t sums[kVectors];
        if constexpr (S::kBits == 1) {
            unrolled<kVectors>([&](auto e) { sums[e] = vdupq_n_s32(0); });
            multiply_bits<S>(words, q, sums);
        } else {
            multiply_pairs<S>(words, q, sums);
            multiply_pairs<S>(words + 2 * kTile, q, sums + kVectors / 2);
        }
        const std::int64_t at = m * in.group_stride + g;
        unrolled<kVectors>([&](auto e) {
            add_codes<S>(tile + kLaneRows * kScaleBytes * e, sums[e], in.sums[at], in.scales[at], acc + kLaneRows * e);
        });
    }
}

// All codes of a group as bytes: panel [step][row][4].
template <class S>
inline void unpack_group(const std::uint8_t *group, std::uint8_t *panel) {
    const std::uint8_t *words = group + kTile * kScaleBytes;
    for (int w = 0; w < S::kWords; ++w, words += 4 * kTile, panel += 4 * kTile * S::kFields)
        for (int e = 0; e < kVectors; ++e) {
            const uint8x16_t bytes = load_bytes(words + 16 * e);
            unrolled<S::kFields>([&](auto f) {
                vst1q_u8(panel + 4 * kTile * f + 16 * e, vreinterpretq_u8_s8(field_of<S, f>(bytes)));
            });
        }
}

// 16 rows of weights (`half` of a tile) times M rows of activations in registers.
template <class S, int M>
inline void multiply_panel(const std::uint8_t *group, const std::uint8_t *panel, int half, const Activations &in,
                           std::int64_t m0, std::int64_t g, float *acc) {
    constexpr int kHalf = kVectors / 2;
    const std::int8_t *q = in.codes + m0 * in.code_stride + g * S::kGroup;
    int32x4_t sums[M][kHalf];
    unrolled<M>([&](auto m) { unrolled<kHalf>([&](auto e) { sums[m][e] = vdupq_n_s32(0); }); });
    panel += 2 * kTile * half;
    for (int s = 0; s < S::kGroup / 4; s += 4, panel += 16 * kTile, q += 16) {
        int8x16_t a[M];
        unrolled<M>([&](auto m) { a[m] = vld1q_s8(q + m * in.code_stride); });
        unrolled<4>([&](auto step) {
            int8x16_t codes[kHalf];
            unrolled<kHalf>([&](auto e) { codes[e] = vreinterpretq_s8_u8(load_bytes(panel + 4 * kTile * step + 16 * e)); });
            unrolled<M>([&](auto m) {
                unrolled<kHalf>([&](auto e) { sums[m][e] = add_dot<step>(sums[m][e], codes[e], a[m]); });
            });
        });
    }
    unrolled<M>([&](auto m) {
        const std::int64_t at = (m0 + m) * in.group_stride + g;
        unrolled<kHalf>([&](auto e) {
            const int row = kLaneRows * (kHalf * half + e);
            add_codes<S>(group + kScaleBytes * row, sums[m][e], in.sums[at], in.scales[at], acc + m * kTile + row);
        });
    });
}

template <class S>
void multiply_many(const std::uint8_t *tile, const Activations &in, std::int64_t rows, std::uint8_t *panel, float *acc) {
    for (std::int64_t g = 0; g < in.k / S::kGroup; ++g, tile += S::kGroupBytes) {
        prefetch_group(tile, S::kGroupBytes);
        unpack_group<S>(tile, panel);
        for (int half = 0; half < 2; ++half) {
            std::int64_t m = 0;
            for (; m + 4 <= rows; m += 4) multiply_panel<S, 4>(tile, panel, half, in, m, g, acc + m * kTile);
            for (; m < rows; ++m) multiply_panel<S, 1>(tile, panel, half, in, m, g, acc + m * kTile);
        }
    }
}

template <class S>
void multiply_tile(const std::uint8_t *tile, const Activations &in, std::int64_t rows, std::uint8_t *panel, float *acc) {
    if (rows > 2) return multiply_many<S>(tile, in, rows, panel, acc);
    for (std::int64_t m = 0; m < rows; ++m) multiply_one<S>(tile, in, m, acc + m * kTile);
}

template <class S>
constexpr Tiling kTiling = {4, false, pack_tile<4, S::kBytes>, multiply_tile<S>};

template <class S>
constexpr const Tiling *tiling() {
    return &kTiling<S>;
}

inline void fill_tables(const std::int8_t *, std::int64_t, std::uint8_t *) {}

}  // namespace shohin::SHOHIN_TIER

#endif
