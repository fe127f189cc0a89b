// Do all kernel tiers give the same bits? Plays the list of cases without Python, so that it also runs under emulators.
//
//   check_tiers list                        tiers of this build, and whether they run here
//   check_tiers compare THREADS...          every tier, on so many threads, with generic on one
//   check_tiers digests TIER THREADS        one line a case: digest and name, to compare across machines
//   check_tiers bits TIER THREADS CASE      what the case wrote, one word a line
//   check_tiers repeat TIER FORMAT ROWS N K TIMES
//                                           gemm, int8, TIMES times, for counting instructions
//
// Status 1: bits differ. Status 2: nothing could be said.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <sstream>

#include "cases.hpp"
#include "devices/native/registry.hpp"

namespace check {

namespace {

using shohin::Pool;
using shohin::Tier;

Setup played(const Case &at, const Tier &tier, Pool &pool) {
    Setup setup = at.make();
    setup.play(setup.program(tier, pool), pool);
    return setup;
}

const Tier &tier_named(const char *name) {
    const Tier *tier = shohin::find_tier(name);
    if (tier == nullptr) give_up(std::string("tier ") + name + " is not in this build or does not run here");
    return *tier;
}

int list_tiers() {
    std::istringstream names(SHOHIN_TIER_NAMES);
    for (std::string name; names >> name;)
        std::printf("%s %s\n", name.c_str(), shohin::find_tier(name.c_str()) != nullptr ? "runs" : "absent");
    return 0;
}

std::uint64_t digest(const Bits &bits) {
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a over words
    for (const std::uint32_t word : bits) hash = (hash ^ word) * 1099511628211u;
    return hash;
}

float as_float(std::uint32_t word) {
    float x;
    std::memcpy(&x, &word, sizeof x);
    return x;
}

// Says where two results differ; true where they don't.
bool same(const std::string &what, const Bits &wanted, const Bits &found) {
    std::size_t count = 0, first = 0;
    for (std::size_t i = wanted.size(); i-- > 0;)
        if (i >= found.size() || wanted[i] != found[i]) {
            ++count;
            first = i;
        }
    if (count == 0) return true;
    std::printf("DIFFERS %s: %zu of %zu words, the first is number %zu: %08" PRIx32 " (%g) wanted, %08" PRIx32
                " (%g) found\n", what.c_str(), count, wanted.size(), first, wanted[first], static_cast<double>(as_float(wanted[first])),
                found[first], static_cast<double>(as_float(found[first])));
    return false;
}

int compare(const std::vector<int> &thread_counts) {
    Pool alone(1);
    const std::vector<Case> list = cases();
    std::vector<Bits> wanted;
    std::map<std::string, Bits> first_rows;
    int bad = 0;
    std::size_t words = 0;
    for (const Case &at : list) {
        const Setup setup = played(at, tier_named("generic"), alone);
        wanted.push_back(setup.bits());
        words += wanted.back().size();
        if (at.family.empty()) continue;
        const auto [found, fresh] = first_rows.emplace(at.family, setup.first_row());
        if (!fresh && !same("generic, first row of another batch: " + at.name, found->second, setup.first_row())) ++bad;
    }
    for (const Tier *tier : shohin::tiers())
        for (const int threads : thread_counts) {
            Pool pool(threads);
            int differing = 0;
            for (std::size_t i = 0; i < list.size(); ++i)
                if (!same(std::string(tier->name) + " on " + std::to_string(threads) + ": " + list[i].name, wanted[i],
                          played(list[i], *tier, pool).bits()))
                    ++differing;
            std::printf("%s, %d thread%s: %zu of %zu cases equal generic bit for bit\n", tier->name, threads,
                        threads == 1 ? "" : "s", list.size() - static_cast<std::size_t>(differing), list.size());
            bad += differing;
        }
    std::printf("%zu words in %zu cases; first rows of %zu families equal in every batch%s\n", words, list.size(),
                first_rows.size(), bad == 0 ? "" : ", but for what is listed above");
    return bad == 0 ? 0 : 1;
}

int digests(const Tier &tier, int threads) {
    Pool pool(threads);
    for (const Case &at : cases())
        std::printf("%016" PRIx64 " %s\n", digest(played(at, tier, pool).bits()), at.name.c_str());
    return 0;
}

int bits_of(const Tier &tier, int threads, const std::string &name) {
    Pool pool(threads);
    for (const Case &at : cases()) {
        if (at.name != name) continue;
        for (const std::uint32_t word : played(at, tier, pool).bits())
            std::printf("%08" PRIx32 " %g\n", word, static_cast<double>(as_float(word)));
        return 0;
    }
    give_up("no case is called " + name);
}

// Prints the nanoseconds of a play too, where somebody looks.
int repeat(const Tier &tier, char **arguments) {
    const std::string format = arguments[0];
    std::int64_t sizes[4];
    for (int i = 0; i < 4; ++i) sizes[i] = std::atoll(arguments[i + 1]);
    const std::int64_t rows = sizes[0], n = sizes[1], k = sizes[2], times = sizes[3];
    Pool pool(1);
    Setup setup(1, rows, 0);
    setup.floats({setup.capacity(), k});
    setup.weight(format, n, k);
    setup.output("float32", {setup.capacity(), n});
    setup.call("gemm", {1}, {});
    const shohin::Program program = setup.program(tier, pool);
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < times; ++i) setup.play(program, pool);
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    std::printf("%s %s: %.0f ns a play\n", tier.name, format.c_str(), spent.count() / static_cast<double>(times));
    return 0;
}

int run(int count, char **arguments) {
    const std::string what = count > 1 ? arguments[1] : "";
    if (what == "list" && count == 2) return list_tiers();
    if (what == "compare" && count > 2) {
        std::vector<int> threads;
        for (int i = 2; i < count; ++i) threads.push_back(std::atoi(arguments[i]));
        return compare(threads);
    }
    if (what == "digests" && count == 4) return digests(tier_named(arguments[2]), std::atoi(arguments[3]));
    if (what == "bits" && count == 5) return bits_of(tier_named(arguments[2]), std::atoi(arguments[3]), arguments[4]);
    if (what == "repeat" && count == 8) return repeat(tier_named(arguments[2]), arguments + 3);
    give_up("list | compare THREADS... | digests TIER THREADS | bits TIER THREADS CASE | "
            "repeat TIER FORMAT ROWS N K TIMES");
}

}  // namespace

}  // namespace check

int main(int count, char **arguments) {
    try {
        return check::run(count, arguments);
    } catch (const std::exception &error) {
        check::give_up(error.what());
    }
}
