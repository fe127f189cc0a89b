// The list of ops comes from the build: one folder in kernels/, one name in ops.inc.
#include "registry.hpp"

#include <cstring>

#if SHOHIN_HAS_AVX2
#include <cpuid.h>
#endif

#if SHOHIN_HAS_NEON
#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

#define SHOHIN_DECLARE(op) extern const Kernel op##_kernel;
#define SHOHIN_ENTRY(op) &op##_kernel,

#define SHOHIN_TABLE(tier)                                \
    namespace shohin::tier {                              \
    extern const Format kFormats[];                       \
    extern const int kFormatCount;                        \
    SHOHIN_OPS(SHOHIN_DECLARE)                            \
    static const Kernel *const kKernels[] = {SHOHIN_OPS(SHOHIN_ENTRY)}; \
    }

#include "ops.inc"

SHOHIN_TABLE(generic)
#if SHOHIN_HAS_AVX2
SHOHIN_TABLE(avx2)
#endif
#if SHOHIN_HAS_AVX512
SHOHIN_TABLE(avx512)
#endif
#if SHOHIN_HAS_NEON
SHOHIN_TABLE(neon)
#endif

namespace shohin {

namespace {

template <int N>
constexpr int count(const Kernel *const (&)[N]) {
    return N;
}

bool always() { return true; }

const Tier kGeneric = {"generic", always, generic::kKernels, count(generic::kKernels), generic::kFormats,
                       generic::kFormatCount};

#if SHOHIN_HAS_AVX2
bool has_avx2() {
    // Not every compiler knows f16c by name: leaf 1, ecx, bit 29.
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1u) != 0;
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

const Tier kAvx2 = {"avx2", has_avx2, avx2::kKernels, count(avx2::kKernels), avx2::kFormats, avx2::kFormatCount};
#endif

#if SHOHIN_HAS_AVX512
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

const Tier kAvx512 = {"avx512", has_avx512, avx512::kKernels, count(avx512::kKernels), avx512::kFormats,
                      avx512::kFormatCount};
#endif

#if SHOHIN_HAS_NEON
// NEON itself every such processor has; dot products of bytes came with Armv8.2, as an option.
bool has_neon() {
#if defined(__APPLE__)
    int found = 0;
    std::size_t size = sizeof found;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, nullptr, 0) == 0 && found != 0;
#elif defined(__linux__)
    constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP, which older headers lack
    return (getauxval(AT_HWCAP) & kDotProducts) != 0;
#else
    return false;
#endif
}

const Tier kNeon = {"neon", has_neon, neon::kKernels, count(neon::kKernels), neon::kFormats, neon::kFormatCount};
#endif

}  // namespace

const Kernel *Tier::kernel(const char *wanted) const {
    for (int i = 0; i < kernel_count; ++i)
        if (std::strcmp(kernels[i]->name, wanted) == 0) return kernels[i];
    return nullptr;
}

const Format *Tier::format(const char *wanted) const {
    for (int i = 0; i < format_count; ++i)
        if (std::strcmp(formats[i].name, wanted) == 0) return &formats[i];
    return nullptr;
}

std::vector<const Tier *> tiers() {
    std::vector<const Tier *> found = {&kGeneric};
#if SHOHIN_HAS_AVX2
    if (kAvx2.runs_here()) found.push_back(&kAvx2);
#endif
#if SHOHIN_HAS_AVX512
    if (kAvx512.runs_here()) found.push_back(&kAvx512);
#endif
#if SHOHIN_HAS_NEON
    if (kNeon.runs_here()) found.push_back(&kNeon);
#endif
    return found;
}

const Tier *find_tier(const char *name) {
    for (const Tier *tier : tiers())
        if (std::strcmp(tier->name, name) == 0) return tier;
    return nullptr;
}

}  // namespace shohin
