#include "program.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace shohin {

namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kMost = std::int64_t{1} << 46;  // no product of sizes below comes near an overflow

struct Dtype {
    const char *name;
    Kind kind;
    std::int64_t bytes;
};

constexpr Dtype kDtypes[] = {
    {"float32", Kind::f32, 4}, {"float16", Kind::f16, 2}, {"int8", Kind::i8, 1}, {"int32", Kind::i32, 4}};

std::int64_t round_up(std::int64_t n) { return (n + kLine - 1) / kLine * kLine; }

std::int64_t multiply(const char *op, std::int64_t a, std::int64_t b) {
    if (a < 0 || b < 0 || (b != 0 && a > kMost / b))
        fail("%s: a size of %lld times %lld is too large", op, static_cast<long long>(a), static_cast<long long>(b));
    return a * b;
}

void read_shape(const char *op, const OperandSource &source, Operand &operand) {
    if (source.shape.empty() || source.shape.size() > 4)
        fail("%s: an operand has %d dimensions, 1 to 4 are expected", op, static_cast<int>(source.shape.size()));
    operand.dims = static_cast<int>(source.shape.size());
    std::copy(source.shape.begin(), source.shape.end(), operand.shape);
    operand.rows = 1;
    for (int i = 0; i < operand.dims; ++i) {
        if (operand.shape[i] < 1) fail("%s: an operand has a dimension of %lld", op, static_cast<long long>(operand.shape[i]));
        if (i + 1 < operand.dims) operand.rows = multiply(op, operand.rows, operand.shape[i]);
    }
    operand.columns = operand.shape[operand.dims - 1];
}

void expect_bytes(const char *op, const OperandSource &source, std::int64_t needed, std::int64_t alignment) {
    if (source.bytes != static_cast<std::uint64_t>(needed))
        fail("%s: an operand of %s holds %llu bytes, its shape needs %lld", op, source.kind.c_str(),
             static_cast<unsigned long long>(source.bytes), static_cast<long long>(needed));
    if (reinterpret_cast<std::uintptr_t>(source.data) % static_cast<std::uintptr_t>(alignment) != 0)
        fail("%s: an operand of %s is not aligned to %lld bytes", op, source.kind.c_str(),
             static_cast<long long>(alignment));
}

Operand bind_operand(const char *op, const OperandSource &source, const Tier &tier) {
    Operand operand;
    if (source.kind.empty()) return operand;
    read_shape(op, source, operand);
    operand.data = source.data;
    operand.bytes = source.bytes;
    operand.writable = source.writable;
    for (const Dtype &dtype : kDtypes) {
        if (source.kind != dtype.name) continue;
        operand.kind = dtype.kind;
        const std::int64_t values = multiply(op, operand.rows, operand.columns);
        expect_bytes(op, source, multiply(op, values, dtype.bytes), dtype.bytes);
        return operand;
    }
    operand.format = tier.format(source.kind.c_str());
    if (operand.format == nullptr) fail("%s: no kernel reads the dtype or format %s", op, source.kind.c_str());
    operand.kind = Kind::weight;
    if (operand.columns % operand.format->block != 0)
        fail("%s: %lld columns are not whole blocks of the %d weights of %s", op,
             static_cast<long long>(operand.columns), operand.format->block, operand.format->name);
    multiply(op, operand.columns, operand.format->bytes);
    expect_bytes(op, source, multiply(op, operand.rows, operand.row_bytes()),
                 operand.format->quantised ? 1 : operand.format->bytes);
    return operand;
}

}  // namespace

Program::Program(std::vector<CallSource> calls, std::int64_t rows, std::int64_t wanted, int threads, const Tier &tier)
    : sources_(std::move(calls)), calls_(sources_.size()), rows_(rows), wanted_(wanted), threads_(threads) {
    constexpr std::int64_t kMostRows = std::int64_t{1} << 24;
    if (rows < 1 || rows > kMostRows || wanted < 0 || wanted > kMostRows || threads < 1)
        fail("a program of %lld rows and %lld output rows on %d threads can't be made", static_cast<long long>(rows),
             static_cast<long long>(wanted), threads);
    std::int64_t shared = 0;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        bind(calls_[i], sources_[i], tier);
        const Needs needs = calls_[i].kernel->prepare(calls_[i].call);
        shared = std::max(shared, round_up(needs.shared));
        own_bytes_ = std::max(own_bytes_, round_up(needs.own));
    }
    const std::int64_t total = shared + multiply("scratch", own_bytes_, threads) + kLine;
    scratch_.resize(static_cast<std::size_t>(total));
    const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(scratch_.data());
    shared_ = scratch_.data() + (kLine - static_cast<std::int64_t>(start % kLine)) % kLine;
    own_ = shared_ + shared;
}

void Program::bind(Bound &bound, const CallSource &source, const Tier &tier) const {
    bound.kernel = tier.kernel(source.op.c_str());
    if (bound.kernel == nullptr) throw std::out_of_range("op '" + source.op + "' has no kernel");
    for (const OperandSource &operand : source.operands)
        bound.operands.push_back(bind_operand(source.op.c_str(), operand, tier));
    Call &call = bound.call;
    call.op = bound.kernel->name;
    call.operands = bound.operands.data();
    call.count = static_cast<int>(bound.operands.size());
    call.ints = source.ints.data();
    call.int_count = static_cast<int>(source.ints.size());
    call.floats = source.floats.data();
    call.float_count = static_cast<int>(source.floats.size());
    call.rows = rows_;
    call.wanted = wanted_;
}

namespace {

void expect_below(const char *what, const std::int32_t *values, std::int64_t count, std::int64_t limit) {
    for (std::int64_t i = 0; i < count; ++i)
        if (values[i] < 0 || values[i] >= limit)
            fail("step: %s %d is outside 0 to %lld", what, values[i], static_cast<long long>(limit - 1));
}

}  // namespace

void Program::check(std::int64_t first, std::int64_t last, const Step &step) const {
    if (first < 0 || first > last || last > calls())
        fail("calls %lld to %lld asked of a program of %lld", static_cast<long long>(first),
             static_cast<long long>(last), static_cast<long long>(calls()));
    if (step.rows < 1 || step.rows > rows_ || step.wanted_rows > wanted_)
        fail("a step of %lld rows and %lld output rows, the program holds %lld and %lld",
             static_cast<long long>(step.rows), static_cast<long long>(step.wanted_rows),
             static_cast<long long>(rows_), static_cast<long long>(wanted_));
    constexpr std::int64_t kAny = std::numeric_limits<std::int32_t>::max();
    expect_below("token", step.tokens, step.rows, kAny);
    expect_below("position", step.positions, step.rows, kAny);
    expect_below("sequence", step.sequences, step.rows, std::max<std::int64_t>(1, step.page_rows));
    expect_below("wanted row", step.wanted, step.wanted_rows, step.rows);
    for (std::int64_t i = first; i < last; ++i) {
        const Bound &bound = calls_[static_cast<std::size_t>(i)];
        if (bound.kernel->check != nullptr) bound.kernel->check(bound.call, step);
    }
}

namespace {

struct Job {
    const Stage *stage;
    const Call *call;
    const Step *step;
    std::uint8_t *shared;
    std::uint8_t *own;
    std::int64_t own_bytes;

    static void run(void *context, int worker, std::int64_t begin, std::int64_t end) {
        const Job &job = *static_cast<const Job *>(context);
        job.stage->run(*job.call, *job.step, begin, end, {job.shared, job.own + worker * job.own_bytes});
    }
};

}  // namespace

Outcome Program::run(std::int64_t first, std::int64_t last, const Step &step, Pool::Session &session) const {
    for (std::int64_t i = first; i < last; ++i) {
        const Bound &bound = calls_[static_cast<std::size_t>(i)];
        for (int s = 0; s < bound.kernel->stage_count; ++s) {
            const Stage &stage = bound.kernel->stages[s];
            Job job{&stage, &bound.call, &step, shared_, own_, own_bytes_};
            const Outcome outcome = session.run(stage.items(bound.call, step), {Job::run, &job});
            if (outcome != Outcome::finished) return outcome;
        }
    }
    return Outcome::finished;
}

}  // namespace shohin
