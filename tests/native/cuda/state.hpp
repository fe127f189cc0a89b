// The block that runs, and its threads.
#pragma once

#include <string>
#include <vector>

#include "fiber.hpp"
#include "runtime.hpp"

namespace emulator {

constexpr unsigned MAX_THREADS = 1024;
constexpr size_t STACK = 128 * 1024;

struct Copy {
    void* target;
    const void* source;
    int nbytes;
};

struct Thread {
    Place place;   // first: emulator_now points here
    Context context;
    unsigned warp;
    bool waited;   // has called wait_for_previous
    std::vector<Copy> copies;
    std::vector<size_t> groups;   // ends of the committed groups in copies
};

struct Meeting {
    Perform perform;
    unsigned mask;
    Site site;
};

struct Warp {
    unsigned exists, ready, waiting;   // lanes; waiting: in a meeting
    void* operands[32];
    Meeting meetings[32];
};

struct Barrier {
    unsigned arrived;
    int any, all, count, result;
    char kind;
};

struct State {
    const Launch* launch;
    Thread threads[MAX_THREADS];
    Warp warps[MAX_THREADS / 32];
    Site barrier_sites[MAX_THREADS];   // of threads that wait at the barrier
    bool at_barrier[MAX_THREADS];
    Barrier barrier;
    unsigned ready_warps, running;   // running: threads that have not ended
    bool downwards, waited, early, excused;
    bool some_waited;   // a block of the launch has called wait_for_previous
    uint64_t random;
    unsigned char* shared;
    size_t shared_bytes;
    Context main;
    unsigned char* stacks;
    std::string message;
    uintptr_t code;   // where a fault happened
    const Site* copying;
};

extern State state;

inline Thread& current() { return *reinterpret_cast<Thread*>(emulator_now); }

uint64_t random_number();

// A thread of a warp whose turn it is after a lane.
Thread& pick_lane(unsigned warp, unsigned after);

// What a fiber does: the kernel, then it gives way for good.
void run_thread();

// printf into a string.
std::string format(const char* text, ...);
std::string block_name();
std::string site_name(const Site& site);

// Turns faults of the calling thread into messages, between the two calls.
void catch_faults();
void release_faults();

}  // namespace emulator
