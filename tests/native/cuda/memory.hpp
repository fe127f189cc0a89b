// Device memory of the emulated GPU: every allocation between pages that nobody may touch.
#pragma once

#include <stddef.h>
#include <stdint.h>

// NaN as float32, float16 and bfloat16, and far out of range as an index.
constexpr uint16_t POISON = 0x7fd5;

void fill_poison(void* memory, size_t nbytes);
bool is_poison(const void* memory, size_t nbytes);

// Says in words where an address lies; writes at most ``room`` bytes.
void describe_address(const void* address, char* text, size_t room);

// Forbids device memory that kernels wrote, until ``allow_written``; learning which memory that is goes through the
// same faults. See emulator_learn in memory.cpp.
void forbid_written();
void allow_written();
void learn_writes(bool on);
// Whether a fault at address was one of learning, and is dealt with.
bool learned(const void* address);
bool is_forbidden(const void* address);

extern "C" {
const void* emulator_damaged();
size_t emulator_nbytes(const void* pointer);
}
