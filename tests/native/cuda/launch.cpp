// A grid: its blocks one after the other, in an order that comes from the seed.
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <numeric>

#include "memory.hpp"
#include "state.hpp"

namespace emulator {

namespace {

// Bytes of shared variables that a kernel may have, and what the alignment of the dynamic part may add.
constexpr size_t STATIC_LIMIT = 48 * 1024, PADDING = 128;
// Between the tops of neighbouring stacks, so that they don't fall into the same cache sets.
constexpr size_t STAGGER = 64 * 5;

// Poisons the block's shared memory except the guard behind the dynamic part, which is poison since the launch began.
void poison_shared() {
    unsigned char* guard = state.launch->dynamic + state.launch->shared;
    fill_poison(state.shared, guard - state.shared);
    unsigned char* rest = guard + GUARD;
    if (rest < state.shared + state.shared_bytes) fill_poison(rest, state.shared + state.shared_bytes - rest);
}

void run_block(unsigned index) {
    const Launch& launch = *state.launch;
    emulator_grid.block = {index % launch.size[0], index / launch.size[0] % launch.size[1],
                           index / launch.size[0] / launch.size[1]};
    poison_shared();
    state.running = launch.threads;
    state.ready_warps = 0;
    state.barrier = {};
    state.barrier.all = 1;
    state.waited = state.early = state.excused = false;
    state.downwards = random_number() & 1;
    memset(state.at_barrier, 0, sizeof state.at_barrier);
    for (unsigned t = 0; t < launch.threads; t++) {
        Thread& thread = state.threads[t];
        thread.waited = false;
        thread.copies.clear();
        thread.groups.clear();
        start_context(thread.context, state.stacks + t * STACK, STACK - t % 64 * STAGGER, run_thread);
    }
    for (unsigned w = 0; w * 32 < launch.threads; w++) {
        unsigned lanes = launch.threads - w * 32 < 32 ? launch.threads - w * 32 : 32;
        unsigned exists = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
        state.warps[w].exists = state.warps[w].ready = exists;
        state.warps[w].waiting = 0;
        state.ready_warps |= 1u << w;
    }
    if (launch.in_graph) forbid_written();
    unsigned first = random_number() % ((launch.threads + 31) / 32);
    Thread& thread = pick_lane(first, state.downwards ? 0 : 31);
    emulator_now = &thread.place;
    switch_context(state.main, thread.context);
    allow_written();
    if (!state.message.empty()) return;
    if (launch.in_graph && !state.waited && !state.excused)
        state.message = block_name() + ": no thread called wait_for_previous before the block ended";
    else if (!is_poison(launch.dynamic + launch.shared, GUARD))
        state.message = block_name() + format(": wrote past its %u bytes of dynamic shared memory", launch.shared);
}

struct Segment {
    uintptr_t code;
    unsigned char* start;
    size_t nbytes;
};

// Finds the calling thread's copy of the shared variables (thread_local to the compiler) of the object with this code.
int find_shared(dl_phdr_info* info, size_t, void* data) {
    Segment& found = *static_cast<Segment*>(data);
    bool inside = false;
    size_t nbytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)& part = info->dlpi_phdr[i];
        if (part.p_type == PT_LOAD && found.code - (info->dlpi_addr + part.p_vaddr) < part.p_memsz) inside = true;
        if (part.p_type == PT_TLS) nbytes = part.p_memsz;
    }
    if (!inside) return 0;
    found.start = static_cast<unsigned char*>(info->dlpi_tls_data);
    found.nbytes = nbytes;
    return 1;
}

void prepare_threads() {
    if (state.stacks != nullptr) return;
    void* stacks = mmap(nullptr, MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stacks == MAP_FAILED) abort();
    state.stacks = static_cast<unsigned char*>(stacks);
    for (unsigned t = 0; t < MAX_THREADS; t++) {
        mprotect(state.stacks + t * STACK, sysconf(_SC_PAGESIZE), PROT_NONE);
        state.threads[t].place = {{t, 0, 0}, t % 32};
        state.threads[t].warp = t / 32;
    }
}

void run_blocks(const Launch& launch) {
    unsigned blocks = launch.size[0] * launch.size[1] * launch.size[2];
    std::vector<unsigned> order(blocks);
    std::iota(order.begin(), order.end(), 0u);
    for (unsigned i = blocks; i > 1; i--) std::swap(order[i - 1], order[random_number() % i]);
    state.some_waited = false;
    for (unsigned index : order) {
        run_block(index);
        if (!state.message.empty()) return;
    }
    if (launch.in_graph && !state.some_waited)
        state.message = format("%s: no block called wait_for_previous", launch.name);
    if (const void* damaged = emulator_damaged())
        state.message = format("%s: wrote beside the allocation at %p of %zu bytes", launch.name, damaged,
                               emulator_nbytes(damaged));
}

}  // namespace

extern "C" {

// Runs a grid. Null, or what went wrong, and in ``code`` the address of the instruction if it was a fault.
const char* emulator_launch(const Launch* launch, uintptr_t* code) {
    Held held(runtime_lock);
    static std::string message;
    prepare_threads();
    Segment segment = {reinterpret_cast<uintptr_t>(launch->invoke), nullptr, 0};
    dl_iterate_phdr(find_shared, &segment);
    state.launch = launch;
    state.shared = segment.start;
    state.shared_bytes = segment.nbytes;
    state.random = launch->seed;
    state.message.clear();
    state.copying = nullptr;
    state.code = 0;
    fill_poison(state.shared, state.shared_bytes);
    emulator_grid.block_size = {launch->threads, 1, 1};
    emulator_grid.size = {launch->size[0], launch->size[1], launch->size[2]};
    size_t variables = state.shared_bytes - GUARD - launch->shared;
    if (variables > STATIC_LIMIT + PADDING || variables + launch->shared > launch->shared_limit + PADDING)
        state.message = format("%s: %zu bytes of shared variables and %u of dynamic shared memory; a block may have %u, "
                               "variables %zu of them", launch->name, variables, launch->shared, launch->shared_limit,
                               STATIC_LIMIT);
    catch_faults();
    if (state.message.empty()) run_blocks(*launch);
    release_faults();
    *code = state.code;
    message = state.message;
    return message.empty() ? nullptr : message.c_str();
}
}

}  // namespace emulator
