// CUDA's functions of one thread. Rounding is what the names say; the compiler must not contract.
#pragma once

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <type_traits>

#include "warp.hpp"

namespace emulator {

template <class To, class From>
To bits_of(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

// As cvt does it: NaN is 0 and what does not fit becomes the nearest that does.
template <class To>
To to_integer(double rounded) {
    constexpr bool is_signed = std::is_signed_v<To>;
    constexpr int width = 8 * sizeof(To) - is_signed;
    constexpr To most = To(~0ull >> (64 - width));
    if (rounded != rounded) return 0;
    if (rounded >= ldexp(1.0, width)) return most;
    if (rounded < (is_signed ? -ldexp(1.0, width) : 0.0)) return is_signed ? To(-most - 1) : 0;
    return To(rounded);
}

inline float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

}  // namespace emulator

inline int __float_as_int(float x) { return emulator::bits_of<int>(x); }
inline unsigned __float_as_uint(float x) { return emulator::bits_of<unsigned>(x); }
inline float __int_as_float(int x) { return emulator::bits_of<float>(x); }
inline float __uint_as_float(unsigned x) { return emulator::bits_of<float>(x); }
inline long long __double_as_longlong(double x) { return emulator::bits_of<long long>(x); }
inline double __longlong_as_double(long long x) { return emulator::bits_of<double>(x); }

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __frsqrt_rn(float a) { return float(1.0 / sqrt(double(a))); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
// About two ulp on a GPU.
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return float(pow(10.0, double(x))); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return float(1.0 / sqrt(double(x))); }
inline float fdividef(float a, float b) { return a / b; }

inline int __float2int_rn(float x) { return emulator::to_integer<int>(rint(double(x))); }
inline int __float2int_rz(float x) { return emulator::to_integer<int>(trunc(double(x))); }
inline int __float2int_rd(float x) { return emulator::to_integer<int>(floor(double(x))); }
inline int __float2int_ru(float x) { return emulator::to_integer<int>(ceil(double(x))); }
inline unsigned __float2uint_rn(float x) { return emulator::to_integer<unsigned>(rint(double(x))); }
inline unsigned __float2uint_rz(float x) { return emulator::to_integer<unsigned>(trunc(double(x))); }
inline long long __float2ll_rn(float x) { return emulator::to_integer<long long>(rint(double(x))); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline float __double2float_rn(double x) { return float(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
// Byte i of the result is the one of the eight that nibble i of the selector names; with its top bit, that byte's sign.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    unsigned long long bytes = (unsigned long long)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned nibble = selector >> (4 * i) & 15, byte = unsigned(bytes >> (8 * (nibble & 7))) & 255;
        if (nibble & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned((((unsigned long long)high << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)high << 32 | low) >> (by & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) {
    return unsigned((((unsigned long long)high << 32 | low) << (by < 32 ? by : 32)) >> 32);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)high << 32 | low) >> (by < 32 ? by : 32));
}
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline int __mul24(int a, int b) { return int(((long long)(a << 8) >> 8) * ((long long)(b << 8) >> 8)); }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a > b ? a - b : b - a) + c; }
inline int __dp4a(int a, int b, int c) {
    unsigned sum = unsigned(c);
    for (int i = 0; i < 32; i += 8) sum += unsigned(int((signed char)(a >> i)) * int((signed char)(b >> i)));
    return int(sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
    return c;
}
#define EMULATOR_BYTES(NAME, VALUE)                                                \
    inline unsigned NAME(unsigned a, unsigned b) {                                 \
        unsigned result = 0;                                                       \
        for (int i = 0; i < 32; i += 8) {                                          \
            int x = (signed char)(a >> i), y = (signed char)(b >> i);              \
            unsigned ux = a >> i & 255, uy = b >> i & 255;                         \
            (void)x, (void)y, (void)ux, (void)uy;                                  \
            result |= (unsigned(VALUE) & 255) << i;                                \
        }                                                                          \
        return result;                                                             \
    }
EMULATOR_BYTES(__vadd4, x + y)
EMULATOR_BYTES(__vsub4, x - y)
EMULATOR_BYTES(__vsubss4, x - y < -128 ? -128 : x - y > 127 ? 127 : x - y)
EMULATOR_BYTES(__vaddss4, x + y < -128 ? -128 : x + y > 127 ? 127 : x + y)
EMULATOR_BYTES(__vmaxs4, x > y ? x : y)
EMULATOR_BYTES(__vmins4, x < y ? x : y)
EMULATOR_BYTES(__vmaxu4, ux > uy ? ux : uy)
EMULATOR_BYTES(__vminu4, ux < uy ? ux : uy)
EMULATOR_BYTES(__vcmpeq4, ux == uy ? 255 : 0)
EMULATOR_BYTES(__vcmpne4, ux != uy ? 255 : 0)
#undef EMULATOR_BYTES

// One thread runs at a time, so a plain read and write is atomic.
#define EMULATOR_ATOMIC(NAME, VALUE)                                \
    template <class T>                                              \
    T NAME(T* address, std::common_type_t<T> value) {               \
        T old = *address;                                           \
        *address = VALUE;                                           \
        return old;                                                 \
    }
EMULATOR_ATOMIC(atomicAdd, T(old + value))
EMULATOR_ATOMIC(atomicSub, T(old - value))
EMULATOR_ATOMIC(atomicMin, old < value ? old : value)
EMULATOR_ATOMIC(atomicMax, old > value ? old : value)
EMULATOR_ATOMIC(atomicAnd, T(old & value))
EMULATOR_ATOMIC(atomicOr, T(old | value))
EMULATOR_ATOMIC(atomicXor, T(old ^ value))
EMULATOR_ATOMIC(atomicExch, value)
EMULATOR_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))
EMULATOR_ATOMIC(atomicDec, old == 0 || old > value ? value : T(old - 1))
#undef EMULATOR_ATOMIC
template <class T>
T atomicCAS(T* address, std::common_type_t<T> expected, std::common_type_t<T> value) {
    T old = *address;
    if (old == expected) *address = value;
    return old;
}

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { emulator::emulator_yield(); }
inline long long clock64() { return 0; }
[[noreturn]] inline void __trap(EMULATOR_SITE) { emulator::emulator_fail({"__trap", file, line}, "was reached"); }

template <class T>
T __ldg(const T* p) { return *p; }
template <class T>
T __ldcs(const T* p) { return *p; }
template <class T>
T __ldcg(const T* p) { return *p; }
template <class T>
T __ldca(const T* p) { return *p; }
template <class T>
T __ldlu(const T* p) { return *p; }
template <class T>
T __ldcv(const T* p) { return *p; }
template <class T>
void __stcs(T* p, T value) { *p = value; }
template <class T>
void __stcg(T* p, T value) { *p = value; }
template <class T>
void __stwt(T* p, T value) { *p = value; }

#define EMULATOR_EXTREMES(T, A, B)                                       \
    inline T min(A a, B b) { return (T)a < (T)b ? (T)a : (T)b; }         \
    inline T max(A a, B b) { return (T)a > (T)b ? (T)a : (T)b; }
EMULATOR_EXTREMES(int, int, int)
EMULATOR_EXTREMES(unsigned, unsigned, unsigned)
EMULATOR_EXTREMES(unsigned, int, unsigned)
EMULATOR_EXTREMES(unsigned, unsigned, int)
EMULATOR_EXTREMES(long long, long long, long long)
EMULATOR_EXTREMES(unsigned long long, unsigned long long, unsigned long long)
#undef EMULATOR_EXTREMES
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
