// Rows of the embedding table, decoded. Operands and parameters: op.py.
#include "kernels/kernel_entry.hpp"
#include "kernels/lanes.hpp"

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

void run(const Call &call, const Step &step, std::int64_t begin, std::int64_t end, const Scratch &) {
    const Operand &table = call[0];
    for (std::int64_t m = begin; m < end; ++m)
        table.format->decode(table.data + step.tokens[m] * table.row_bytes(), table.columns,
                             call[1].as<float>() + m * table.columns);
}

constexpr Stage kStages[] = {{items, run}};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(embed, prepare, check, kStages)
