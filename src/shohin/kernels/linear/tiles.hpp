// Tiles: 32 rows of a format of f16 scales and codes, interleaved so that one vector holds the same place of many rows.
// The layout is described at Tiling in format.hpp. Here: packing, and the way back for whoever wants plain rows.
#pragma once

#include "kernels/lanes.hpp"

namespace shohin::SHOHIN_TIER {

constexpr int kScaleBytes = 2;

// Bytes of one group of a tile: the scales of its rows, then their codes.
constexpr std::int64_t group_bytes(int block_bytes) { return std::int64_t{kTile} * block_bytes; }

template <int Chunk, int BlockBytes>
void pack_tile(const std::uint8_t *SHOHIN_RESTRICT rows, std::int64_t row_bytes, std::uint8_t *SHOHIN_RESTRICT tile) {
    constexpr int kCodes = BlockBytes - kScaleBytes;
    static_assert(kCodes % Chunk == 0);
    for (std::int64_t at = 0; at < row_bytes; at += BlockBytes, tile += group_bytes(BlockBytes)) {
        std::uint8_t *codes = tile + kTile * kScaleBytes;
        for (int r = 0; r < kTile; ++r) {
            const std::uint8_t *block = rows + r * row_bytes + at;
            std::memcpy(tile + r * kScaleBytes, block, kScaleBytes);
            for (int c = 0; c < kCodes; c += Chunk)
                std::memcpy(codes + c * kTile + r * Chunk, block + kScaleBytes + c, Chunk);
        }
    }
}

// `blocks` blocks of row r of a tile as they were in the file, from block `first` on.
inline void restore_row(const Format &format, const std::uint8_t *tile, int r, std::int64_t first, int blocks,
                        std::uint8_t *out) {
    const int chunk = format.tiling->chunk;
    const std::uint8_t *group = tile + first * group_bytes(format.bytes);
    for (int b = 0; b < blocks; ++b, group += group_bytes(format.bytes), out += format.bytes) {
        std::memcpy(out, group + r * kScaleBytes, kScaleBytes);
        const std::uint8_t *codes = group + kTile * kScaleBytes + r * chunk;
        for (int c = 0; c < format.bytes - kScaleBytes; ++c)
            out[kScaleBytes + c] = codes[c / chunk * chunk * kTile + c % chunk];
    }
}

}  // namespace shohin::SHOHIN_TIER
