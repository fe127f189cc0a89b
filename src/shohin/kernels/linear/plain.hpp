// F32, F16, BF16: how `count` numbers of a row become floats.
#pragma once

#include "kernels/half.hpp"

namespace shohin::SHOHIN_TIER {

struct F32 {
    static constexpr int kBytes = 4;
    static void read(const std::uint8_t *row, std::int64_t count, float *out) {
        std::memcpy(out, row, static_cast<std::size_t>(count) * sizeof(float));
    }
};

struct F16 {
    static constexpr int kBytes = 2;
    static void read(const std::uint8_t *row, std::int64_t count, float *out) {
        from_halves(reinterpret_cast<const std::uint16_t *>(row), out, count);
    }
};

struct BF16 {
    static constexpr int kBytes = 2;
    static void read(const std::uint8_t *row, std::int64_t count, float *out) {
        for (std::int64_t i = 0; i < count; ++i) out[i] = read_bfloat(row + 2 * i);
    }
};

}  // namespace shohin::SHOHIN_TIER
