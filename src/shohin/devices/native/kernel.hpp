// What an op's native kernel is: a check at recording, a check of each step, and a short list of stages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format.hpp"
#include "step.hpp"

namespace shohin {

enum class Kind { none, f32, f16, i8, i32, weight };

// A buffer or a packed weight as a kernel sees it. Program has checked that `bytes` is what shape and kind need and that
// the address fits the kind's alignment.
struct Operand {
    Kind kind = Kind::none;
    const Format *format = nullptr;  // weights only
    std::uint8_t *data = nullptr;
    std::size_t bytes = 0;
    bool writable = false;
    int dims = 0;
    std::int64_t shape[4] = {};
    std::int64_t rows = 0;     // product of all dimensions but the last
    std::int64_t columns = 0;  // the last dimension

    explicit operator bool() const { return kind != Kind::none; }
    template <class T>
    T *as() const {
        return reinterpret_cast<T *>(data);
    }
    std::int64_t row_bytes() const { return columns / format->block * format->bytes; }
    std::int64_t tiled_rows() const { return format->tiling == nullptr ? 0 : rows / kTile * kTile; }
};

// One call of a program: an op bound to its operands.
struct Call {
    const char *op = "";
    const Operand *operands = nullptr;
    int count = 0;
    const std::int64_t *ints = nullptr;
    int int_count = 0;
    const double *floats = nullptr;
    int float_count = 0;
    std::int64_t rows = 0;    // capacity of the program
    std::int64_t wanted = 0;  // capacity of output rows

    const Operand &operator[](int i) const { return operands[i]; }
};

// Memory that belongs to the program: `shared` by all workers for the length of a call, `own` per worker.
struct Scratch {
    std::uint8_t *shared = nullptr;
    std::uint8_t *own = nullptr;
};

struct Needs {
    std::int64_t shared = 0;
    std::int64_t own = 0;
};

// Parallel over items: item i writes outputs that no other item touches, so results don't depend on who runs it.
struct Stage {
    std::int64_t (*items)(const Call &, const Step &);
    void (*run)(const Call &, const Step &, std::int64_t begin, std::int64_t end, const Scratch &);
};

struct Kernel {
    const char *name;
    Needs (*prepare)(const Call &);               // refuses bad operands; scratch for the full row capacity
    void (*check)(const Call &, const Step &);    // refuses a step that would index outside an operand; may be null
    const Stage *stages;
    int stage_count;
};

// Raise std::invalid_argument with a printf-style message. Defined in kernel.cpp, once for all tiers: a kernel file,
// compiled for a newer processor, must not instantiate library code that the linker could pick for everybody.
[[noreturn]] void fail(const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 1, 2)))
#endif
    ;

// Checks for prepare; each names the op and the operand. `what` is the operand's name in op.py.
void expect_operands(const Call &, int least, int most, int ints, int floats);
const Operand &expect_buffer(const Call &, int index, const char *what, Kind kind, std::int64_t rows,
                             std::int64_t columns, bool written);
const Operand &expect_matrix(const Call &, int index, const char *what, std::int64_t columns);
const Operand &expect_vector(const Call &, int index, const char *what, std::int64_t columns);
float expect_eps(const Call &, int index);

}  // namespace shohin
