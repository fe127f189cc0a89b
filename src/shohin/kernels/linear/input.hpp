// The rows that a projection reads: normed, then quantised once for every kind of activation group that its weights want.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/linear/tile_avx2.hpp"
#include "kernels/linear/tile_avx512.hpp"
#include "kernels/linear/tile_generic.hpp"
#include "kernels/linear/tile_neon.hpp"

namespace shohin::SHOHIN_TIER {

constexpr int kMostWeights = 16;  // of one projection

// int8 rows for weights of one activation group, weight group and order; or, in exact mode, only the sums of x.
struct CodeSet {
    int group = 0;  // inputs under one activation scale; 0 in exact mode
    int width = 0;  // inputs under one weight scale
    Order order = Order::straight;
    std::int8_t *codes = nullptr;        // [rows][k]
    float *scales = nullptr;             // [rows][k / group]
    std::int32_t *code_sums = nullptr;   // [rows][k / width]
    float *sums = nullptr;               // [rows][k / width], exact mode with minima
    std::uint8_t *tables = nullptr;      // [rows up to kTableRows][k / 8][kTableBytes], where a kernel wants them
};

struct Input {
    std::int64_t k = 0;
    std::int64_t stride = 0;  // of a row in x: k and zeros up to a multiple of 8
    float *x = nullptr;       // [rows][stride] normed floats; null where no weight wants them
    int set_count = 0;
    CodeSet sets[kMostWeights];
    int set_of[kMostWeights] = {};  // per weight; -1 for one that reads x alone
    std::int64_t bytes = 0;
    bool tables = false;  // live rows are few enough for lookup tables

    const CodeSet &set(int weight) const { return sets[set_of[weight]]; }
};

// Carves arrays out of one piece of memory, or only measures when there is none yet.
class Carver {
public:
    explicit Carver(std::uint8_t *base) : base_(base) {}
    template <class T>
    T *take(std::int64_t count) {
        T *at = base_ == nullptr ? nullptr : reinterpret_cast<T *>(base_ + used_);
        used_ += round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
        return at;
    }
    std::int64_t used() const { return used_; }

private:
    std::uint8_t *base_;
    std::int64_t used_ = 0;
};

// Lay the rows out for `capacity` rows in `base` (null: only count the bytes).
inline Input lay_out(const Operand *weights, int count, std::int64_t capacity, bool int8, std::uint8_t *base) {
    Input in;
    Carver carver(base);
    in.k = weights[0].columns;
    in.stride = round_up(in.k, 8);
    bool floats = false;
    for (int i = 0; i < count; ++i) {
        const Format &format = *weights[i].format;
        const bool coded = int8 && format.quantised;
        in.set_of[i] = -1;
        floats = floats || !coded;
        if (!coded && !format.minimum) continue;
        const int group = coded ? format.activation_group() : 0;
        const Order order = coded ? format.order : Order::straight;
        int s = 0;
        while (s < in.set_count && !(in.sets[s].group == group && in.sets[s].width == format.group &&
                                     in.sets[s].order == order))
            ++s;
        in.set_of[i] = s;
        if (s < in.set_count) continue;
        CodeSet &set = in.sets[in.set_count++];
        set.group = group;
        set.width = format.group;
        set.order = order;
        if (coded) {
            set.codes = carver.take<std::int8_t>(capacity * in.k);
            set.scales = carver.take<float>(capacity * (in.k / group));
            set.code_sums = carver.take<std::int32_t>(capacity * (in.k / set.width));
            if (format.tiling != nullptr && format.tiling->tables)
                set.tables = carver.take<std::uint8_t>(least(capacity, kTableRows) * (in.k / 8) * kTableBytes);
        } else {
            set.sums = carver.take<float>(capacity * (in.k / set.width));
        }
    }
    if (floats) in.x = carver.take<float>(capacity * in.stride);
    in.bytes = carver.used();
    return in;
}

// 1 / sqrt(mean(x^2) + eps): eps inside the root (M.3).
inline float rms_factor(const float *x, std::int64_t k, float eps) {
    return 1.0f / std::sqrt(dot(x, x, k) / static_cast<float>(k) + eps);
}

// codes = nearest(v * 127 / a) of one group with a = max |v|; returns a, 0 for a group of no weight, NaN for one that
// holds NaN or infinity. |v| is compared as an integer, which orders like the float and puts infinity and NaN on top.
inline float quantise_group(const float *v, int count, std::int8_t *codes) {
    std::uint32_t top = 0;
    for (int j = 0; j < count; ++j) {
        const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(v[j]) & 0x7FFFFFFFu;
        top = magnitude > top ? magnitude : top;
    }
    const float a = std::bit_cast<float>(top);
    const bool finite = top < 0x7F800000u;
    if (!finite || a < 1.5e-36f) {  // below this 127 / a would overflow
        std::memset(codes, 0, static_cast<std::size_t>(count));
        return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    }
    const float inverse = 127.0f / a;
    for (int j = 0; j < count; ++j) {
        float q = nearest(v[j] * inverse);
        q = q > 127.0f ? 127.0f : q;
        q = q < -127.0f ? -127.0f : q;
        codes[j] = static_cast<std::int8_t>(static_cast<std::int32_t>(q));
    }
    return a;
}

// Deal codes to the order in which the weights of a format come out of their words.
inline void reorder(Order order, std::int8_t *codes, std::int64_t k) {
    const int across = order == Order::by4 ? 4 : 8;
    const int run = 4 * across;
    std::int8_t dealt[32];
    for (std::int64_t j = 0; j < k; j += run) {
        for (int step = 0; step < across; ++step)
            for (int b = 0; b < 4; ++b) dealt[4 * step + b] = codes[j + across * b + step];
        std::memcpy(codes + j, dealt, static_cast<std::size_t>(run));
    }
}

inline void fill_codes(const Input &in, const CodeSet &set, std::int64_t row, const float *v, float factor) {
    const std::int64_t k = in.k;
    std::int8_t *codes = set.codes + row * k;
    float *scales = set.scales + row * (k / set.group);
    std::int32_t *sums = set.code_sums + row * (k / set.width);
    for (std::int64_t g = 0; g < k / set.group; ++g)
        scales[g] = factor * quantise_group(v + g * set.group, set.group, codes + g * set.group) / 127.0f;
    for (std::int64_t g = 0; g < k / set.width; ++g) {
        std::int32_t total = 0;
        for (int j = 0; j < set.width; ++j) total += codes[g * set.width + j];
        sums[g] = total;
    }
    if (in.tables && set.tables != nullptr) fill_tables(codes, k, set.tables + row * (k / 8) * kTableBytes);
    if (set.order != Order::straight) reorder(set.order, codes, k);
}

// Prepare one row: x [k], the norm weight or null, room for k floats.
inline void fill_row(const Input &in, std::int64_t row, const float *x, const float *norm, float eps, float *room) {
    const float factor = norm == nullptr ? 1.0f : rms_factor(x, in.k, eps);
    const float *v = x;
    if (norm != nullptr) {
        for (std::int64_t j = 0; j < in.k; ++j) room[j] = x[j] * norm[j];
        v = room;
    }
    float *normed = in.x == nullptr ? nullptr : in.x + row * in.stride;
    if (normed != nullptr) {
        for (std::int64_t j = 0; j < in.k; ++j) normed[j] = norm == nullptr ? x[j] : (x[j] * factor) * norm[j];
        for (std::int64_t j = in.k; j < in.stride; ++j) normed[j] = 0.0f;
    }
    for (int s = 0; s < in.set_count; ++s) {
        const CodeSet &set = in.sets[s];
        if (set.group != 0) {
            fill_codes(in, set, row, v, factor);
            continue;
        }
        float *sums = set.sums + row * (in.k / set.width);
        for (std::int64_t g = 0; g < in.k / set.width; ++g) {
            F8 total = zeros();
            for (int j = 0; j < set.width; j += 8) total = total + load(normed + g * set.width + j);
            sums[g] = sum(total);
        }
    }
}

}  // namespace shohin::SHOHIN_TIER
