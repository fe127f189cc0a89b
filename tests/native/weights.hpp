// Random weights in the bytes of a format: any codes, but scales that are sane numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "random.hpp"

namespace check {

// A finite binary16 between 2^-7 and 2^-4 with either sign; now and then zero or a denormal.
std::uint16_t random_half(Random &random);

std::vector<std::uint8_t> random_weight(const std::string &format, std::int64_t rows, std::int64_t columns,
                                        Random &random);

// The same with every byte that is not a scale equal to `byte`.
std::vector<std::uint8_t> flat_codes(const std::string &format, std::int64_t rows, std::int64_t columns,
                                     std::uint8_t byte, Random &random);

}  // namespace check
