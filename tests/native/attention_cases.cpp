// attend over the cache's types, head shapes and depths, and joint attention.
#include "cases.hpp"

namespace check {

namespace {

constexpr std::int64_t kPage = 64;

struct Attention {
    std::string cache;
    std::int64_t query, kv, dim, adjacent;
    bool norm;
    std::int64_t rows, first;  // row r stands at position first + r

    std::string family() const {
        return "attend " + cache + " heads " + std::to_string(query) + "/" + std::to_string(kv) + "x" +
               std::to_string(dim) + (adjacent != 0 ? " adjacent" : " half") + (norm ? " norm" : "") + " from " +
               std::to_string(first);
    }
};

Setup attend(const Attention &at, std::uint64_t seed) {
    // Pages enough for the deepest batch, so that every batch of a family draws the same numbers.
    const std::int64_t pages = (at.first + 32 + kPage) / kPage;
    Setup setup(seed, at.rows, 0);
    setup.place(2, pages);
    setup.floats({setup.capacity(), (at.query + 2 * at.kv) * at.dim}, true);
    for (int i = 0; i < 2; ++i) {
        if (at.norm)
            setup.vector(at.dim);
        else
            setup.nothing();
    }
    setup.floats({at.first + 32, at.dim});  // any angles will do: a rotation that is none is still arithmetic
    for (int i = 0; i < 2; ++i) setup.cache(at.cache, {2 * pages, at.kv, kPage, at.dim});
    for (int i = 0; i < 2; ++i) {
        if (at.cache == "int8")
            setup.scales({2 * pages, at.kv, kPage});
        else
            setup.nothing();
    }
    setup.output("float32", {setup.capacity(), at.query * at.dim});
    for (std::size_t m = 0; m < setup.positions.size(); ++m) {
        setup.positions[m] += static_cast<std::int32_t>(at.first);
        setup.sequences[m] = 1;
    }
    setup.call("attend", {at.query, at.kv, at.dim, at.adjacent}, {1e-6});
    return setup;
}

// Rows of two sequences at unequal depths in one play, as when several are served together.
Setup attend_mixed(const Attention &at, std::uint64_t seed) {
    Setup setup = attend(at, seed);
    for (std::size_t m = 0; m < setup.positions.size(); ++m) {
        setup.sequences[m] = static_cast<std::int32_t>(m % 2);
        if (m % 2 == 0) setup.positions[m] /= 2;
    }
    return setup;
}

void add(std::vector<Case> &list, const Attention &at) {
    const std::string family = at.family();
    list.push_back({family + " rows " + std::to_string(at.rows), family, [=] { return attend(at, seed_of(family)); }});
}

Setup joint(std::int64_t heads, std::int64_t tokens, std::int64_t dim, std::uint64_t seed) {
    Setup setup(seed, 1, 0);
    for (int i = 0; i < 3; ++i) setup.floats({heads, tokens, dim});
    setup.output("float32", {tokens, heads * dim});
    setup.call("joint_attention", {heads, tokens, dim}, {});
    return setup;
}

}  // namespace

void add_attention_cases(std::vector<Case> &list) {
    for (const char *cache : {"float32", "float16", "int8"}) {
        for (const std::int64_t rows : kBatches) {
            add(list, {cache, 9, 3, 64, 0, false, rows, 0});
            add(list, {cache, 4, 2, 128, 0, true, rows, 250});
            add(list, {cache, 6, 1, 20, 1, true, rows, 59});
            add(list, {cache, 5, 5, 6, 0, false, rows, 130});
            add(list, {cache, 17, 1, 34, 1, false, rows, 600});
        }
        add(list, {cache, 2, 1, 256, 0, true, 3, 1100});
        const Attention at{cache, 4, 2, 80, 0, true, 8, 321};
        const std::string name = at.family() + " two sequences";
        list.push_back({name, "", [=] { return attend_mixed(at, seed_of(name)); }});
    }
    for (const std::int64_t tokens : {std::int64_t{1}, std::int64_t{19}, std::int64_t{300}})
        for (const std::int64_t dim : {std::int64_t{5}, std::int64_t{64}}) {
            const std::string name = "joint_attention 3x" + std::to_string(tokens) + "x" + std::to_string(dim);
            list.push_back({name, "", [=] { return joint(3, tokens, dim, seed_of(name)); }});
        }
}

}  // namespace check
