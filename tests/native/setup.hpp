// One program and everything it reads and writes, made from a seed: the same bits on every machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "devices/native/program.hpp"
#include "random.hpp"

namespace check {

using shohin::OperandSource;
using Shape = std::vector<std::int64_t>;

// Bits of what a program wrote. Not-a-numbers are all written alike: their sign and payload differ between processors.
using Bits = std::vector<std::uint32_t>;

class Setup {
public:
    // Rows past `live` and outputs past `wanted` are capacity that a play must leave alone.
    Setup(std::uint64_t seed, std::int64_t live, std::int64_t wanted);

    // Operands in the op's order. Each draws from a stream of its own, row by row, so that the first rows are the same
    // in every batch. What is only written starts as a pattern, so that a stray write shows.
    void floats(const Shape &shape, bool written = false);
    void vector(std::int64_t columns);  // a norm weight
    void weight(const std::string &format, std::int64_t rows, std::int64_t columns);
    // The same with every byte that is not a scale equal to `byte`: the largest codes, for sums that might overflow.
    void flat_weight(const std::string &format, std::int64_t rows, std::int64_t columns, std::uint8_t byte);
    void output(const std::string &kind, const Shape &shape);
    void cache(const std::string &kind, const Shape &shape);  // keys or values of earlier tokens
    void scales(const Shape &shape);                          // their scales
    void words(const Shape &shape);
    void nothing();

    // The last operand's float number `index` becomes `value`.
    void put(std::int64_t index, float value);

    std::int64_t capacity() const { return live_ + 1; }
    std::int64_t wanted_capacity() const { return wanted_ + 1; }

    // Sequence s has `pages` pages of its own, in no order; row r stands at `positions`[r] of `sequences`[r].
    void place(std::int64_t sequences, std::int64_t pages);
    std::vector<std::int32_t> tokens, positions, sequences, wanted_rows;

    void call(const std::string &op, const std::vector<std::int64_t> &ints, const std::vector<double> &floats);
    // With weights packed as the tier wants them.
    shohin::Program program(const shohin::Tier &tier, shohin::Pool &pool);
    void play(const shohin::Program &program, shohin::Pool &pool) const;
    Bits bits() const;       // of everything written
    Bits first_row() const;  // of the last buffer written, which is the output

private:
    struct Buffer {
        std::string kind;
        std::unique_ptr<std::uint8_t[]> room;
        std::uint8_t *data = nullptr;
        std::size_t bytes = 0;
        std::int64_t columns = 0;
        bool written = false;
    };

    Random stream() const { return Random(seed_ + source_.operands.size()); }
    std::uint8_t *add(const std::string &kind, const Shape &shape, std::size_t bytes, bool written);
    static void append(const Buffer &buffer, std::size_t values, Bits &bits);

    std::uint64_t seed_;
    std::int64_t live_, wanted_;
    std::vector<Buffer> buffers_;
    std::vector<std::vector<std::uint8_t>> packed_;  // weights in the order of a tier
    shohin::CallSource source_;
    std::vector<std::int32_t> pages_;
    std::int64_t page_rows_ = 0, page_columns_ = 0;
};

// Ends the program with status 2: a check that can't be made is not a check that passed.
[[noreturn]] void give_up(const std::string &why);

}  // namespace check
