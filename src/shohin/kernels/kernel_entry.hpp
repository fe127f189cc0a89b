// How an op's file names its kernel: SHOHIN_KERNEL(embed, prepare, check, stages).
#pragma once

#include "devices/native/kernel.hpp"

#define SHOHIN_KERNEL(op, prepare, check, stages)     \
    namespace shohin::SHOHIN_TIER {                   \
    extern const Kernel op##_kernel;                  \
    constinit const Kernel op##_kernel = {#op, prepare, check, stages, sizeof stages / sizeof stages[0]}; \
    }
