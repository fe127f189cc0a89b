// QK-norm, RoPE, store, causal attention over the paged cache. Operands and parameters: op.py.
#include <limits>

#include "kernels/attend/softmax.hpp"
#include "kernels/half.hpp"
#include "kernels/kernel_entry.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

enum { kQkv, kQueryNorm, kKeyNorm, kRope, kKeys, kValues, kKeyScales, kValueScales, kOut };

struct Shape {
    std::int64_t query, kv, dim;
    bool adjacent;
    float eps;
    std::int64_t page;  // keys in a page

    explicit Shape(const Call &call)
        : query(call.ints[0]), kv(call.ints[1]), dim(call.ints[2]), adjacent(call.ints[3] == 1),
          eps(static_cast<float>(call.floats[0])), page(call[kKeys].shape[2]) {}
    std::int64_t heads() const { return query + 2 * kv; }
    std::int64_t width() const { return heads() * dim; }
};

void expect_cache(const Call &call, int index, int scales, const char *what) {
    const Operand &cache = call[index];
    const std::int64_t kv = call.ints[1], dim = call.ints[2];
    if (cache.dims != 4 || cache.shape[1] != kv || cache.shape[3] != dim || cache.rows != call[kKeys].rows ||
        cache.kind != call[kKeys].kind || cache.shape[2] != call[kKeys].shape[2])
        fail("attend: %s is not [pages, %lld, page, %lld], or not like the keys", what, static_cast<long long>(kv),
             static_cast<long long>(dim));
    const Kind kind = cache.kind;
    if (kind != Kind::f32 && kind != Kind::f16 && kind != Kind::i8)
        fail("attend: %s are neither float32, float16 nor int8", what);
    if (!cache.writable) fail("attend: %s are read-only", what);
    if ((kind == Kind::i8) != static_cast<bool>(call[scales]))
        fail("attend: %s in int8 need scales, and only they have them", what);
    if (kind == Kind::i8)
        expect_buffer(call, scales, "scales", Kind::f16, cache.shape[0] * kv, cache.shape[2], true);
}

Needs prepare(const Call &call) {
    expect_operands(call, 9, 9, 4, 1);
    expect_eps(call, 0);
    const std::int64_t query = call.ints[0], kv = call.ints[1], dim = call.ints[2];
    if (query < 1 || kv < 1 || query > (1 << 20) || query % kv != 0 || dim < 2 || dim > kMostHeadDim || dim % 2 != 0)
        fail("attend: %lld query heads, %lld KV heads of %lld are not supported", static_cast<long long>(query),
             static_cast<long long>(kv), static_cast<long long>(dim));
    if (call.ints[3] != 0 && call.ints[3] != 1) fail("attend: pairing %lld is unknown", static_cast<long long>(call.ints[3]));
    expect_buffer(call, kQkv, "qkv", Kind::f32, call.rows, (query + 2 * kv) * dim, true);
    if (call[kQueryNorm]) expect_vector(call, kQueryNorm, "q norm", dim);
    if (call[kKeyNorm]) expect_vector(call, kKeyNorm, "k norm", dim);
    expect_buffer(call, kRope, "rope", Kind::f32, call[kRope].rows, dim, false);
    expect_cache(call, kKeys, kKeyScales, "keys");
    expect_cache(call, kValues, kValueScales, "values");
    expect_buffer(call, kOut, "out", Kind::f32, call.rows, query * dim, true);
    return {0, static_cast<std::int64_t>(sizeof(Attention))};
}

void check(const Call &call, const Step &step) {
    const Operand &keys = call[kKeys];
    const std::int64_t page = keys.shape[2];
    for (std::int64_t m = 0; m < step.rows; ++m) {
        const std::int64_t position = step.positions[m], sequence = step.sequences[m];
        if (position >= call[kRope].rows || position / page >= step.page_columns || sequence >= step.page_rows)
            fail("attend: position %lld of sequence %lld is outside the %lld angles or the %lld pages of %lld",
                 static_cast<long long>(position), static_cast<long long>(sequence),
                 static_cast<long long>(call[kRope].rows), static_cast<long long>(step.page_columns),
                 static_cast<long long>(page));
        const std::int32_t *pages = step.pages + sequence * step.page_columns;
        for (std::int64_t i = 0; i <= position / page; ++i)
            if (pages[i] < 0 || pages[i] >= keys.shape[0])
                fail("attend: page %d is outside the cache of %lld", pages[i], static_cast<long long>(keys.shape[0]));
    }
}

// Row of the cache, [pages][kv][page], that holds key t of a sequence for one head.
std::int64_t cache_row(const Shape &s, const std::int32_t *pages, std::int64_t t, std::int64_t head) {
    return (pages[t / s.page] * s.kv + head) * s.page + t % s.page;
}

void normalise(float *x, const float *weight, const Shape &s) {
    const float factor = 1.0f / std::sqrt(dot(x, x, s.dim) / static_cast<float>(s.dim) + s.eps);
    for (std::int64_t d = 0; d < s.dim; ++d) x[d] = (x[d] * factor) * weight[d];
}

void rotate(float *x, const float *angles, const Shape &s) {
    const std::int64_t half = s.dim / 2, step = s.adjacent ? 2 : 1, apart = s.adjacent ? 1 : half;
    for (std::int64_t i = 0; i < half; ++i) {
        const float cosine = angles[i], sine = angles[half + i];
        float &low = x[i * step], &high = x[i * step + apart];
        const float a = low * cosine - high * sine, b = low * sine + high * cosine;
        low = a;
        high = b;
    }
}

// Round once to the cache's type.
void store_row(const Operand &cache, const Operand &scales, std::int64_t row, const float *x, std::int64_t dim) {
    if (cache.kind == Kind::f32) {
        std::memcpy(cache.as<float>() + row * dim, x, static_cast<std::size_t>(dim) * sizeof(float));
        return;
    }
    if (cache.kind == Kind::f16) {
        for (std::int64_t d = 0; d < dim; ++d) cache.as<std::uint16_t>()[row * dim + d] = to_half(x[d]);
        return;
    }
    std::uint32_t top = 0;
    for (std::int64_t d = 0; d < dim; ++d) {
        const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x[d]) & 0x7FFFFFFFu;
        top = magnitude > top ? magnitude : top;
    }
    const bool finite = top < 0x7F800000u;
    const std::uint16_t half =
        to_half(finite ? std::bit_cast<float>(top) / 127.0f : std::numeric_limits<float>::quiet_NaN());
    scales.as<std::uint16_t>()[row] = half;
    const float scale = from_half(half);
    const bool usable = scale > 0.0f && scale <= 65504.0f;
    for (std::int64_t d = 0; d < dim; ++d) {
        float code = usable ? x[d] / scale : 0.0f;
        code = code > 127.0f ? 127.0f : code;
        code = code < -127.0f ? -127.0f : code;
        cache.as<std::int8_t>()[row * dim + d] = static_cast<std::int8_t>(static_cast<std::int32_t>(nearest(code)));
    }
}

// Row of the cache as floats, padded with zeros to a multiple of eight.
const float *load_row(const Operand &cache, const Operand &scales, std::int64_t row, std::int64_t dim, float *room) {
    if (cache.kind == Kind::f32 && dim % 8 == 0) return cache.as<float>() + row * dim;
    if (cache.kind == Kind::f32) {
        std::memcpy(room, cache.as<float>() + row * dim, static_cast<std::size_t>(dim) * sizeof(float));
    } else if (cache.kind == Kind::f16) {
        from_halves(cache.as<std::uint16_t>() + row * dim, room, dim);
    } else {
        const float scale = from_half(scales.as<std::uint16_t>()[row]);
        const std::int8_t *codes = cache.as<std::int8_t>() + row * dim;
        for (std::int64_t d = 0; d < dim; ++d) room[d] = static_cast<float>(codes[d]) * scale;
    }
    for (std::int64_t d = dim; d < round_up(dim, 8); ++d) room[d] = 0.0f;
    return room;
}

// Stage 1: every head of every row. Queries are rotated where they are; keys and values go to the cache.
std::int64_t head_items(const Call &call, const Step &step) { return step.rows * Shape(call).heads(); }

void run_heads(const Call &call, const Step &step, std::int64_t begin, std::int64_t end, const Scratch &) {
    const Shape s(call);
    for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t m = item / s.heads(), head = item % s.heads();
        const std::int64_t position = step.positions[m];
        float *x = call[kQkv].as<float>() + m * s.width() + head * s.dim;
        if (head < s.query + s.kv) {
            const Operand &norm = call[head < s.query ? kQueryNorm : kKeyNorm];
            if (norm) normalise(x, norm.as<float>(), s);
            rotate(x, call[kRope].as<float>() + position * s.dim, s);
        }
        if (head < s.query) continue;
        const bool key = head < s.query + s.kv;
        const std::int64_t own = head - s.query - (key ? 0 : s.kv);
        const std::int32_t *pages = step.pages + step.sequences[m] * step.page_columns;
        store_row(call[key ? kKeys : kValues], call[key ? kKeyScales : kValueScales],
                  cache_row(s, pages, position, own), x, s.dim);
    }
}

// Stage 2: the query heads of one row that share a KV head, at most kMostQueries of them at a time.
std::int64_t group_count(const Shape &s) { return (s.query / s.kv + kMostQueries - 1) / kMostQueries; }

std::int64_t attention_items(const Call &call, const Step &step) {
    const Shape s(call);
    return step.rows * s.kv * group_count(s);
}

void run_attention(const Call &call, const Step &step, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
    const Shape s(call);
    auto &a = *reinterpret_cast<Attention *>(scratch.own);
    const std::int64_t shared = s.query / s.kv, groups = group_count(s), padded = round_up(s.dim, 8);
    for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t m = item / (s.kv * groups), kv = item / groups % s.kv;
        const std::int64_t first = item % groups * kMostQueries;
        const int queries = static_cast<int>(least(kMostQueries, shared - first));
        const std::int64_t head = kv * shared + first;
        for (int g = 0; g < queries; ++g) {
            const float *q = call[kQkv].as<float>() + m * s.width() + (head + g) * s.dim;
            for (std::int64_t d = 0; d < padded; ++d) a.q[g][d] = d < s.dim ? q[d] : 0.0f;
        }
        const std::int32_t *pages = step.pages + step.sequences[m] * step.page_columns;
        weighted_sums(
            a, queries, s.dim, step.positions[m] + 1,
            [&](std::int64_t t, float *room) {
                return load_row(call[kKeys], call[kKeyScales], cache_row(s, pages, t, kv), s.dim, room);
            },
            [&](std::int64_t t, float *room) {
                return load_row(call[kValues], call[kValueScales], cache_row(s, pages, t, kv), s.dim, room);
            });
        for (int g = 0; g < queries; ++g)
            std::memcpy(call[kOut].as<float>() + (m * s.query + head + g) * s.dim, a.out[g],
                        static_cast<std::size_t>(s.dim) * sizeof(float));
    }
}

constexpr Stage kStages[] = {{head_items, run_heads}, {attention_items, run_attention}};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(attend, prepare, check, kStages)
