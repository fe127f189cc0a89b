#include "packing.hpp"

#include <cstring>

#include "kernel.hpp"

namespace shohin {

namespace {

struct Job {
    const Format *format;
    const Matrix *matrix;
    std::uint8_t *packed;

    static void run(void *context, int, std::int64_t begin, std::int64_t end) {
        const Job &job = *static_cast<const Job *>(context);
        for (std::int64_t tile = begin; tile < end; ++tile) {
            const std::int64_t at = tile * kTile * job.matrix->row_bytes;
            job.format->tiling->pack(job.matrix->data + at, job.matrix->row_bytes, job.packed + at);
        }
    }
};

}  // namespace

Outcome pack(const Format &format, const Matrix &matrix, std::uint8_t *packed, std::size_t bytes, Pool &pool) {
    const std::int64_t size = matrix.rows * matrix.row_bytes;
    if (format.tiling == nullptr || matrix.row_bytes % format.bytes != 0 || bytes != static_cast<std::uint64_t>(size))
        fail("pack: %lld rows of %lld bytes of %s can't be packed into %llu bytes", static_cast<long long>(matrix.rows),
             static_cast<long long>(matrix.row_bytes), format.name, static_cast<unsigned long long>(bytes));
    const std::int64_t tiles = matrix.rows / kTile, tiled = tiles * kTile * matrix.row_bytes;
    if (size > tiled) std::memcpy(packed + tiled, matrix.data + tiled, static_cast<std::size_t>(size - tiled));
    Pool::Session session(pool, nullptr, nullptr);
    Job job{&format, &matrix, packed};
    return session.run(tiles, {Job::run, &job});
}

}  // namespace shohin
