// Device memory of the emulated GPU: every allocation between pages that nobody may touch.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <mutex>

// Held by whatever uses the allocations or runs a kernel.
extern std::recursive_mutex runtime_lock;
using Held = std::lock_guard<std::recursive_mutex>;

// NaN as float32, float16 and bfloat16, and far out of range as an index.
constexpr uint16_t POISON = 0x7fd5;

void fill_poison(void* memory, size_t nbytes);
bool is_poison(const void* memory, size_t nbytes);

// Says in words where an address lies; writes at most ``room`` bytes.
void describe_address(const void* address, char* text, size_t room);

// Allocations that kernels of graphs wrote to. Which they are is learned from faults: see emulator_learn.
void forbid_written();
void allow_written();
bool is_forbidden(const void* address);
// Whether a fault at an address was the first write to an allocation; it may be tried again.
bool learn_write(const void* address);

extern "C" {
const void* emulator_damaged();
size_t emulator_nbytes(const void* pointer);
}
