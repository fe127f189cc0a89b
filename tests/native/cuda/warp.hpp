// Barriers and the operations of a whole warp. Each lane hands over its operand; the last one to come does it for all.
#pragma once

#include <string.h>

#include "runtime.hpp"

// Every call remembers where in the kernel it stands.
#define EMULATOR_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMULATOR_SITE) { emulator::emulator_barrier(0, 0, {"__syncthreads", file, line}); }
inline int __syncthreads_or(int predicate, EMULATOR_SITE) {
    return emulator::emulator_barrier('|', predicate, {"__syncthreads_or", file, line});
}
inline int __syncthreads_and(int predicate, EMULATOR_SITE) {
    return emulator::emulator_barrier('&', predicate, {"__syncthreads_and", file, line});
}
inline int __syncthreads_count(int predicate, EMULATOR_SITE) {
    return emulator::emulator_barrier('+', predicate, {"__syncthreads_count", file, line});
}

namespace emulator {

inline unsigned next_lane(unsigned& left) {
    unsigned lane = __builtin_ctz(left);
    left &= left - 1;
    return lane;
}

inline void do_nothing(void* const*, unsigned) {}

struct Vote {
    bool predicate;
    unsigned result;
};

inline void do_ballot(void* const* operands, unsigned mask) {
    unsigned votes = 0;
    for (unsigned left = mask; left;) {
        unsigned lane = next_lane(left);
        votes |= unsigned(static_cast<Vote*>(operands[lane])->predicate) << lane;
    }
    for (unsigned left = mask; left;) static_cast<Vote*>(operands[next_lane(left)])->result = votes;
}

// source: the lane whose value this one gets, or one out of its part of the warp: then it keeps its own.
template <class T>
struct Shuffle {
    T value, result;
    unsigned source;
};

template <class T>
void do_shuffle(void* const* operands, unsigned mask) {
    for (unsigned left = mask; left;) {
        Shuffle<T>& mine = *static_cast<Shuffle<T>*>(operands[next_lane(left)]);
        if (mask >> mine.source & 1)
            mine.result = static_cast<Shuffle<T>*>(operands[mine.source])->value;
        else
            memset(&mine.result, 0xd5, sizeof(T));   // undefined: the source takes no part
    }
}

template <class T>
T shuffle(unsigned mask, T value, unsigned source, const Site& site) {
    Shuffle<T> operand = {value, value, source};
    emulator_meet(do_shuffle<T>, mask, &operand, site);
    return operand.result;
}

template <class T>
struct Reduction {
    T value, result;
};

template <class T, class Combine>
void do_reduce(void* const* operands, unsigned mask) {
    unsigned left = mask;
    T total = static_cast<Reduction<T>*>(operands[next_lane(left)])->value;
    while (left) total = Combine()(total, static_cast<Reduction<T>*>(operands[next_lane(left)])->value);
    for (left = mask; left;) static_cast<Reduction<T>*>(operands[next_lane(left)])->result = total;
}

template <class T>
void do_match(void* const* operands, unsigned mask) {
    for (unsigned left = mask; left;) {
        Reduction<T>& mine = *static_cast<Reduction<T>*>(operands[next_lane(left)]);
        unsigned same = 0;
        for (unsigned others = mask; others;) {
            unsigned lane = next_lane(others);
            same |= unsigned(static_cast<Reduction<T>*>(operands[lane])->value == mine.value) << lane;
        }
        mine.result = T(same);
    }
}

template <class T, class Combine>
T reduce(unsigned mask, T value, const Site& site) {
    Reduction<T> operand = {value, value};
    emulator_meet(do_reduce<T, Combine>, mask, &operand, site);
    return operand.result;
}

#define EMULATOR_COMBINE(NAME, VALUE)                    \
    struct NAME {                                        \
        template <class T>                               \
        T operator()(T a, T b) const {                   \
            return VALUE;                                \
        }                                                \
    };
EMULATOR_COMBINE(Sum, a + b)
EMULATOR_COMBINE(Least, a < b ? a : b)
EMULATOR_COMBINE(Greatest, a > b ? a : b)
EMULATOR_COMBINE(AllBits, a & b)
EMULATOR_COMBINE(AnyBits, a | b)
EMULATOR_COMBINE(OddBits, a ^ b)
#undef EMULATOR_COMBINE

inline unsigned ballot(unsigned mask, bool predicate, const Site& site) {
    Vote operand = {predicate, 0};
    emulator_meet(do_ballot, mask, &operand, site);
    return operand.result;
}

}  // namespace emulator

inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_SITE) {
    emulator::emulator_meet(emulator::do_nothing, mask, nullptr, {"__syncwarp", file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATOR_SITE) {
    return emulator::ballot(mask, predicate != 0, {"__ballot_sync", file, line});
}
inline int __any_sync(unsigned mask, int predicate, EMULATOR_SITE) {
    return emulator::ballot(mask, predicate != 0, {"__any_sync", file, line}) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMULATOR_SITE) {
    return emulator::ballot(mask, predicate == 0, {"__all_sync", file, line}) == 0;
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATOR_SITE) {
    unsigned lane = emulator::emulator_now->lane;
    unsigned from = (lane & ~(width - 1u)) | (source & (width - 1u));
    return emulator::shuffle(mask, value, from, {"__shfl_sync", file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMULATOR_SITE) {
    unsigned lane = emulator::emulator_now->lane, from = lane ^ bits;
    // Lanes of later parts of the warp are out of reach, those of earlier ones are not.
    if (from > (lane | (width - 1u))) from = lane;
    return emulator::shuffle(mask, value, from, {"__shfl_xor_sync", file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATOR_SITE) {
    unsigned lane = emulator::emulator_now->lane, from = lane + by;
    if (from > (lane | (width - 1u))) from = lane;
    return emulator::shuffle(mask, value, from, {"__shfl_down_sync", file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATOR_SITE) {
    unsigned lane = emulator::emulator_now->lane;
    unsigned from = lane % width < by ? lane : lane - by;
    return emulator::shuffle(mask, value, from, {"__shfl_up_sync", file, line});
}

#define EMULATOR_REDUCE(NAME, T, COMBINE)                                                     \
    inline T NAME(unsigned mask, T value, EMULATOR_SITE) {                                    \
        return emulator::reduce<T, emulator::COMBINE>(mask, value, {#NAME, file, line});      \
    }
EMULATOR_REDUCE(__reduce_add_sync, unsigned, Sum)
EMULATOR_REDUCE(__reduce_add_sync, int, Sum)
EMULATOR_REDUCE(__reduce_min_sync, unsigned, Least)
EMULATOR_REDUCE(__reduce_min_sync, int, Least)
EMULATOR_REDUCE(__reduce_max_sync, unsigned, Greatest)
EMULATOR_REDUCE(__reduce_max_sync, int, Greatest)
EMULATOR_REDUCE(__reduce_and_sync, unsigned, AllBits)
EMULATOR_REDUCE(__reduce_or_sync, unsigned, AnyBits)
EMULATOR_REDUCE(__reduce_xor_sync, unsigned, OddBits)
#undef EMULATOR_REDUCE

inline unsigned __match_any_sync(unsigned mask, unsigned value, EMULATOR_SITE) {
    emulator::Reduction<unsigned> operand = {value, 0};
    emulator::emulator_meet(emulator::do_match<unsigned>, mask, &operand, {"__match_any_sync", file, line});
    return operand.result;
}
