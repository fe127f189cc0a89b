// The list of cases: one program of one op each, over formats, modes, cache types, odd shapes and batches.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "setup.hpp"

namespace check {

struct Case {
    std::string name;
    // Cases of one family differ only in how many rows are live: the first row of their last operand, which is the
    // output, must be equal. Empty: none.
    std::string family;
    std::function<Setup()> make;
};

std::vector<Case> cases();

// Each adds its own.
void add_linear_cases(std::vector<Case> &list);
void add_attention_cases(std::vector<Case> &list);
void add_simple_cases(std::vector<Case> &list);

// A seed out of a name: a case keeps its numbers when others are added.
std::uint64_t seed_of(const std::string &name);

constexpr std::int64_t kBatches[] = {1, 3, 8, 17};

}  // namespace check
