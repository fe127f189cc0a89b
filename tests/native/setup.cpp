#include "setup.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "devices/native/packing.hpp"
#include "weights.hpp"

namespace check {

namespace {

constexpr std::size_t kLine = 64;
constexpr std::uint8_t kPattern = 0x5A;

std::size_t count_of(const Shape &shape) {
    std::size_t count = 1;
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    return count;
}

std::size_t size_of(const std::string &kind) {
    if (kind == "float32" || kind == "int32") return 4;
    return kind == "float16" ? 2 : 1;
}

}  // namespace

void give_up(const std::string &why) {
    std::fprintf(stderr, "check_tiers: %s\n", why.c_str());
    std::exit(2);
}

Setup::Setup(std::uint64_t seed, std::int64_t live, std::int64_t wanted)
    : seed_(seed), live_(live), wanted_(wanted) {
    for (std::int64_t m = 0; m < live; ++m) {
        tokens.push_back(0);
        positions.push_back(static_cast<std::int32_t>(m));
        sequences.push_back(0);
    }
    for (std::int64_t i = 0; i < wanted; ++i) wanted_rows.push_back(static_cast<std::int32_t>(i % live));
}

std::uint8_t *Setup::add(const std::string &kind, const Shape &shape, std::size_t bytes, bool written) {
    Buffer buffer;
    buffer.kind = kind;
    buffer.room = std::make_unique<std::uint8_t[]>(bytes + kLine);
    const std::size_t past = reinterpret_cast<std::uintptr_t>(buffer.room.get()) % kLine;
    buffer.data = buffer.room.get() + (kLine - past) % kLine;
    buffer.bytes = bytes;
    buffer.columns = shape.back();
    buffer.written = written;
    std::memset(buffer.data, kPattern, bytes);
    OperandSource operand;
    operand.kind = kind;
    operand.shape = shape;
    operand.data = buffer.data;
    operand.bytes = bytes;
    operand.writable = written;
    source_.operands.push_back(operand);
    buffers_.push_back(std::move(buffer));
    return buffers_.back().data;
}

void Setup::floats(const Shape &shape, bool written) {
    const std::size_t count = count_of(shape);
    Random random = stream();
    auto *out = reinterpret_cast<float *>(add("float32", shape, 4 * count, written));
    for (std::size_t i = 0; i < count; ++i) out[i] = random.value();
}

void Setup::vector(std::int64_t columns) {
    Random random = stream();
    auto *out = reinterpret_cast<float *>(add("F32", {1, columns}, 4 * static_cast<std::size_t>(columns), false));
    for (std::int64_t i = 0; i < columns; ++i) out[i] = 1.0f + 0.25f * random.value();
}

void Setup::weight(const std::string &format, std::int64_t rows, std::int64_t columns) {
    Random random = stream();
    const std::vector<std::uint8_t> bytes = random_weight(format, rows, columns, random);
    std::memcpy(add(format, {rows, columns}, bytes.size(), false), bytes.data(), bytes.size());
}

void Setup::flat_weight(const std::string &format, std::int64_t rows, std::int64_t columns, std::uint8_t byte) {
    Random random = stream();
    const std::vector<std::uint8_t> bytes = flat_codes(format, rows, columns, byte, random);
    std::memcpy(add(format, {rows, columns}, bytes.size(), false), bytes.data(), bytes.size());
}

void Setup::output(const std::string &kind, const Shape &shape) {
    add(kind, shape, size_of(kind) * count_of(shape), true);
}

void Setup::cache(const std::string &kind, const Shape &shape) {
    const std::size_t count = count_of(shape);
    Random random = stream();
    std::uint8_t *data = add(kind, shape, size_of(kind) * count, true);
    for (std::size_t i = 0; i < count; ++i) {
        if (kind == "float32") {
            const float x = random.value();
            std::memcpy(data + 4 * i, &x, 4);
        } else if (kind == "float16") {
            // Sixteen times as large as weights, so that a softmax over them is not flat.
            std::uint16_t half = random_half(random);
            if ((half & 0x7C00u) != 0) half = static_cast<std::uint16_t>(half + 0x1000u);
            std::memcpy(data + 2 * i, &half, 2);
        } else {
            data[i] = static_cast<std::uint8_t>(random.below(255) - 127);
        }
    }
}

void Setup::scales(const Shape &shape) {
    const std::size_t count = count_of(shape);
    Random random = stream();
    std::uint8_t *data = add("float16", shape, 2 * count, true);
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint16_t half = random_half(random) & 0x7FFFu;
        std::memcpy(data + 2 * i, &half, 2);
    }
}

void Setup::words(const Shape &shape) {
    const std::size_t count = count_of(shape);
    Random random = stream();
    std::uint8_t *data = add("int32", shape, 4 * count, false);
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t word = random.next();
        std::memcpy(data + 4 * i, &word, 4);
    }
}

void Setup::nothing() { source_.operands.emplace_back(); }

void Setup::put(std::int64_t index, float value) {
    std::memcpy(buffers_.back().data + 4 * index, &value, 4);
}

void Setup::place(std::int64_t count, std::int64_t pages) {
    Random random(seed_ - 1);
    page_rows_ = count;
    page_columns_ = pages;
    pages_.clear();
    for (std::int64_t i = 0; i < count * pages; ++i) pages_.push_back(static_cast<std::int32_t>(i));
    for (std::int64_t i = count * pages - 1; i > 0; --i)
        std::swap(pages_[static_cast<std::size_t>(i)], pages_[static_cast<std::size_t>(random.below(i + 1))]);
}

void Setup::call(const std::string &op, const std::vector<std::int64_t> &ints, const std::vector<double> &floats) {
    source_.op = op;
    source_.ints = ints;
    source_.floats = floats;
}

shohin::Program Setup::program(const shohin::Tier &tier, shohin::Pool &pool) {
    shohin::CallSource source = source_;
    for (OperandSource &operand : source.operands) {
        const shohin::Format *format = tier.format(operand.kind.c_str());
        if (format == nullptr || format->tiling == nullptr) continue;
        const std::int64_t rows = operand.shape[0], row_bytes = static_cast<std::int64_t>(operand.bytes) / rows;
        packed_.emplace_back(operand.bytes);
        if (shohin::pack(*format, {operand.data, rows, row_bytes}, packed_.back().data(), operand.bytes, pool) !=
            shohin::Outcome::finished)
            give_up("a weight was not packed");
        operand.data = packed_.back().data();
    }
    return shohin::Program({source}, capacity(), wanted_capacity(), pool.threads(), tier);
}

void Setup::play(const shohin::Program &program, shohin::Pool &pool) const {
    shohin::Step step;
    step.rows = live_;
    step.tokens = tokens.data();
    step.positions = positions.data();
    step.sequences = sequences.data();
    step.pages = pages_.data();
    step.page_rows = page_rows_;
    step.page_columns = page_columns_;
    step.wanted = wanted_rows.data();
    step.wanted_rows = wanted_;
    program.check(0, 1, step);
    shohin::Pool::Session session(pool, nullptr, nullptr);
    if (program.run(0, 1, step, session) != shohin::Outcome::finished) give_up("a play did not finish");
}

Bits Setup::bits() const {
    Bits bits;
    for (const Buffer &buffer : buffers_)
        if (buffer.written) append(buffer, buffer.bytes / size_of(buffer.kind), bits);
    return bits;
}

Bits Setup::first_row() const {
    Bits bits;
    const auto last = std::find_if(buffers_.rbegin(), buffers_.rend(), [](const Buffer &b) { return b.written; });
    append(*last, static_cast<std::size_t>(last->columns), bits);
    return bits;
}

void Setup::append(const Buffer &buffer, std::size_t values, Bits &bits) {
    const std::size_t size = size_of(buffer.kind);
    for (std::size_t i = 0; i < values; ++i) {
        std::uint32_t word = 0;
        std::memcpy(&word, buffer.data + i * size, size);
        if (buffer.kind == "float32" && (word & 0x7FFFFFFFu) > 0x7F800000u) word = 0x7FC00000u;
        if (buffer.kind == "float16" && (word & 0x7FFFu) > 0x7C00u) word = 0x7E00u;
        bits.push_back(word);
    }
}

}  // namespace check
