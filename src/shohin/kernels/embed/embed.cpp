// Rows of the embedding table, decoded. Operands and parameters: op.py.
#include "kernels/kernel_entry.hpp"
#include "kernels/linear/tiles.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

Needs prepare(const Call &call) {
    expect_operands(call, 2, 2, 0, 0);
    expect_matrix(call, 0, "table", call[0].columns);
    expect_buffer(call, 1, "out", Kind::f32, call.rows, call[0].columns, true);
    return {};
}

void check(const Call &call, const Step &step) {
    for (std::int64_t m = 0; m < step.rows; ++m)
        if (step.tokens[m] >= call[0].rows)
            fail("embed: token %d has no row in a table of %lld", step.tokens[m], static_cast<long long>(call[0].rows));
}

std::int64_t items(const Call &, const Step &step) { return step.rows; }

// A row of a tile, some blocks at a time.
void decode_tiled(const Operand &table, std::int64_t row, float *out) {
    constexpr int kBlocks = 8;
    const Format &format = *table.format;
    const std::uint8_t *tile = table.data + row / kTile * kTile * table.row_bytes();
    std::uint8_t bytes[kBlocks * kMaxBlockBytes];
    const std::int64_t blocks = table.columns / format.block;
    for (std::int64_t b = 0; b < blocks; b += kBlocks) {
        const int count = static_cast<int>(least(kBlocks, blocks - b));
        restore_row(format, tile, static_cast<int>(row % kTile), b, count, bytes);
        format.decode(bytes, std::int64_t{count} * format.block, out + b * format.block);
    }
}

void run(const Call &call, const Step &step, std::int64_t begin, std::int64_t end, const Scratch &) {
    const Operand &table = call[0];
    for (std::int64_t m = begin; m < end; ++m) {
        const std::int64_t row = step.tokens[m];
        float *out = call[1].as<float>() + m * table.columns;
        if (row < table.tiled_rows())
            decode_tiled(table, row, out);
        else
            table.format->decode(table.data + row * table.row_bytes(), table.columns, out);
    }
}

constexpr Stage kStages[] = {{items, run}};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(embed, prepare, check, kStages)
