// What kernels under emulation ask of the runtime: one fiber a CUDA thread, one block after the other.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};

namespace emulator {

// Where a thread waits: the call as it stands in the kernel.
struct Site {
    const char* call;
    const char* file;
    int line;
};

// Does one warp-wide operation for all lanes of mask; operands[lane] is what that lane handed to ``meet``.
using Perform = void (*)(void* const* operands, unsigned mask);

struct Place {
    uint3 thread;
    unsigned lane;
};

struct Grid {
    uint3 block;
    dim3 block_size, size;
};

#pragma GCC visibility push(default)
extern "C" {
extern Place* emulator_now;   // the thread that runs
extern Grid emulator_grid;

// Waits for every lane of mask to call it with the same perform and mask, then has perform done once.
void emulator_meet(Perform perform, unsigned mask, void* operand, const Site& site);

// The same for all 32 lanes, which must exist.
void emulator_meet_all(Perform perform, void* operand, const Site& site);

// Waits for the whole block. kind: '\0' barrier, '|' or, '&' and, '+' count of the predicates.
int emulator_barrier(char kind, int predicate, const Site& site);

// Lets the other threads of the block go on.
void emulator_yield();

// cp.async: the target is poison until the wait that covers the copy.
void emulator_copy(void* shared, const void* global, int nbytes, const Site& site);
void emulator_copy_commit();
void emulator_copy_wait(int pending);

// griddepcontrol.wait.
void emulator_wait_for_previous();
void emulator_read_early();
void emulator_end_early();

// Whether an address lies in the block's shared memory.
bool emulator_is_shared(const void* address);

// Ends the launch with a message.
[[noreturn]] void emulator_fail(const Site& site, const char* text);
}
#pragma GCC visibility pop

// A kernel with its arguments, as entry.hpp describes it and as a driver launches it.
struct Launch {
    const char* name;
    void (*invoke)(void* const* arguments);
    void* const* arguments;
    unsigned char* dynamic;   // dynamic shared memory, followed by GUARD bytes
    uint64_t seed;
    unsigned size[3];
    unsigned threads;
    unsigned shared;          // bytes of dynamic shared memory
    unsigned shared_limit;
    unsigned in_graph;        // whether wait_for_previous is required, and needed to reach what kernels write
    unsigned seconds;         // of processor time that it may take
};

constexpr size_t GUARD = 4096;

}  // namespace emulator
