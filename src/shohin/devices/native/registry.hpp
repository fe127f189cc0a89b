// Which kernels and formats each tier has, and which tiers this machine runs.
#pragma once

#include <vector>

#include "kernel.hpp"

namespace shohin {

struct Tier {
    const char *name;
    bool (*runs_here)();
    const Kernel *const *kernels;
    int kernel_count;
    const Format *formats;
    int format_count;

    const Kernel *kernel(const char *name) const;  // null where there is none
    const Format *format(const char *name) const;
};

std::vector<const Tier *> tiers();      // those this machine runs, slowest first
const Tier *find_tier(const char *name);  // null where unknown or not runnable here

}  // namespace shohin
