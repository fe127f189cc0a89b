// A matrix in the file's layout into the tiles of a tier.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format.hpp"
#include "pool.hpp"

namespace shohin {

struct Matrix {
    const std::uint8_t *data;
    std::int64_t rows, row_bytes;
};

// Raises std::invalid_argument unless `matrix` is whole blocks of a format with tiles and `bytes` is its size. The pool
// shares the tiles out; signals are left to the caller, since a matrix takes milliseconds.
Outcome pack(const Format &format, const Matrix &matrix, std::uint8_t *packed, std::size_t bytes, Pool &pool);

}  // namespace shohin
