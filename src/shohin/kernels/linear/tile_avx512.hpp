// Products of tiles with AVX-512 VNNI. A 32-bit lane is a row; a tile is two vectors wide.
#pragma once

#if SHOHIN_TIER_AVX512

#include <utility>

#include "kernels/linear/tile_codes.hpp"

namespace shohin::SHOHIN_TIER {

// Sums of the 32 rows of a tile.
struct Pair {
    __m512i low, high;
};

SHOHIN_INLINE Pair load_pair(const std::uint8_t *p) { return {_mm512_loadu_si512(p), _mm512_loadu_si512(p + 64)}; }

// acc += sum * (scale * activation) for the 32 rows of a group; `codes` are the sums of codes times activations.
template <class S>
SHOHIN_INLINE void add_group(const std::uint8_t *group, const Pair &codes, std::int32_t code_sum, float activation, float *acc) {
    const __m512 a = _mm512_set1_ps(activation);
    const __m512i less = _mm512_set1_epi32(code_sum);
    const __m512i sums[2] = {codes.low, codes.high};
    for (int h = 0; h < 2; ++h) {
        const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(group + 32 * h)));
        const __m512 whole = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_slli_epi32(sums[h], S::kShift), less));
        float *to = acc + 16 * h;
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_mul_ps(whole, _mm512_mul_ps(scale, a))));
    }
}

// One row of activations. A code is not shifted down: field f of a byte counts 2^(bits f) times and has its own sum,
// which is divided, without a rest, once a group.
template <class S, int... Fields>
void multiply_one(const std::uint8_t *tile, const Activations &in, std::int64_t m, float *acc,
                  std::integer_sequence<int, Fields...>) {
    const std::int8_t *q = in.codes + m * in.code_stride;
    for (std::int64_t g = 0; g < in.k / S::kGroup; ++g, tile += S::kGroupBytes) {
        prefetch_group(tile, S::kGroupBytes);
        Pair sums[S::kFields];
        ((sums[Fields] = {_mm512_setzero_si512(), _mm512_setzero_si512()}), ...);
        const std::uint8_t *words = tile + kTile * kScaleBytes;
        for (int w = 0; w < S::kWords; ++w, words += 4 * kTile, q += 4 * S::kFields) {
            const Pair word = load_pair(words);
            const auto add = [&](int f) {
                const __m512i mask = _mm512_set1_epi8(static_cast<char>(S::kMask << (S::kBits * f)));
                const __m512i a = _mm512_set1_epi32(four(q + 4 * f));
                sums[f].low = _mm512_dpbusd_epi32(sums[f].low, _mm512_and_si512(word.low, mask), a);
                sums[f].high = _mm512_dpbusd_epi32(sums[f].high, _mm512_and_si512(word.high, mask), a);
            };
            (add(Fields), ...);
        }
        Pair total = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        const auto gather = [&](int f) {
            const auto by = static_cast<unsigned>(S::kBits * f);
            total.low = _mm512_add_epi32(total.low, _mm512_srai_epi32(sums[f].low, by));
            total.high = _mm512_add_epi32(total.high, _mm512_srai_epi32(sums[f].high, by));
        };
        (gather(Fields), ...);
        const std::int64_t at = m * in.group_stride + g;
        add_group<S>(tile, total, in.sums[at], in.scales[at], acc);
    }
}

// A word of 32 rows as codes in bytes, field f.
template <class S>
SHOHIN_INLINE Pair field_of(const Pair &word, int f) {
    const __m512i mask = _mm512_set1_epi8(static_cast<char>(S::kMask));
    const auto by = static_cast<unsigned>(S::kBits * f);
    return {_mm512_and_si512(_mm512_srli_epi32(word.low, by), mask),
            _mm512_and_si512(_mm512_srli_epi32(word.high, by), mask)};
}

// Sums of a tile for M rows of activations. Arrays of plain vectors: gcc copies an array of pairs about.
template <int M>
struct Sums {
    __m512i low[M], high[M];
};

template <int M>
SHOHIN_INLINE void clear(Sums<M> &sums) {
    unrolled<M>([&](auto m) { sums.low[m] = sums.high[m] = _mm512_setzero_si512(); });
}

// Four products of a code and an activation to each lane. Around the intrinsic gcc copies all sums at every turn of a loop.
SHOHIN_INLINE void add_products(__m512i &sum, __m512i codes, __m512i activations) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(activations));
}

template <int M>
SHOHIN_INLINE void add_step(const Pair &codes, const std::int8_t *q, std::int64_t stride, Sums<M> &sums) {
    unrolled<M>([&](auto m) {
        const __m512i a = _mm512_set1_epi32(four(q + m * stride));
        add_products(sums.low[m], codes.low, a);
        add_products(sums.high[m], codes.high, a);
    });
}

template <class S, int M>
SHOHIN_INLINE void add_groups(const std::uint8_t *group, const Activations &in, std::int64_t at, const Sums<M> &sums,
                       float *acc) {
    unrolled<M>([&](auto m) {
        const std::int64_t of_row = at + m * in.group_stride;
        add_group<S>(group, {sums.low[m], sums.high[m]}, in.sums[of_row], in.scales[of_row], acc + m * kTile);
    });
}

// A few rows of activations: codes are brought out in registers once for all of them.
template <class S, int M>
void multiply_few(const std::uint8_t *tile, const Activations &in, std::int64_t m0, float *acc) {
    const std::int8_t *q = in.codes + m0 * in.code_stride;
    for (std::int64_t g = 0; g < in.k / S::kGroup; ++g, tile += S::kGroupBytes) {
        prefetch_group(tile, S::kGroupBytes);
        Sums<M> sums;
        clear(sums);
        const std::uint8_t *words = tile + kTile * kScaleBytes;
        for (int w = 0; w < S::kWords; ++w, words += 4 * kTile) {
            const Pair word = load_pair(words);
            for (int f = 0; f < S::kFields; ++f, q += 4) add_step(field_of<S>(word, f), q, in.code_stride, sums);
        }
        add_groups<S>(tile, in, m0 * in.group_stride + g, sums, acc);
    }
}

// All codes of a group as bytes: panel [step][row][4].
template <class S>
inline void unpack_group(const std::uint8_t *group, std::uint8_t *panel) {
    const std::uint8_t *words = group + kTile * kScaleBytes;
    for (int w = 0; w < S::kWords; ++w, words += 4 * kTile) {
        const Pair word = load_pair(words);
        for (int f = 0; f < S::kFields; ++f, panel += 4 * kTile) {
            const Pair codes = field_of<S>(word, f);
            _mm512_store_si512(panel, codes.low);
            _mm512_store_si512(panel + 64, codes.high);
        }
    }
}

template <class S, int M>
inline void multiply_panel(const std::uint8_t *group, const std::uint8_t *panel, const Activations &in, std::int64_t m,
                           std::int64_t g, float *acc) {
    const std::int8_t *q = in.codes + m * in.code_stride + g * S::kGroup;
    // The next rows lie far apart, where the processor does not look ahead by itself.
    for (int m1 = 0; m1 < M; ++m1)
        for (int i = 0; i < S::kGroup; i += 64) prefetch(q + (M + m1) * in.code_stride + i);
    Sums<M> sums;
    clear(sums);
    for (int s = 0; s < S::kGroup / 4; ++s, panel += 4 * kTile, q += 4)
        add_step(load_pair(panel), q, in.code_stride, sums);
    add_groups<S>(group, in, m * in.group_stride + g, sums, acc);
}

constexpr int kManyRows = 8;  // rows of activations in registers: 16 sums, and room for codes and a row's four inputs

template <class S>
void multiply_many(const std::uint8_t *tile, const Activations &in, std::int64_t rows, std::uint8_t *panel, float *acc) {
    for (std::int64_t g = 0; g < in.k / S::kGroup; ++g, tile += S::kGroupBytes) {
        prefetch_group(tile, S::kGroupBytes);
        unpack_group<S>(tile, panel);
        std::int64_t m = 0;
        for (; m + kManyRows <= rows; m += kManyRows)
            multiply_panel<S, kManyRows>(tile, panel, in, m, g, acc + m * kTile);
        for (; m + 2 <= rows; m += 2) multiply_panel<S, 2>(tile, panel, in, m, g, acc + m * kTile);
        for (; m < rows; ++m) multiply_panel<S, 1>(tile, panel, in, m, g, acc + m * kTile);
    }
}

template <class S>
void multiply_tile(const std::uint8_t *tile, const Activations &in, std::int64_t rows, std::uint8_t *panel, float *acc) {
    switch (rows) {
        case 1: return multiply_one<S>(tile, in, 0, acc, std::make_integer_sequence<int, S::kFields>{});
        case 2: return multiply_few<S, 2>(tile, in, 0, acc);
        case 3: return multiply_few<S, 3>(tile, in, 0, acc);
        case 4: return multiply_few<S, 4>(tile, in, 0, acc);
        case 5: return multiply_few<S, 5>(tile, in, 0, acc);
        case 6: return multiply_few<S, 6>(tile, in, 0, acc);
        case 7: return multiply_few<S, 7>(tile, in, 0, acc);
        case 8: return multiply_few<S, 8>(tile, in, 0, acc);
        default: return multiply_many<S>(tile, in, rows, panel, acc);
    }
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
