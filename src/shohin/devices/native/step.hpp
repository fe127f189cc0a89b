// The step table: what varies from one play of a program to the next. See step.py.
#pragma once

#include <cstdint>

namespace shohin {

struct Step {
    std::int64_t rows = 0;
    const std::int32_t *tokens = nullptr;     // [rows]
    const std::int32_t *positions = nullptr;  // [rows]
    const std::int32_t *sequences = nullptr;  // [rows], indexes pages
    const std::int32_t *pages = nullptr;      // [page_rows][page_columns]
    std::int64_t page_rows = 0;
    std::int64_t page_columns = 0;
    const std::int32_t *wanted = nullptr;  // [wanted_rows], rows whose outputs are computed
    std::int64_t wanted_rows = 0;
};

}  // namespace shohin
