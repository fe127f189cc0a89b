// The functions of src/shohin/devices/cuda/ptx.cuh in plain C++. Fragments lie as the PTX ISA has them.
#pragma once

#include "matrix.hpp"

inline void wait_for_previous() { emulator::emulator_wait_for_previous(); }
inline void let_next_start() {}
inline void another_block_waits() { emulator::emulator_end_early(); }
inline void reads_from_before_the_graph() { emulator::emulator_read_early(); }

inline void mma_b1(int (&c)[4], unsigned a0, unsigned a1, unsigned b, EMULATOR_SITE) {
    emulator::BitProduct operand = {c, a0, a1, b};
    emulator::emulator_meet_all(emulator::emulator_do_bits, &operand, {"mma_b1", file, line});
}

inline void mma_b1_first(int (&c)[4], unsigned a0, unsigned a1, unsigned b, EMULATOR_SITE) {
    for (int& value : c) value = 0;
    emulator::BitProduct operand = {c, a0, a1, b};
    emulator::emulator_meet_all(emulator::emulator_do_bits, &operand, {"mma_b1_first", file, line});
}

inline void mma_s8(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], EMULATOR_SITE) {
    emulator::Product<int> operand = {c, a, b};
    emulator::emulator_meet_all(emulator::emulator_do_bytes, &operand, {"mma_s8", file, line});
}

inline void mma_f16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], EMULATOR_SITE) {
    emulator::Product<float> operand = {c, a, b};
    emulator::emulator_meet_all(emulator::emulator_do_halves, &operand, {"mma_f16", file, line});
}

inline void mma_bf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], EMULATOR_SITE) {
    emulator::Product<float> operand = {c, a, b};
    emulator::emulator_meet_all(emulator::emulator_do_bfloats, &operand, {"mma_bf16", file, line});
}

inline void load_matrix_x4(unsigned (&r)[4], const void* shared, EMULATOR_SITE) {
    emulator::load_matrix<4, false>(r, shared, {"load_matrix_x4", file, line});
}

inline void load_matrix_x4_transposed(unsigned (&r)[4], const void* shared, EMULATOR_SITE) {
    emulator::load_matrix<4, true>(r, shared, {"load_matrix_x4_transposed", file, line});
}

inline void load_matrix_x2(unsigned (&r)[2], const void* shared, EMULATOR_SITE) {
    emulator::load_matrix<2, false>(r, shared, {"load_matrix_x2", file, line});
}

inline void load_matrix_x2_transposed(unsigned (&r)[2], const void* shared, EMULATOR_SITE) {
    emulator::load_matrix<2, true>(r, shared, {"load_matrix_x2_transposed", file, line});
}

inline void copy_async_16(void* shared, const void* global, EMULATOR_SITE) {
    emulator::emulator_copy(shared, global, 16, {"copy_async_16", file, line});
}

inline void copy_async_4(void* shared, const void* global, EMULATOR_SITE) {
    emulator::emulator_copy(shared, global, 4, {"copy_async_4", file, line});
}

inline void copy_async_commit() { emulator::emulator_copy_commit(); }

template <int N>
void copy_async_wait() {
    emulator::emulator_copy_wait(N);
}

inline uint4 load_streaming(const uint4* p) { return *p; }

inline void keep_in_register(int&) {}

template <class T>
inline void keep_in_register(const T*&) {}

inline float max_or_nan(float a, float b) { return a != a || b != b ? NAN : fmaxf(a, b); }

inline float half_to_float(unsigned short bits) { return emulator::from_half(bits); }
inline unsigned short float_to_half(float value) { return emulator::to_half(value); }
inline unsigned pack_half2(float low, float high) { return emulator::to_half(low) | unsigned(emulator::to_half(high)) << 16; }
inline unsigned pack_bf16x2(float low, float high) {
    return emulator::to_bfloat(low) | unsigned(emulator::to_bfloat(high)) << 16;
}

inline float fast_exp2(float x) { return emulator::flush(exp2f(emulator::flush(x))); }
