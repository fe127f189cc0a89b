// QK-norm, RoPE, store, causal attention over the paged cache. Operands and parameters: op.py.
#include <limits>

#include "kernels/attend/softmax.hpp"
#include "kernels/half.hpp"
#include "kernels/kernel_entry.hpp"

namespace shohin::SHOHIN_TIER {

namespace {

enum { kQkv, kQueryNorm, kKeyNorm, kRope, kKeys, kValues, kKeyScales, kValueScales, kOut };

struct Shape {
    std::int64_t query, kv, dim, padded;
    bool adjacent;
    float eps;
    int page_bits;  // a page holds two to this power of keys

    explicit Shape(const Call &call)
        : query(call.ints[0]), kv(call.ints[1]), dim(call.ints[2]), padded(round_up(dim, kWidth)),
          adjacent(call.ints[3] == 1), eps(static_cast<float>(call.floats[0])),
          page_bits(std::countr_zero(static_cast<std::uint64_t>(call[kKeys].shape[2]))) {}
    std::int64_t heads() const { return query + 2 * kv; }
    std::int64_t width() const { return heads() * dim; }
    // Query heads that share a KV head, in passes of at most kMostQueries; rows of the step that share a pass.
    std::int64_t shared() const { return query / kv; }
    std::int64_t passes() const { return (shared() + kMostQueries - 1) / kMostQueries; }
    std::int64_t tile() const { return shared() > kMostQueries ? 1 : kMostQueries / shared(); }
    // Floats that a chunk of one query is kept in: weighted sums, then maximum and sum of exponentials.
    std::int64_t slot() const { return padded + kWidth; }
};

std::int64_t chunks_of(std::int64_t keys) { return (keys + kKeyChunk - 1) / kKeyChunk; }

// Room for chunks that wait for their merge: for one row over the whole context, and for more rows while it is little.
std::int64_t slot_bytes(const Call &call, std::int64_t rows, std::int64_t chunks) {
    const Shape s(call);
    return rows * s.query * chunks * s.slot() * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t most_slot_bytes(const Call &call) {
    constexpr std::int64_t kEnough = std::int64_t{8} << 20;
    const std::int64_t chunks = chunks_of(call[kRope].rows);
    const std::int64_t one = slot_bytes(call, 1, chunks), every = slot_bytes(call, call.rows, chunks);
    return least(every, one > kEnough ? one : kEnough);
}

void expect_cache(const Call &call, int index, int scales, const char *what) {
    const Operand &cache = call[index];
    const std::int64_t kv = call.ints[1], dim = call.ints[2];
    if (cache.dims == 4 && !std::has_single_bit(static_cast<std::uint64_t>(cache.shape[2])))
        fail("attend: pages of %lld keys, a power of two was expected", static_cast<long long>(cache.shape[2]));
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
    return {most_slot_bytes(call), static_cast<std::int64_t>(sizeof(Attention))};
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
    const std::int64_t slot = t & ((std::int64_t{1} << s.page_bits) - 1);
    return ((pages[t >> s.page_bits] * s.kv + head) << s.page_bits) + slot;
}

// Keys from t to the end of its page.
std::int64_t left_in_page(const Shape &s, std::int64_t t) {
    const std::int64_t page = std::int64_t{1} << s.page_bits;
    return page - (t & (page - 1));
}

void normalise_head(float *x, const float *weight, const Shape &s) {
    const float factor = 1.0f / std::sqrt(dot(x, x, s.dim) / static_cast<float>(s.dim) + s.eps);
    for (std::int64_t d = 0; d < s.dim; ++d) x[d] = (x[d] * factor) * weight[d];
}

// A pair is low[i * Step] and high[i * Step]; angles: cosines, then sines.
template <int Step>
void rotate_pairs(float *SHOHIN_RESTRICT low, float *SHOHIN_RESTRICT high, const float *SHOHIN_RESTRICT angles,
                  std::int64_t pairs) {
    for (std::int64_t i = 0; i < pairs; ++i) {
        const float cosine = angles[i], sine = angles[pairs + i], x = low[i * Step], y = high[i * Step];
        low[i * Step] = x * cosine - y * sine;
        high[i * Step] = x * sine + y * cosine;
    }
}

void rotate(float *x, const float *angles, const Shape &s) {
    const std::int64_t half = s.dim / 2;
    if (s.adjacent)
        rotate_pairs<2>(x, x + 1, angles, half);
    else
        rotate_pairs<1>(x, x + half, angles, half);
}

// Round once to the cache's type.
void store_row(const Operand &cache, const Operand &scales, std::int64_t row, const float *x, std::int64_t dim) {
    if (cache.kind == Kind::f32) {
        std::memcpy(cache.as<float>() + row * dim, x, static_cast<std::size_t>(dim) * sizeof(float));
        return;
    }
    if (cache.kind == Kind::f16) {
        to_halves(x, cache.as<std::uint16_t>() + row * dim, dim);
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

// Keys between the one that is worked on and the one that is asked of memory; a multiple of kRowBlock.
constexpr std::int64_t kAhead = 32;

// Keys or values of one sequence and KV head; what chunk_sums asks for.
struct CacheRows {
    const Operand &cache, &scale;
    const Shape &s;
    const std::int32_t *pages;
    std::int64_t head, keys, bytes;  // keys: how many there are; bytes: of a value
    // What is read after a chunk of these: a head's rows that come `later` keys after the chunk's own.
    const Operand &next;
    std::int64_t next_head, later;

    Block block(std::int64_t t, std::int64_t n, std::int64_t fill, Attention &a) const {
        const std::int64_t first = cache_row(s, pages, t, head);
        const Ahead ahead = ahead_of(t, n);
        const bool together = n <= left_in_page(s, t) && s.dim == s.padded;
        // Codes that more queries than fit the registers take are turned into floats once.
        if (together && n == fill && (a.queries <= kTogether || cache.kind == Kind::f32))
            return {cache.data + first * s.dim * bytes, cache.kind, s.dim, ahead};
        if (together) {
            widen(first, n * s.dim, a.rows);
        } else {
            for (std::int64_t i = 0; i < n; ++i) {
                widen(cache_row(s, pages, t + i, head), s.dim, a.rows + i * s.padded);
                for (std::int64_t d = s.dim; d < s.padded; ++d) a.rows[i * s.padded + d] = 0.0f;
            }
        }
        for (std::int64_t i = n * s.padded; i < fill * s.padded; ++i) a.rows[i] = 0.0f;
        return {a.rows, Kind::f32, s.padded, ahead};
    }

    bool scales(std::int64_t t, std::int64_t n, float *to) const {
        if (!scale) return false;
        for (std::int64_t i = 0; i < n;) {
            const std::int64_t together = least(n - i, left_in_page(s, t + i));
            from_halves(scale.as<std::uint16_t>() + cache_row(s, pages, t + i, head), to + i, together);
            i += together;
        }
        return true;
    }

private:
    // Every head's keys lie in pieces of a page, and a processor's own prefetching starts anew in each.
    Ahead ahead_of(std::int64_t t, std::int64_t n) const {
        const std::int64_t chunk = t - t % kKeyChunk, length = round_up(least(kKeyChunk, keys - chunk), kRowBlock);
        const std::int64_t over = t + kAhead - chunk - length;
        const bool same = over < 0;
        const std::int64_t at = same ? t + kAhead : chunk + later + over;
        if (at + n > keys || n > left_in_page(s, at) || (!same && next_head >= s.kv)) return {};
        const std::int64_t row = cache_row(s, pages, at, same ? head : next_head);
        return {(same ? cache : next).data + row * s.dim * bytes, s.dim * bytes};
    }

    void widen(std::int64_t row, std::int64_t count, float *room) const {
        const std::uint8_t *from = cache.data + row * s.dim * bytes;
        if (cache.kind == Kind::f32)
            std::memcpy(room, from, static_cast<std::size_t>(count) * sizeof(float));
        else if (cache.kind == Kind::f16)
            widen_values(reinterpret_cast<const std::uint16_t *>(from), count, room);
        else
            widen_values(reinterpret_cast<const std::int8_t *>(from), count, room);
    }

    template <class T>
    static void widen_values(const T *from, std::int64_t count, float *room) {
        std::int64_t i = 0;
        for (; i + 2 * kWidth <= count; i += 2 * kWidth) {
            store16(room + i, load16(from + i));
            store16(room + i + kWidth, load16(from + i + kWidth));
        }
        for (; i < count; ++i) {
            if constexpr (sizeof(T) == 2)
                room[i] = from_half(from[i]);
            else
                room[i] = static_cast<float>(from[i]);
        }
    }
};

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
            if (norm) normalise_head(x, norm.as<float>(), s);
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

// Stage 2: tiles of rows and the query heads of one KV head, over all keys, or over one chunk of them where there are few
// tiles. Stage 3, in the second case: the chunks of each row and head, in order.
struct Split {
    std::int64_t tiles, chunks;  // chunks an item may belong to: 1 where an item does them all

    Split(const Call &call, const Step &step, const Shape &s) : tiles((step.rows + s.tile() - 1) / s.tile()) {
        constexpr std::int64_t kPlenty = 128;
        std::int64_t keys = 0;
        for (std::int64_t m = 0; m < step.rows; ++m)
            keys = step.positions[m] + 1 > keys ? step.positions[m] + 1 : keys;
        chunks = chunks_of(keys);
        if (tiles * s.kv * s.passes() >= kPlenty || slot_bytes(call, step.rows, chunks) > most_slot_bytes(call))
            chunks = 1;
    }
};

float *slot_of(const Scratch &scratch, const Shape &s, const Split &split, std::int64_t m, std::int64_t head,
               std::int64_t chunk) {
    return reinterpret_cast<float *>(scratch.shared) + ((m * s.query + head) * split.chunks + chunk) * s.slot();
}

std::int64_t attention_items(const Call &call, const Step &step) {
    const Shape s(call);
    const Split split(call, step, s);
    return split.tiles * s.kv * s.passes() * split.chunks;
}

// Rows m0 to m1 - 1, all of one sequence, and the query heads from `head` on that share KV head `kv`.
struct Pass {
    std::int64_t m0, m1, kv, head, heads;
};

void run_pass(const Call &call, const Step &step, const Shape &s, const Split &split, const Pass &p,
              std::int64_t chunk, const Scratch &scratch) {
    auto &a = *reinterpret_cast<Attention *>(scratch.own);
    begin(a, s.dim);
    for (std::int64_t m = p.m0; m < p.m1; ++m)
        for (std::int64_t h = p.head; h < p.head + p.heads; ++h)
            add_query(a, call[kQkv].as<float>() + m * s.width() + h * s.dim, s.dim, step.positions[m] + 1);
    const std::int32_t *pages = step.pages + step.sequences[p.m0] * step.page_columns;
    const std::int64_t bytes = call[kKeys].kind == Kind::f32 ? 4 : call[kKeys].kind == Kind::f16 ? 2 : 1;
    const bool whole = split.chunks == 1;
    const CacheRows keys{call[kKeys], call[kKeyScales], s, pages, p.kv, a.longest(), bytes, call[kValues], p.kv, 0};
    const CacheRows values{call[kValues], call[kValueScales], s,           pages,
                           p.kv,          a.longest(),        bytes,       call[kKeys],
                           whole ? p.kv : p.kv + 1,           whole ? kKeyChunk : 0};
    const std::int64_t first = chunk * kKeyChunk;
    if (whole) {
        weighted_sums(a, keys, values);
    } else {
        if (first >= a.longest()) return;
        pair_up(a);
        chunk_sums(a, first, keys, values, a.out);
    }
    int g = 0;
    for (std::int64_t m = p.m0; m < p.m1; ++m)
        for (std::int64_t h = p.head; h < p.head + p.heads; ++h, ++g) {
            const float *sums = a.out + g * s.padded;
            if (whole) {
                std::memcpy(call[kOut].as<float>() + (m * s.query + h) * s.dim, sums,
                            static_cast<std::size_t>(s.dim) * sizeof(float));
            } else if (a.seen(g, first) > 0) {
                float *slot = slot_of(scratch, s, split, m, h, chunk);
                std::memcpy(slot, sums, static_cast<std::size_t>(s.padded) * sizeof(float));
                slot[s.padded] = a.top[g];
                slot[s.padded + 1] = a.total[g];
            }
        }
}

void run_attention(const Call &call, const Step &step, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
    const Shape s(call);
    const Split split(call, step, s);
    for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t pass = item % s.passes(), kv = item / s.passes() % s.kv;
        const std::int64_t chunk = item / (s.passes() * s.kv) % split.chunks;
        // The last rows see most keys, so their tiles are dealt out first.
        const std::int64_t tile = split.tiles - 1 - item / (s.passes() * s.kv * split.chunks);
        const std::int64_t last = least((tile + 1) * s.tile(), step.rows);
        Pass p{tile * s.tile(), 0, kv, kv * s.shared() + pass * kMostQueries,
               least(kMostQueries, s.shared() - pass * kMostQueries)};
        for (; p.m0 < last; p.m0 = p.m1) {
            p.m1 = p.m0 + 1;
            while (p.m1 < last && step.sequences[p.m1] == step.sequences[p.m0]) ++p.m1;
            run_pass(call, step, s, split, p, chunk, scratch);
        }
    }
}

std::int64_t merge_items(const Call &call, const Step &step) {
    const Shape s(call);
    return Split(call, step, s).chunks == 1 ? 0 : step.rows * s.query;
}

void run_merges(const Call &call, const Step &step, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
    const Shape s(call);
    const Split split(call, step, s);
    for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t m = item / s.query, head = item % s.query;
        float *out = slot_of(scratch, s, split, m, head, 0);
        float top = out[s.padded], total = out[s.padded + 1];
        for (std::int64_t chunk = 1; chunk < chunks_of(step.positions[m] + 1); ++chunk) {
            const float *part = slot_of(scratch, s, split, m, head, chunk);
            merge(top, total, out, part[s.padded], part[s.padded + 1], part, s.padded);
        }
        normalise(out, total, s.padded);
        std::memcpy(call[kOut].as<float>() + (m * s.query + head) * s.dim, out,
                    static_cast<std::size_t>(s.dim) * sizeof(float));
    }
}

constexpr Stage kStages[] = {
    {head_items, run_heads}, {attention_items, run_attention}, {merge_items, run_merges}};

}  // namespace

}  // namespace shohin::SHOHIN_TIER

SHOHIN_KERNEL(attend, prepare, check, kStages)
