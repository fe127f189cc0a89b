// gemm, linear_add, norm_linear and norm_swiglu over every format of the build, both activation modes.
#include <limits>

#include "cases.hpp"
#include "devices/native/registry.hpp"

namespace check {

namespace {

using shohin::Format;

constexpr double kEps = 1e-6;

struct Linear {
    std::string format;
    std::int64_t k, n, m;
    std::int64_t int8;

    std::string family(const char *op) const {
        return std::string(op) + " " + format + (int8 != 0 ? " int8 " : " exact ") + std::to_string(n) + "x" +
               std::to_string(k);
    }
};

void add(std::vector<Case> &list, const char *op, const Linear &at, Setup (*make)(const Linear &, std::uint64_t)) {
    const std::string family = at.family(op);
    list.push_back({family + " rows " + std::to_string(at.m), family, [=] { return make(at, seed_of(family)); }});
}

Setup gemm(const Linear &at, std::uint64_t seed) {
    Setup setup(seed, at.m, 0);
    setup.floats({setup.capacity(), at.k});
    setup.weight(at.format, at.n, at.k);
    setup.output("float32", {setup.capacity(), at.n});
    setup.call("gemm", {at.int8}, {});
    return setup;
}

Setup linear_add(const Linear &at, std::uint64_t seed) {
    Setup setup(seed, at.m, 0);
    setup.floats({setup.capacity(), at.k});
    setup.weight(at.format, at.n, at.k);
    setup.floats({setup.capacity(), at.n}, true);
    setup.call("linear_add", {at.int8}, {});
    return setup;
}

Setup norm_swiglu(const Linear &at, std::uint64_t seed) {
    Setup setup(seed, at.m, 0);
    setup.floats({setup.capacity(), at.k});
    setup.vector(at.k);
    setup.weight(at.format, at.n, at.k);
    setup.weight(at.format, at.n, at.k);
    setup.output("float32", {setup.capacity(), at.n});
    setup.call("norm_swiglu", {at.int8}, {kEps});
    return setup;
}

// Weights of several formats side by side, and the tail that reads only the wanted rows.
Setup norm_linear(const Linear &at, std::uint64_t seed, bool gather) {
    Setup setup(seed, at.m, gather ? (at.m + 1) / 2 : 0);
    setup.floats({setup.capacity(), at.k});
    setup.vector(at.k);
    setup.output("float32", {gather ? setup.wanted_capacity() : setup.capacity(), at.n + 16});
    setup.weight(at.format, at.n, at.k);
    setup.weight("Q8_0", 5, at.k);
    setup.weight("F16", 3, at.k);
    setup.weight("Q4_K", 8, at.k);
    for (std::int32_t &row : setup.wanted_rows) row = static_cast<std::int32_t>(at.m - 1 - row);
    setup.call("norm_linear", {at.int8, gather ? 1 : 0}, {kEps});
    return setup;
}

Setup norm_linear_all(const Linear &at, std::uint64_t seed) { return norm_linear(at, seed, false); }
Setup norm_linear_tail(const Linear &at, std::uint64_t seed) { return norm_linear(at, seed, true); }

// Odd numbers of blocks, of panels and of rows in a tile; one output; more rows than two threads share evenly.
std::vector<std::pair<std::int64_t, std::int64_t>> shapes(const Format &format) {
    if (!format.quantised) return {{13, 1}, {64, 9}, {515, 21}};
    const std::int64_t block = format.block;
    return {{block, 1}, {3 * block, 9}, {5 * block, 75}};
}

// What must not pass as a number, and what is nearly none: an input of zeros, denormals, infinity, not-a-number.
struct Odd {
    const char *name;
    float value;
};

constexpr Odd kOdd[] = {{"zeros", 0.0f},
                        {"denormals", 1e-40f},
                        {"tiny", 1.4e-36f},
                        {"huge", 3e38f},
                        {"infinity", std::numeric_limits<float>::infinity()},
                        {"nan", std::numeric_limits<float>::quiet_NaN()}};

Setup odd_input(const Linear &at, std::uint64_t seed, const Odd &odd) {
    Setup setup(seed, at.m, 0);
    setup.floats({setup.capacity(), at.k});
    // Row 0 holds one such value, row 1 nothing else.
    setup.put(at.k / 2, odd.value);
    for (std::int64_t j = 0; j < at.k; ++j) setup.put(at.k + j, odd.value);
    setup.weight(at.format, at.n, at.k);
    setup.output("float32", {setup.capacity(), at.n});
    setup.call("gemm", {at.int8}, {});
    return setup;
}

void add_odd_inputs(std::vector<Case> &list, const Format &format) {
    for (std::int64_t int8 = 0; int8 < 2; ++int8)
        for (const Odd &odd : kOdd) {
            const Linear at{format.name, format.block == 1 ? 40 : 2 * format.block, 35, 3, int8};
            const std::string name = at.family("gemm") + " with " + odd.name;
            list.push_back({name, "", [=] { return odd_input(at, seed_of(name), odd); }});
        }
}

// Sums at their largest: equal codes, and inputs that all become 127, all -127, or the two in turn.
Setup flat_gemm(const Linear &at, std::uint64_t seed, std::uint8_t byte) {
    Setup setup(seed, at.m, 0);
    setup.floats({setup.capacity(), at.k});
    for (std::int64_t j = 0; j < at.k; ++j) {
        setup.put(j, 1.0f);
        setup.put(at.k + j, -1.0f);
        setup.put(2 * at.k + j, j % 2 == 0 ? 1.0f : -1.0f);
    }
    setup.flat_weight(at.format, at.n, at.k, byte);
    setup.output("float32", {setup.capacity(), at.n});
    setup.call("gemm", {at.int8}, {});
    return setup;
}

void add_largest_sums(std::vector<Case> &list, const Format &format) {
    if (!format.quantised) return;
    for (const int byte : {0x00, 0x7F, 0x80, 0xFF}) {
        const Linear at{format.name, 2048, 35, 3, 1};
        const std::string name = at.family("gemm") + " of bytes " + std::to_string(byte);
        list.push_back({name, "", [=] { return flat_gemm(at, seed_of(name), static_cast<std::uint8_t>(byte)); }});
    }
}

}  // namespace

void add_linear_cases(std::vector<Case> &list) {
    const shohin::Tier &tier = *shohin::tiers().front();
    for (int f = 0; f < tier.format_count; ++f) {
        const Format &format = tier.formats[f];
        for (std::int64_t int8 = 0; int8 < 2; ++int8)
            for (const std::int64_t m : kBatches) {
                for (const auto &[k, n] : shapes(format)) add(list, "gemm", {format.name, k, n, m, int8}, gemm);
                const std::int64_t k = format.block == 1 ? 72 : 3 * format.block;
                add(list, "linear_add", {format.name, k, 45, m, int8}, linear_add);
                add(list, "norm_swiglu", {format.name, k, 39, m, int8}, norm_swiglu);
            }
        add_odd_inputs(list, format);
        add_largest_sums(list, format);
    }
    for (const char *format : {"Q1_0", "PQ2_0", "Q2_0", "Q4_1", "F32"})
        for (std::int64_t int8 = 0; int8 < 2; ++int8)
            for (const std::int64_t m : kBatches) {
                add(list, "norm_linear", {format, 768, 41, m, int8}, norm_linear_all);
                // Here rows are gathered from the end, so the first output is another row in every batch.
                add(list, "norm_linear tail", {format, 768, 41, m, int8}, norm_linear_tail);
                list.back().family.clear();
            }
    // One long enough that eight threads have work, as in a model.
    for (const char *format : {"Q1_0", "PQ2_0"})
        for (const std::int64_t m : {std::int64_t{1}, std::int64_t{130}})
            add(list, "gemm", {format, 1024, 131, m, 1}, gemm);
}

}  // namespace check
