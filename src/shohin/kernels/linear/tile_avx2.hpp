// Products of tiles with AVX2. One-bit weights go through lookup tables, a byte a row; two-bit codes through maddubs, a
// 32-bit lane a row.
#pragma once

#if SHOHIN_TIER_AVX2 && !SHOHIN_TIER_AVX512

#include "kernels/linear/tile_codes.hpp"

namespace shohin::SHOHIN_TIER {

inline __m256i load_bytes(const std::uint8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }

// acc += whole * (scale * activation) for eight rows.
inline void add_eight(const std::uint8_t *scales, __m256i whole, __m256 activation, float *acc) {
    const __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(scales)));
    const __m256 added = _mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(scale, activation));
    _mm256_storeu_ps(acc, _mm256_add_ps(_mm256_loadu_ps(acc), added));
}

// The same from sums of codes in 16-bit pairs.
template <class S>
inline void add_codes(const std::uint8_t *scales, __m256i pairs, std::int32_t code_sum, __m256 activation, float *acc) {
    const __m256i codes = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m256i whole = _mm256_sub_epi32(_mm256_slli_epi32(codes, S::kShift), _mm256_set1_epi32(code_sum));
    add_eight(scales, whole, activation, acc);
}

// Four inputs give sixteen signed sums, one for each nibble of signs. A sum plus 512 is kept as its low six and its high
// four bits, so that four lookups of the first and sixteen of the second can be added in bytes.
constexpr int kTableBias = 512, kLowBits = 6;

inline void fill_table(const std::int8_t *q, std::uint8_t *table) {
    // Byte pairs (bit 0, bit 1) and (bit 2, bit 3) of the nibbles 0 to 15 as signs.
    const __m256i first = _mm256_setr_epi8(-1, -1, 1, -1, -1, 1, 1, 1, -1, -1, 1, -1, -1, 1, 1, 1,  //
                                           -1, -1, 1, -1, -1, 1, 1, 1, -1, -1, 1, -1, -1, 1, 1, 1);
    const __m256i second = _mm256_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, 1, -1, 1, -1,  //
                                            -1, 1, -1, 1, -1, 1, -1, 1, 1, 1, 1, 1, 1, 1, 1, 1);
    std::int16_t pairs[2];
    std::memcpy(pairs, q, sizeof pairs);
    const __m256i ones = _mm256_set1_epi8(1);
    const __m256i a = _mm256_maddubs_epi16(ones, _mm256_sign_epi8(_mm256_set1_epi16(pairs[0]), first));
    const __m256i b = _mm256_maddubs_epi16(ones, _mm256_sign_epi8(_mm256_set1_epi16(pairs[1]), second));
    const __m256i sums = _mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(kTableBias));
    const __m256i low = _mm256_and_si256(sums, _mm256_set1_epi16((1 << kLowBits) - 1));
    const __m256i both = _mm256_packus_epi16(low, _mm256_srli_epi16(sums, kLowBits));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(table), _mm256_permute4x64_epi64(both, 0xD8));
}

// For every byte of signs: low and high bits for its low nibble, then for its high one. q in order of the weights.
inline void fill_tables(const std::int8_t *q, std::int64_t k, std::uint8_t *tables) {
    for (std::int64_t j = 0; j < k; j += 4) fill_table(q + j, tables + j * (kTableBytes / 8));
}

inline __m256i look_up(const std::uint8_t *table, __m256i nibbles) {
    const __m128i entries = _mm_load_si128(reinterpret_cast<const __m128i *>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), nibbles);
}

// Sums of 16 bits: of the even rows of a tile and of the odd ones.
struct Halves {
    __m256i even, odd;

    void add(__m256i bytes) {
        even = _mm256_add_epi16(even, _mm256_and_si256(bytes, _mm256_set1_epi16(255)));
        odd = _mm256_add_epi16(odd, _mm256_srli_epi16(bytes, 8));
    }
};

constexpr Halves kNoHalves = {};

// Sums of 32 lookups for 32 rows; `codes` is 16 bytes of each row.
inline Halves sum_lookups(const std::uint8_t *codes, const std::uint8_t *tables) {
    const __m256i nibble = _mm256_set1_epi8(15);
    Halves low = kNoHalves, high = kNoHalves;
    for (int eight = 0; eight < 2; ++eight) {
        __m256i high_bytes = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int two = 0; two < 4; ++two) {
            __m256i low_bytes = _mm256_setzero_si256();
#pragma GCC unroll 2
            for (int one = 0; one < 2; ++one, codes += kTile, tables += kTableBytes) {
                const __m256i byte = load_bytes(codes), first = _mm256_and_si256(byte, nibble);
                const __m256i second = _mm256_and_si256(_mm256_srli_epi16(byte, 4), nibble);
                low_bytes = _mm256_add_epi8(low_bytes,
                                            _mm256_add_epi8(look_up(tables, first), look_up(tables + 32, second)));
                high_bytes = _mm256_add_epi8(high_bytes,
                                             _mm256_add_epi8(look_up(tables + 16, first), look_up(tables + 48, second)));
            }
            low.add(low_bytes);
        }
        high.add(high_bytes);
    }
    const __m256i bias = _mm256_set1_epi16(32 * kTableBias);
    return {_mm256_sub_epi16(_mm256_add_epi16(low.even, _mm256_slli_epi16(high.even, kLowBits)), bias),
            _mm256_sub_epi16(_mm256_add_epi16(low.odd, _mm256_slli_epi16(high.odd, kLowBits)), bias)};
}

template <class S>
void multiply_tables(const std::uint8_t *tile, const Activations &in, std::int64_t m, float *acc) {
    const std::uint8_t *tables = in.tables + m * (in.k / 8) * kTableBytes;
    for (std::int64_t g = 0; g < in.k / S::kGroup; ++g, tile += S::kGroupBytes, tables += S::kCodeBytes * kTableBytes) {
        prefetch_group(tile, S::kGroupBytes);
        const Halves sums = sum_lookups(tile + kTile * kScaleBytes, tables);
        // Rows 0 to 7 and 16 to 23; rows 8 to 15 and 24 to 31.
        const __m256i rows[2] = {_mm256_unpacklo_epi16(sums.even, sums.odd), _mm256_unpackhi_epi16(sums.even, sums.odd)};
        const __m256 activation = _mm256_set1_ps(in.scales[m * in.group_stride + g]);
        for (int e = 0; e < 4; ++e) {
            const __m128i eight = e < 2 ? _mm256_castsi256_si128(rows[e]) : _mm256_extracti128_si256(rows[e - 2], 1);
            add_eight(tile + 16 * e, _mm256_cvtepi16_epi32(eight), activation, acc + 8 * e);
        }
    }
}

// Field f of words of eight rows as codes in bytes.
template <class S>
inline __m256i field_of(__m256i word, int f) {
    return _mm256_and_si256(_mm256_srli_epi16(word, S::kBits * f), _mm256_set1_epi8(static_cast<char>(S::kMask)));
}

// One row of activations and words of four bytes a row.
template <class S>
void multiply_words(const std::uint8_t *tile, const Activations &in, std::int64_t m, float *acc) {
    const std::int8_t *q = in.codes + m * in.code_stride;
    for (std::int64_t g = 0; g < in.k / S::kGroup; ++g, tile += S::kGroupBytes) {
        prefetch_group(tile, S::kGroupBytes);
        __m256i sums[4] = {};
        const std::uint8_t *words = tile + kTile * kScaleBytes;
        for (int w = 0; w < S::kWords; ++w, words += 4 * kTile, q += 4 * S::kFields) {
            __m256i a[S::kFields];
            for (int f = 0; f < S::kFields; ++f) a[f] = _mm256_set1_epi32(four(q + 4 * f));
#pragma GCC unroll 4
            for (int e = 0; e < 4; ++e) {
                const __m256i word = load_bytes(words + 32 * e);
#pragma GCC unroll 8
                for (int f = 0; f < S::kFields; ++f)
                    sums[e] = _mm256_add_epi16(sums[e], _mm256_maddubs_epi16(field_of<S>(word, f), a[f]));
            }
        }
        const std::int64_t at = m * in.group_stride + g;
        const __m256 activation = _mm256_set1_ps(in.scales[at]);
        for (int e = 0; e < 4; ++e) add_codes<S>(tile + 16 * e, sums[e], in.sums[at], activation, acc + 8 * e);
    }
}

// Words of four bytes of a row: as they lie, or gathered from bytes of 32 rows.
template <int Chunk>
inline void load_words(const std::uint8_t *codes, __m256i (&words)[4]) {
    __m256i bytes[4];
    for (int i = 0; i < 4; ++i) bytes[i] = load_bytes(codes + kTile * i);
    if (Chunk == 4) {
        for (int i = 0; i < 4; ++i) words[i] = bytes[i];
        return;
    }
    const __m256i low01 = _mm256_unpacklo_epi8(bytes[0], bytes[1]), high01 = _mm256_unpackhi_epi8(bytes[0], bytes[1]);
    const __m256i low23 = _mm256_unpacklo_epi8(bytes[2], bytes[3]), high23 = _mm256_unpackhi_epi8(bytes[2], bytes[3]);
    const __m256i a = _mm256_unpacklo_epi16(low01, low23), b = _mm256_unpackhi_epi16(low01, low23);
    const __m256i c = _mm256_unpacklo_epi16(high01, high23), d = _mm256_unpackhi_epi16(high01, high23);
    words[0] = _mm256_permute2x128_si256(a, b, 0x20);
    words[1] = _mm256_permute2x128_si256(c, d, 0x20);
    words[2] = _mm256_permute2x128_si256(a, b, 0x31);
    words[3] = _mm256_permute2x128_si256(c, d, 0x31);
}

// All codes of a group as bytes: panel [step][row][4].
template <class S, int Chunk>
inline void unpack_group(const std::uint8_t *group, std::uint8_t *panel) {
    const std::uint8_t *codes = group + kTile * kScaleBytes;
    for (int w = 0; w < S::kWords; ++w, codes += 4 * kTile) {
        __m256i words[4];
        load_words<Chunk>(codes, words);
        for (int f = 0; f < S::kFields; ++f, panel += 4 * kTile)
            for (int e = 0; e < 4; ++e)
                _mm256_store_si256(reinterpret_cast<__m256i *>(panel + 32 * e), field_of<S>(words[e], f));
    }
}

// 16 rows of weights (`half` of a tile) times M rows of activations in registers.
template <class S, int M>
inline void multiply_panel(const std::uint8_t *group, const std::uint8_t *panel, int half, const Activations &in,
                           std::int64_t m0, std::int64_t g, float *acc) {
    const std::int8_t *q = in.codes + m0 * in.code_stride + g * S::kGroup;
    __m256i sums[M][2];
    for (int m = 0; m < M; ++m) sums[m][0] = sums[m][1] = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (int s = 0; s < S::kGroup / 4; ++s) {
        const std::uint8_t *codes = panel + 4 * kTile * s + 64 * half;
        const __m256i low = load_bytes(codes), high = load_bytes(codes + 32);
        for (int m = 0; m < M; ++m) {
            const __m256i a = _mm256_set1_epi32(four(q + m * in.code_stride + 4 * s));
            sums[m][0] = _mm256_add_epi16(sums[m][0], _mm256_maddubs_epi16(low, a));
            sums[m][1] = _mm256_add_epi16(sums[m][1], _mm256_maddubs_epi16(high, a));
        }
    }
    for (int m = 0; m < M; ++m)
        for (int e = 0; e < 2; ++e) {
            const std::int64_t at = (m0 + m) * in.group_stride + g;
            add_codes<S>(group + 32 * half + 16 * e, sums[m][e], in.sums[at], _mm256_set1_ps(in.scales[at]),
                         acc + m * kTile + 16 * half + 8 * e);
        }
}

template <class S, int Chunk>
void multiply_many(const std::uint8_t *tile, const Activations &in, std::int64_t rows, std::uint8_t *panel, float *acc) {
    for (std::int64_t g = 0; g < in.k / S::kGroup; ++g, tile += S::kGroupBytes) {
        prefetch_group(tile, S::kGroupBytes);
        unpack_group<S, Chunk>(tile, panel);
        for (int half = 0; half < 2; ++half) {
            std::int64_t m = 0;
            for (; m + 4 <= rows; m += 4) multiply_panel<S, 4>(tile, panel, half, in, m, g, acc + m * kTile);
            for (; m < rows; ++m) multiply_panel<S, 1>(tile, panel, half, in, m, g, acc + m * kTile);
        }
    }
}

template <class S, int Chunk>
void multiply_tile(const std::uint8_t *tile, const Activations &in, std::int64_t rows, std::uint8_t *panel, float *acc) {
    if (Chunk == 1 && in.tables != nullptr) {
        for (std::int64_t m = 0; m < rows; ++m) multiply_tables<S>(tile, in, m, acc + m * kTile);
    } else if (Chunk == 4 && rows <= 2) {
        for (std::int64_t m = 0; m < rows; ++m) multiply_words<S>(tile, in, m, acc + m * kTile);
    } else {
        multiply_many<S, Chunk>(tile, in, rows, panel, acc);
    }
}

template <class S>
constexpr int kChunk = S::kBits == 1 ? 1 : 4;

template <class S>
constexpr Tiling kTiling = {kChunk<S>, kChunk<S> == 1, pack_tile<kChunk<S>, S::kBytes>,
                            multiply_tile<S, kChunk<S>>};

template <class S>
constexpr const Tiling *tiling() {
    return &kTiling<S>;
}

}  // namespace shohin::SHOHIN_TIER

#endif
