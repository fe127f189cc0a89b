// embed, pick, copy and read.
#include <algorithm>
#include <limits>

#include "cases.hpp"
#include "devices/native/registry.hpp"

namespace check {

namespace {

Setup embed(const std::string &format, std::int64_t columns, std::int64_t rows, std::uint64_t seed) {
    constexpr std::size_t kTable = 71;
    Setup setup(seed, rows, 0);
    setup.weight(format, static_cast<std::int64_t>(kTable), columns);
    setup.output("float32", {setup.capacity(), columns});
    for (std::size_t m = 0; m < setup.tokens.size(); ++m) setup.tokens[m] = static_cast<std::int32_t>(m * 31 % kTable);
    setup.call("embed", {}, {});
    return setup;
}

// Row 0 has its greatest logit twice, row 1 holds a not-a-number, row 2 an infinity, row 3 the greatest at the end.
Setup pick(std::int64_t vocabulary, std::int64_t wanted, std::uint64_t seed) {
    Setup setup(seed, wanted, wanted);
    const std::int64_t columns = vocabulary + 3;  // past the vocabulary lies padding, which may hold anything
    setup.floats({setup.wanted_capacity(), columns});
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
    for (std::int64_t m = 0; m < wanted; ++m) setup.put(m * columns + vocabulary, nan);
    setup.put(vocabulary / 3, 90.0f);
    setup.put(vocabulary - 1, 90.0f);
    if (wanted > 1) setup.put(columns + vocabulary / 2, nan);
    if (wanted > 2) setup.put(2 * columns + vocabulary - 1, infinite);
    if (wanted > 3) setup.put(3 * columns + vocabulary - 1, 91.0f);
    setup.output("int32", {setup.wanted_capacity()});
    setup.output("int32", {setup.wanted_capacity()});
    setup.call("pick", {vocabulary}, {});
    return setup;
}

Setup copy(std::int64_t rows, std::uint64_t seed) {
    Setup setup(seed, rows, 0);
    setup.floats({setup.capacity(), 37});
    setup.output("float32", {setup.capacity(), 37});
    setup.call("copy", {}, {});
    return setup;
}

Setup read(std::int64_t columns, std::uint64_t seed) {
    Setup setup(seed, 1, 0);
    setup.words({5, columns});
    setup.output("int32", {5, 1});
    setup.call("read", {}, {});
    return setup;
}

void add(std::vector<Case> &list, const std::string &name, const std::function<Setup(std::uint64_t)> &make) {
    list.push_back({name, "", [=] { return make(seed_of(name)); }});
}

}  // namespace

std::uint64_t seed_of(const std::string &name) {
    std::uint64_t seed = 14695981039346656037u;  // FNV-1a
    for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 1099511628211u;
    return seed;
}

void add_simple_cases(std::vector<Case> &list) {
    const shohin::Tier &tier = *shohin::tiers().front();
    for (int f = 0; f < tier.format_count; ++f) {
        const std::string format = tier.formats[f].name;
        const std::int64_t columns = tier.formats[f].block == 1 ? 77 : 3 * tier.formats[f].block;
        add(list, "embed " + format, [=](std::uint64_t seed) { return embed(format, columns, 8, seed); });
    }
    for (const std::int64_t vocabulary : {1, 7, 1000, 16384, 16385, 40001})
        for (const std::int64_t wanted : {std::int64_t{1}, std::int64_t{5}})
            add(list, "pick " + std::to_string(vocabulary) + " rows " + std::to_string(wanted),
                [=](std::uint64_t seed) { return pick(vocabulary, wanted, seed); });
    for (const std::int64_t rows : kBatches)
        add(list, "copy rows " + std::to_string(rows), [=](std::uint64_t seed) { return copy(rows, seed); });
    for (const std::int64_t columns : {std::int64_t{1}, std::int64_t{63}, std::int64_t{1000}})
        add(list, "read " + std::to_string(columns), [=](std::uint64_t seed) { return read(columns, seed); });
}

std::vector<Case> cases() {
    std::vector<Case> list;
    add_simple_cases(list);
    add_linear_cases(list);
    add_attention_cases(list);
    const shohin::Tier &tier = *shohin::tiers().front();
    for (int k = 0; k < tier.kernel_count; ++k) {
        const std::string op = std::string(tier.kernels[k]->name) + " ";
        if (std::none_of(list.begin(), list.end(), [&](const Case &at) { return at.name.rfind(op, 0) == 0; }))
            give_up("tests/native has no case of the op " + op);
    }
    return list;
}

}  // namespace check
