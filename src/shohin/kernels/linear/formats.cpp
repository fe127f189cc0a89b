// The table of formats of one tier. A new format is one snippet and one line here.
#include "kernels/linear/deal.hpp"
#include "kernels/linear/kquants.hpp"
#include "kernels/linear/legacy.hpp"
#include "kernels/linear/lowbit.hpp"
#include "kernels/linear/plain.hpp"
#include "kernels/linear/tile_avx2.hpp"
#include "kernels/linear/tile_avx512.hpp"
#include "kernels/linear/tile_generic.hpp"
#include "kernels/linear/tile_neon.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

// The general panel: unpack each row with the format's snippet, then deal the codes to lanes.
template <class S>
void code_panel(const std::uint8_t *first, std::int64_t stride, int rows, int blocks, Panel &panel) {
    constexpr int kGroups = S::kBlock / S::kGroup;
    float scales[kGroups], minima[kGroups];
    for (int r = 0; r < kLanes; ++r) {
        const std::uint8_t *row = first + (r < rows ? r : rows - 1) * stride;
        for (int b = 0; b < blocks; ++b) {
            const std::uint8_t *block = row + b * S::kBytes;
            prefetch(block + kLanes * stride);
            S::unpack(block, panel.rows + r * kPanel + b * S::kBlock, scales, minima);
            for (int g = 0; g < kGroups; ++g) {
                panel.scales[(b * kGroups + g) * kLanes + r] = scales[g];
                if (S::kMinimum) panel.minima[(b * kGroups + g) * kLanes + r] = minima[g];
            }
        }
    }
    deal(reinterpret_cast<const std::uint32_t *>(panel.rows), kPanel / 4,
         reinterpret_cast<std::uint32_t *>(panel.codes), blocks * S::kBlock / 4);
}

template <class S>
void plain_panel(const std::uint8_t *first, std::int64_t stride, int rows, int count, Panel &panel) {
    const std::int64_t padded = round_up(count, 4);
    for (int r = 0; r < kLanes; ++r) {
        float *out = panel.row_floats + r * kPanel;
        S::read(first + (r < rows ? r : rows - 1) * stride, count, out);
        for (std::int64_t j = count; j < padded; ++j) out[j] = 0.0f;
    }
    deal(reinterpret_cast<const std::uint32_t *>(panel.row_floats), kPanel,
         reinterpret_cast<std::uint32_t *>(panel.floats), padded);
}

template <class S>
void decode(const std::uint8_t *row, std::int64_t count, float *out) {
    constexpr int kGroups = S::kBlock / S::kGroup;
    std::uint8_t codes[S::kBlock];
    float scales[kGroups], minima[kGroups];
    for (; count > 0; count -= S::kBlock, row += S::kBytes, out += S::kBlock) {
        S::unpack(row, codes, scales, minima);
        for (int j = 0; j < S::kBlock; ++j) {
            const int g = j / S::kGroup;
            const int code = S::kWiden == 0 ? static_cast<std::int8_t>(codes[j]) : codes[j] - S::kOffset;
            out[j] = static_cast<float>(code) * scales[g];
            if (S::kMinimum) out[j] += minima[g];
        }
    }
}

template <class S>
constexpr Format plain(const char *name) {
    return {name, 1, S::kBytes, 1, 0, 0, false, false, Order::straight, plain_panel<S>, S::read, nullptr};
}

template <class S>
constexpr Format coded(const char *name, decltype(Format::panel) panel = code_panel<S>, const Tiling *tiling = nullptr) {
    static_assert(kPanel % S::kBlock == 0 && S::kGroup % 16 == 0 && kPanel / S::kGroup <= kPanelGroups);
    static_assert(S::kWiden == 0 || S::kGroup / 4 % S::kWiden == 0);
    return {name,     S::kBlock,   S::kBytes, S::kGroup, S::kOffset, S::kWiden, true,
            S::kMinimum, S::kOrder, panel,     decode<S>, tiling};
}

}  // namespace

extern const Format kFormats[];
extern const int kFormatCount;

constinit const Format kFormats[] = {
    plain<F32>("F32"),
    plain<F16>("F16"),
    plain<BF16>("BF16"),
    coded<Q4_0>("Q4_0"),
    coded<Q4_1>("Q4_1"),
    coded<Q5_0>("Q5_0"),
    coded<Q5_1>("Q5_1"),
    coded<Q8_0>("Q8_0"),
    coded<Q2_K>("Q2_K"),
    coded<Q3_K>("Q3_K"),
    coded<Q4_K>("Q4_K"),
    coded<Q5_K>("Q5_K"),
    coded<Q6_K>("Q6_K"),
    coded<OneBit>("Q1_0", word_panel<OneBit>, tiling<TileCodes<1, 128>>()),
    coded<TwoBit<128, 32>>("PQ2_0", word_panel<TwoBit<128, 32>>, tiling<TileCodes<2, 128>>()),
    coded<TwoBit<64, 8>>("Q2_0", word_panel<TwoBit<64, 8>>, tiling<TileCodes<2, 64>>()),
};
constinit const int kFormatCount = sizeof kFormats / sizeof kFormats[0];

}  // namespace shohin::SHOHIN_TIER
