// What the kernels of one tier know about a weight format. The table is in kernels/linear/formats.cpp.
#pragma once

#include <cstdint>

namespace shohin {

// How the weights of a run are dealt to groups of four, so that a step of the dot loop takes one word from each row.
// straight: 4s, 4s + 1, 4s + 2, 4s + 3. by4: within 16 weights, k, 4 + k, 8 + k, 12 + k. by8: within 32 weights,
// k, 8 + k, 16 + k, 24 + k. The last two are what shifting a word of two-bit or one-bit codes brings out.
enum class Order { straight, by4, by8 };

constexpr int kLanes = 8;          // weight rows that are worked on side by side
constexpr int kPanel = 256;        // weights of a row that are unpacked at a time; a multiple of every block
constexpr int kPanelGroups = 16;   // scales in a panel, at most
constexpr int kMaxBlockBytes = 256;
constexpr int kTile = 32;          // weight rows of a tile

// Unpacked codes of up to kPanel weights of kLanes rows. A weight is scale * (code - offset) + minimum.
struct Panel {
    alignas(64) std::uint8_t codes[kPanel * kLanes];    // [step][row][4]: four codes in the format's order
    alignas(64) float scales[kPanelGroups * kLanes];    // [group][row]
    alignas(64) float minima[kPanelGroups * kLanes];    // [group][row], where the format has them
    alignas(64) float floats[kPanel * kLanes];          // [weight][row]: exact mode and float formats
    alignas(64) std::uint8_t rows[kLanes * kPanel];     // [row][weight]: codes before they are dealt to lanes
    alignas(64) float row_floats[kLanes * kPanel];      // [row][weight]: the same for float formats
};

// Rows of int8 activations as the kernels of tiles read them; row m lies at m strides.
struct Activations {
    std::int64_t k;
    const std::int8_t *codes;  // in the order of the format
    std::int64_t code_stride;
    const float *scales;  // one for every group of weights
    const std::int32_t *sums;  // of the codes, likewise
    std::int64_t group_stride;
    const std::uint8_t *tables;  // k / 8 * kTableBytes a row; null where the kernel does not want them
};

constexpr int kTableBytes = 64;   // lookup tables of eight activations
constexpr int kTableRows = 4;     // rows of activations for which tables pay

// Formats of an f16 scale and codes may be packed in tiles of kTile rows: for every group the scales of the rows side by
// side, then, `chunk` bytes at a time, the codes of all rows. A tile is as large as its rows in the file; rows that fill
// no tile follow as they are.
struct Tiling {
    int chunk;
    bool tables;                      // whether the kernel wants lookup tables for up to kTableRows rows
    // One tile of rows that lie row_bytes apart.
    void (*pack)(const std::uint8_t *rows, std::int64_t row_bytes, std::uint8_t *tile);
    // acc[m][row] += int8 product, the groups in order of K; panel: room for a byte a weight of one group.
    void (*multiply)(const std::uint8_t *tile, const Activations &in, std::int64_t rows, std::uint8_t *panel, float *acc);
};

struct Format {
    const char *name;
    int block;        // weights in a block
    int bytes;        // bytes in a block
    int group;        // weights under one scale; divides block
    int offset;       // subtracted from a code; 0 where codes are signed
    int widen;        // steps whose products of code and activation fit 16-bit sums; 0: codes are signed bytes
    bool quantised;   // false: plain numbers, no codes
    bool minimum;     // whether groups have a minimum
    Order order;

    // Unpack `blocks` blocks (at most kPanel weights) of `rows` rows that lie `stride` bytes apart into a panel: codes,
    // scales and minima, or floats for a plain format (zeros up to a multiple of four). Lanes past `rows` repeat the last.
    void (*panel)(const std::uint8_t *first, std::int64_t stride, int rows, int blocks, Panel &panel);
    // Decode `count` weights (whole blocks) of one row.
    void (*decode)(const std::uint8_t *row, std::int64_t count, float *out);
    const Tiling *tiling;  // null where rows lie as in the file

    // Inputs that share one activation scale in int8 mode.
    int activation_group() const { return block < 128 ? block : 128; }
};

}  // namespace shohin
