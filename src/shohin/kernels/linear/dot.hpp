// Panels of unpacked weights times rows of activations: the one loop that every format and every linear op goes through.
// A lane is a weight row; each lane adds the groups of its row one by one in order of K, whatever the batch.
#pragma once

#include "kernels/linear/input.hpp"

namespace shohin::SHOHIN_TIER {

#if SHOHIN_TIER_AVX2

struct I8 {
    __m256i v;
};

inline F8 to_floats(I8 a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline I8 minus(I8 a, std::int32_t b) { return {_mm256_sub_epi32(a.v, _mm256_set1_epi32(b))}; }

// sums[m][r] = sum over `steps` steps of four codes of row r times four activations of row m, exactly.
// Products of a code and an activation are added in 16 bits for Widen steps, then in 32.
template <int Widen, int M>
inline void group_sums(const std::uint8_t *codes, int steps, const std::int8_t *q, std::int64_t stride, I8 (&sums)[M]) {
    constexpr int kRun = Widen == 0 ? 1 : Widen;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int m = 0; m < M; ++m) sums[m].v = _mm256_setzero_si256();
    for (int first = 0; first < steps; first += kRun) {
        __m256i part[M];
        for (int m = 0; m < M; ++m) part[m] = _mm256_setzero_si256();
        // In runs short enough for compilers to unroll them.
        for (int run = first; run < first + kRun; run += kRun < 8 ? kRun : 8)
            for (int i = 0; i < (kRun < 8 ? kRun : 8); ++i) {
                const int s = run + i;
                const __m256i w = _mm256_load_si256(reinterpret_cast<const __m256i *>(codes + 32 * s));
                for (int m = 0; m < M; ++m) {
                    std::int32_t four;
                    std::memcpy(&four, q + m * stride + 4 * s, 4);
                    const __m256i a = _mm256_set1_epi32(four);
                    // Signed codes: |code| as an unsigned byte, its sign moved to the activation (never -128).
                    const __m256i pairs = Widen == 0
                                              ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w))
                                              : _mm256_maddubs_epi16(w, a);
                    part[m] = _mm256_add_epi16(part[m], pairs);
                }
            }
        for (int m = 0; m < M; ++m) sums[m].v = _mm256_add_epi32(sums[m].v, _mm256_madd_epi16(part[m], ones));
    }
}

#elif SHOHIN_TIER_NEON

struct I8 {
    int32x4_t low, high;
};

inline F8 to_floats(I8 a) { return {vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)}; }
inline I8 minus(I8 a, std::int32_t b) {
    return {vsubq_s32(a.low, vdupq_n_s32(b)), vsubq_s32(a.high, vdupq_n_s32(b))};
}

// Unsigned codes are below 128 in every format, so they are signed bytes too.
template <int Widen, int M>
inline void group_sums(const std::uint8_t *codes, int steps, const std::int8_t *q, std::int64_t stride, I8 (&sums)[M]) {
    const auto *signed_codes = reinterpret_cast<const std::int8_t *>(codes);
    for (int m = 0; m < M; ++m) sums[m].low = sums[m].high = vdupq_n_s32(0);
    for (int s = 0; s < steps; ++s) {
        const int8x16_t low = vld1q_s8(signed_codes + 32 * s), high = vld1q_s8(signed_codes + 32 * s + 16);
        for (int m = 0; m < M; ++m) {
            std::int32_t word;
            std::memcpy(&word, q + m * stride + 4 * s, sizeof word);
            const int8x16_t a = vreinterpretq_s8_s32(vdupq_n_s32(word));
            sums[m].low = vdotq_s32(sums[m].low, low, a);
            sums[m].high = vdotq_s32(sums[m].high, high, a);
        }
    }
}

#else

struct I8 {
    std::int32_t v[8];
};

inline F8 to_floats(const I8 &a) { return floats(a.v); }
inline I8 minus(const I8 &a, std::int32_t b) {
    I8 c;
    for (int i = 0; i < 8; ++i) c.v[i] = a.v[i] - b;
    return c;
}

template <int Widen, int M>
inline void group_sums(const std::uint8_t *codes, int steps, const std::int8_t *q, std::int64_t stride, I8 (&sums)[M]) {
    for (int m = 0; m < M; ++m) {
        std::int16_t products[32];
        std::int32_t total[32] = {};
        for (int s = 0; s < steps; ++s) {
            std::int8_t four[32];
            for (int r = 0; r < 8; ++r) std::memcpy(four + 4 * r, q + m * stride + 4 * s, 4);
            for (int i = 0; i < 32; ++i) {
                const int code = Widen == 0 ? static_cast<std::int8_t>(codes[32 * s + i]) : codes[32 * s + i];
                products[i] = static_cast<std::int16_t>(code * four[i]);
            }
            for (int i = 0; i < 32; ++i) total[i] += products[i];
        }
        for (int r = 0; r < 8; ++r)
            sums[m].v[r] = total[4 * r] + total[4 * r + 1] + total[4 * r + 2] + total[4 * r + 3];
    }
}

#endif

// Where in the rows a panel stands, and what it adds to: acc [row][kTile], of which eight.
struct Place {
    std::int64_t row;    // first row of activations
    std::int64_t first;  // first weight of the panel
    int weights;         // in the panel
    float *acc;          // of the first row
};

template <int Widen, int M>
void int8_panel(const Panel &panel, const Format &format, const Input &in, const CodeSet &set, const Place &at) {
    const int steps = format.group / 4;
    const std::int64_t scale_stride = in.k / set.group, sum_stride = in.k / set.width;
    const std::int8_t *q = set.codes + at.row * in.k + at.first;
    F8 acc[M];
    for (int m = 0; m < M; ++m) acc[m] = load(at.acc + m * kTile);
    const float *scales = set.scales + at.row * scale_stride + at.first / set.group;
    const std::int32_t *code_sums = set.code_sums + at.row * sum_stride + at.first / set.width;
    const int per_scale = set.group / set.width;
    for (int g = 0; g < at.weights / format.group; ++g) {
        I8 sums[M];
        group_sums<Widen, M>(panel.codes + g * format.group * kLanes, steps, q + g * format.group, in.k, sums);
        const F8 scale = load(panel.scales + g * kLanes);
        for (int m = 0; m < M; ++m) {
            const std::int32_t code_sum = code_sums[m * sum_stride + g];
            const F8 whole = to_floats(minus(sums[m], format.offset * code_sum));
            const F8 activation = all(scales[m * scale_stride + g / per_scale]);
            if (format.minimum) {
                const F8 minimum = load(panel.minima + g * kLanes);
                acc[m] = acc[m] + activation * (scale * whole + minimum * all(static_cast<float>(code_sum)));
            } else {
                acc[m] = acc[m] + whole * (scale * activation);
            }
        }
    }
    for (int m = 0; m < M; ++m) store(at.acc + m * kTile, acc[m]);
}

// Codes of a panel as floats, in order of the weights.
inline void widen_codes(const Format &format, int weights, Panel &panel) {
    const auto *words = reinterpret_cast<const std::uint32_t *>(panel.codes);
    // Signed bytes are turned into unsigned ones with an offset, so that there is one loop.
    const std::int32_t flip = format.widen == 0 ? 128 : 0, offset = format.widen == 0 ? 128 : format.offset;
    const int shift = format.order == Order::by4 ? 2 : format.order == Order::by8 ? 3 : 0;
    for (int s = 0; s < weights / 4; ++s)
        for (int b = 0; b < 4; ++b) {
            const int j = (s >> shift << (shift + 2)) + (b << shift) + (s & ((1 << shift) - 1));
            std::int32_t codes[kLanes];
            for (int r = 0; r < kLanes; ++r)
                codes[r] = (static_cast<std::int32_t>(words[s * kLanes + r] >> (8 * b) & 255u) ^ flip) - offset;
            store(panel.floats + j * kLanes, floats(codes));
        }
}

// s = sum of code * x over each group, then acc += scale * s (+ minimum * sum of x). A plain format is one group.
template <int M>
void exact_panel(const Panel &panel, const Format &format, const Input &in, const CodeSet *set, const Place &at) {
    const int weights = static_cast<int>(round_up(at.weights, 4));
    const int group = format.quantised ? format.group : weights;
    const float *x = in.x + at.row * in.stride + at.first;
    F8 acc[M];
    for (int m = 0; m < M; ++m) acc[m] = load(at.acc + m * kTile);
    for (int g = 0; g < weights / group; ++g) {
        F8 part[M][4];
        for (int m = 0; m < M; ++m)
            for (int b = 0; b < 4; ++b) part[m][b] = zeros();
        for (int j = g * group; j < (g + 1) * group; j += 4)
            for (int b = 0; b < 4; ++b) {
                const F8 w = load(panel.floats + (j + b) * kLanes);
                for (int m = 0; m < M; ++m) part[m][b] = part[m][b] + w * all(x[m * in.stride + j + b]);
            }
        for (int m = 0; m < M; ++m) {
            const F8 s = (part[m][0] + part[m][1]) + (part[m][2] + part[m][3]);
            if (!format.quantised) {
                acc[m] = acc[m] + s;
                continue;
            }
            F8 added = load(panel.scales + g * kLanes) * s;
            if (format.minimum) {
                const std::int64_t sums = in.k / format.group;
                const float total = set->sums[(at.row + m) * sums + at.first / format.group + g];
                added = added + load(panel.minima + g * kLanes) * all(total);
            }
            acc[m] = acc[m] + added;
        }
    }
    for (int m = 0; m < M; ++m) store(at.acc + m * kTile, acc[m]);
}

using Int8Panel = void (*)(const Panel &, const Format &, const Input &, const CodeSet &, const Place &);

template <int M>
inline Int8Panel int8_panel_for(int widen) {
    switch (widen) {
        case 2: return int8_panel<2, M>;
        case 4: return int8_panel<4, M>;
        case 8: return int8_panel<8, M>;
        case 32: return int8_panel<32, M>;
        default: return int8_panel<0, M>;
    }
}

constexpr std::int64_t kRowChunk = 128;  // activation rows that a tile of weights meets in one go

// What one worker needs for a tile: a panel, and sums for kTile outputs of up to kRowChunk rows, twice for SwiGLU.
struct Workspace {
    Panel panel;
    alignas(64) std::uint8_t tile[kTilePanelBytes];
    alignas(64) std::uint8_t restored[kLanes * kPanel];  // rows of a tile as they were in the file: at most a byte a weight
    alignas(64) float acc[2][kRowChunk * kTile];
};

// Fill the panel with `weights` weights from `first` on of the rows that start at `row`.
inline void load_panel(const Operand &weight, std::int64_t row, std::int64_t first, int weights, Workspace &space) {
    const Format &format = *weight.format;
    const int live = static_cast<int>(least(kLanes, weight.rows - row)), blocks = weights / format.block;
    const std::int64_t block = first / format.block, stride = weight.row_bytes();
    if (row >= weight.tiled_rows()) {
        format.panel(weight.data + row * stride + block * format.bytes, stride, live, blocks, space.panel);
        return;
    }
    const std::uint8_t *tile = weight.data + row / kTile * kTile * stride;
    const std::int64_t width = blocks * format.bytes;
    for (int r = 0; r < kLanes; ++r)
        restore_row(format, tile, static_cast<int>(row % kTile) + r, block, blocks, space.restored + r * width);
    format.panel(space.restored, width, kLanes, blocks, space.panel);
}

// acc[m - m0][r] = weight row `row` + r times activation row m, for eight r and rows m0 to m1 - 1.
inline void project_eight(const Operand &weight, std::int64_t row, const Input &in, int index, std::int64_t m0,
                          std::int64_t m1, Workspace &space, float *acc) {
    const Format &format = *weight.format;
    const bool coded = in.set_of[index] >= 0 && in.set(index).group != 0;
    const CodeSet *set = in.set_of[index] < 0 ? nullptr : &in.set(index);
    const Int8Panel four_rows = int8_panel_for<4>(format.widen), one_row = int8_panel_for<1>(format.widen);
    for (std::int64_t first = 0; first < in.k; first += kPanel) {
        const int weights = static_cast<int>(least(kPanel, in.k - first));
        load_panel(weight, row, first, weights, space);
        if (!coded && format.quantised) widen_codes(format, weights, space.panel);
        std::int64_t m = m0;
        for (; m + 4 <= m1; m += 4) {
            const Place at{m, first, weights, acc + (m - m0) * kTile};
            if (coded)
                four_rows(space.panel, format, in, *set, at);
            else
                exact_panel<4>(space.panel, format, in, set, at);
        }
        for (; m < m1; ++m) {
            const Place at{m, first, weights, acc + (m - m0) * kTile};
            if (coded)
                one_row(space.panel, format, in, *set, at);
            else
                exact_panel<1>(space.panel, format, in, set, at);
        }
    }
}

// Rows m0 and on of a set of int8 codes for the kernels of tiles.
inline Activations activations_of(const Input &in, const CodeSet &set, std::int64_t m0) {
    const std::int64_t groups = in.k / set.width;
    const std::uint8_t *tables = in.tables ? set.tables : nullptr;
    return {in.k,   set.codes + m0 * in.k,       in.k, set.scales + m0 * groups, set.code_sums + m0 * groups,
            groups, tables};
}

// acc[m - m0][r] = weight row kTile strip + r times activation row m, for the rows of a strip.
inline void project(const Operand &weight, std::int64_t strip, const Input &in, int index, std::int64_t m0,
                    std::int64_t m1, Workspace &space, float *acc) {
    std::memset(acc, 0, static_cast<std::size_t>((m1 - m0) * kTile) * sizeof(float));
    const std::int64_t first = strip * kTile, end = least(first + kTile, weight.rows);
    const bool coded = in.set_of[index] >= 0 && in.set(index).group != 0;
    if (coded && first < weight.tiled_rows()) {
        const std::uint8_t *tile = weight.data + first * weight.row_bytes();
        weight.format->tiling->multiply(tile, activations_of(in, in.set(index), m0), m1 - m0, space.tile, acc);
        return;
    }
    for (std::int64_t row = first; row < end; row += kLanes)
        project_eight(weight, row, in, index, m0, m1, space, acc + (row - first));
}

}  // namespace shohin::SHOHIN_TIER
