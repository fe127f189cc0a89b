#include "kernel.hpp"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <stdexcept>

namespace shohin {

void fail(const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    throw std::invalid_argument(text);
}

namespace {

const char *kind_name(Kind kind) {
    switch (kind) {
        case Kind::f32: return "float32";
        case Kind::f16: return "float16";
        case Kind::i8: return "int8";
        case Kind::i32: return "int32";
        case Kind::weight: return "a packed weight";
        case Kind::none: break;
    }
    return "nothing";
}

long long wide(std::int64_t n) { return static_cast<long long>(n); }

const Operand &expect_weight(const Call &call, int index, const char *what, std::int64_t columns) {
    const Operand &operand = call[index];
    if (operand.kind != Kind::weight)
        fail("%s: %s is %s, a packed weight was expected", call.op, what, kind_name(operand.kind));
    if (operand.columns != columns)
        fail("%s: %s has %lld columns, %lld were expected", call.op, what, wide(operand.columns), wide(columns));
    return operand;
}

}  // namespace

void expect_operands(const Call &call, int least, int most, int ints, int floats) {
    if (call.count < least || call.count > most)
        fail("%s: %d operands were given, %d to %d are expected", call.op, call.count, least, most);
    if (call.int_count != ints || call.float_count != floats)
        fail("%s: %d and %d parameters were given, %d whole numbers and %d fractions are expected", call.op,
             call.int_count, call.float_count, ints, floats);
}

const Operand &expect_buffer(const Call &call, int index, const char *what, Kind kind, std::int64_t rows,
                             std::int64_t columns, bool written) {
    const Operand &operand = call[index];
    if (operand.kind != kind)
        fail("%s: %s is %s, %s was expected", call.op, what, kind_name(operand.kind), kind_name(kind));
    if (operand.rows != rows || operand.columns != columns)
        fail("%s: %s is [%lld, %lld], [%lld, %lld] was expected", call.op, what, wide(operand.rows),
             wide(operand.columns), wide(rows), wide(columns));
    if (written && !operand.writable) fail("%s: %s is read-only", call.op, what);
    return operand;
}

const Operand &expect_matrix(const Call &call, int index, const char *what, std::int64_t columns) {
    return expect_weight(call, index, what, columns);
}

const Operand &expect_vector(const Call &call, int index, const char *what, std::int64_t columns) {
    const Operand &operand = expect_weight(call, index, what, columns);
    if (operand.rows != 1 || operand.format->quantised || operand.format->bytes != 4)
        fail("%s: %s is a %s matrix of %lld rows, one row of F32 was expected", call.op, what, operand.format->name,
             wide(operand.rows));
    return operand;
}

float expect_eps(const Call &call, int index) {
    const double eps = call.floats[index];
    if (!(eps > 0) || !std::isfinite(eps)) fail("%s: epsilon is %g, a positive number was expected", call.op, eps);
    return static_cast<float>(eps);
}

}  // namespace shohin
