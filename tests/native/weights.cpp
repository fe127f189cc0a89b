#include "weights.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "devices/native/registry.hpp"
#include "setup.hpp"

namespace check {

namespace {

// Where the binary16 scales of a block lie (-1: none); every other byte of a block may hold anything.
struct Scales {
    const char *format;
    int at[2];
};

constexpr Scales kScales[] = {
    {"Q4_0", {0, -1}},   {"Q4_1", {0, 2}},    {"Q5_0", {0, -1}},   {"Q5_1", {0, 2}},  {"Q8_0", {0, -1}},
    {"Q2_K", {80, 82}},  {"Q3_K", {108, -1}}, {"Q4_K", {0, 2}},    {"Q5_K", {0, 2}},  {"Q6_K", {208, -1}},
    {"Q1_0", {0, -1}},   {"PQ2_0", {0, -1}},  {"Q2_0", {0, -1}},
};

void put_half(std::uint8_t *to, std::uint16_t half) { std::memcpy(to, &half, sizeof half); }

void fill_plain(const std::string &format, std::vector<std::uint8_t> &data, Random &random) {
    const std::size_t size = format == "F32" ? 4 : 2;
    for (std::size_t at = 0; at < data.size(); at += size) {
        if (format == "F16") {
            put_half(&data[at], random_half(random));
            continue;
        }
        const float x = 0.05f * random.value();
        std::uint32_t word;
        std::memcpy(&word, &x, sizeof word);
        if (format == "BF16") word >>= 16;
        std::memcpy(&data[at], &word, size);
    }
}

const shohin::Format &format_named(const std::string &name) {
    const shohin::Format *found = shohin::tiers().front()->format(name.c_str());
    if (found == nullptr) give_up("no tier reads the format " + name);
    return *found;
}

void put_scales(const shohin::Format &format, std::vector<std::uint8_t> &data, Random &random) {
    const std::string name = format.name;
    const auto known = std::find_if(std::begin(kScales), std::end(kScales),
                                    [&](const Scales &s) { return name == s.format; });
    if (known == std::end(kScales)) give_up("weights.cpp does not know where the scales of " + name + " lie");
    for (std::size_t block = 0; block < data.size(); block += static_cast<std::size_t>(format.bytes))
        for (const int at : known->at)
            if (at >= 0) put_half(&data[block + static_cast<std::size_t>(at)], random_half(random));
}

}  // namespace

std::uint16_t random_half(Random &random) {
    const std::uint64_t word = random.next();
    const std::uint64_t sign = word & 0x8000u, fraction = word & 0x3FFu;
    const std::uint64_t exponent = (word >> 16) % 16 == 0 ? 0 : 8 + (word >> 20) % 3;
    return static_cast<std::uint16_t>(sign | exponent << 10 | ((word >> 24) % 64 == 0 ? 0 : fraction));
}

std::vector<std::uint8_t> random_weight(const std::string &format, std::int64_t rows, std::int64_t columns,
                                        Random &random) {
    const shohin::Format &found = format_named(format);
    std::vector<std::uint8_t> data(static_cast<std::size_t>(rows * columns / found.block * found.bytes));
    if (!found.quantised) {
        fill_plain(format, data, random);
        return data;
    }
    for (std::uint8_t &byte : data) byte = static_cast<std::uint8_t>(random.next() >> 56);
    put_scales(found, data, random);
    return data;
}

std::vector<std::uint8_t> flat_codes(const std::string &format, std::int64_t rows, std::int64_t columns,
                                     std::uint8_t byte, Random &random) {
    const shohin::Format &found = format_named(format);
    std::vector<std::uint8_t> data(static_cast<std::size_t>(rows * columns / found.block * found.bytes), byte);
    put_scales(found, data, random);
    return data;
}

}  // namespace check
