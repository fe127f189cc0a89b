// Blocks one after the other, each CUDA thread a fiber. A fiber runs until it waits for others: a warp's collective
// costs one switch a lane. Which warp goes on after a barrier, which way the lanes take turns and the order of the
// blocks come from a seed.
#include "runtime.hpp"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <numeric>
#include <string>
#include <vector>

#include "fiber.hpp"
#include "memory.hpp"

using namespace emulator;

namespace {

constexpr unsigned MAX_THREADS = 1024;
constexpr size_t STACK = 128 * 1024;
constexpr size_t STATIC_LIMIT = 48 * 1024, PADDING = 128;
// Between the tops of neighbouring stacks, so that they don't fall into the same cache sets.
constexpr size_t STAGGER = 64 * 5;

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
    bool downwards, waited;
    uint64_t random;
    unsigned char* shared;
    size_t shared_bytes;
    Context main;
    unsigned char* stacks;
    std::string message;
    uintptr_t code;   // where a fault happened
    const Site* copying;
};

State state;

uint64_t random_number() {
    state.random += 0x9e3779b97f4a7c15ull;
    uint64_t z = state.random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

Thread& current() { return *reinterpret_cast<Thread*>(emulator_now); }

std::string format(const char* text, ...) {
    char buffer[1024];
    va_list list;
    va_start(list, text);
    vsnprintf(buffer, sizeof buffer, text, list);
    va_end(list);
    return buffer;
}

std::string block_name() {
    const uint3& b = emulator_grid.block;
    return format("%s, block (%u, %u, %u)", state.launch->name, b.x, b.y, b.z);
}

std::string site_name(const Site& site) {
    const char* slash = strrchr(site.file, '/');
    return format("%s at %s:%d", site.call, slash ? slash + 1 : site.file, site.line);
}

// Abandons all fibers of the block.
[[noreturn]] void stop(const std::string& message) {
    state.message = message;
    switch_context(current().context, state.main);
    __builtin_unreachable();
}

[[noreturn]] void stop_here(const std::string& message) {
    stop(format("%s, thread %u: ", block_name().c_str(), current().place.thread.x) + message);
}

// Threads in the same situation, as one line.
std::string who(const std::vector<unsigned>& threads) {
    std::string text;
    for (size_t i = 0; i < threads.size();) {
        size_t j = i;
        while (j + 1 < threads.size() && threads[j + 1] == threads[j] + 1) j++;
        if (text.size() > 120) return text + ", ...";
        text += text.empty() ? "" : ", ";
        text += i == j ? format("%u", threads[i]) : format("%u-%u", threads[i], threads[j]);
        i = j + 1;
    }
    return text;
}

// What each thread waits for, when none can go on.
[[noreturn]] void stop_deadlock() {
    std::vector<std::pair<std::string, std::vector<unsigned>>> groups;
    for (unsigned t = 0; t < state.launch->threads; t++) {
        const Warp& warp = state.warps[t / 32];
        std::string where = "ended";
        if (warp.waiting >> t % 32 & 1) {
            const Meeting& m = warp.meetings[t % 32];
            where = "in " + site_name(m.site) + format(" with mask %08x", m.mask);
        } else if (state.at_barrier[t]) {
            where = "in " + site_name(state.barrier_sites[t]);
        }
        auto at = groups.begin();
        while (at != groups.end() && at->first != where) ++at;
        if (at == groups.end()) at = groups.insert(at, {where, {}});
        at->second.push_back(t);
    }
    std::string text = block_name() + ": threads wait for each other:";
    for (auto& [where, threads] : groups) text += "\n  " + where + ": threads " + who(threads);
    stop(text);
}

Thread& pick_lane(unsigned warp, unsigned after) {
    unsigned ready = state.warps[warp].ready, lane;
    if (state.downwards) {
        unsigned below = ready & ((1u << after) - 1);
        lane = 31 - __builtin_clz(below ? below : ready);
    } else {
        unsigned above = ready & ~((2u << after) - 1);
        lane = __builtin_ctz(above ? above : ready);
    }
    return state.threads[warp * 32 + lane];
}

unsigned nth_bit(unsigned bits, unsigned n) {
    while (n--) bits &= bits - 1;
    return __builtin_ctz(bits);
}

// Whose turn it is when the current thread can't go on.
Thread& next_thread() {
    const Thread& self = current();
    if (state.warps[self.warp].ready) return pick_lane(self.warp, self.place.lane);
    state.ready_warps &= ~(1u << self.warp);
    if (state.ready_warps == 0) stop_deadlock();
    unsigned count = __builtin_popcount(state.ready_warps);
    unsigned warp = nth_bit(state.ready_warps, count == 1 ? 0 : random_number() % count);
    return pick_lane(warp, state.downwards ? 0 : 31);
}

void switch_to(Thread& from, Thread& to) {
    if (&from == &to) return;
    emulator_now = &to.place;
    switch_context(from.context, to.context);
}

void give_way() {
    Thread& self = current();
    switch_to(self, next_thread());
}

void do_copies(Thread& thread, size_t count) {
    for (size_t i = 0; i < count; i++) memcpy(thread.copies[i].target, thread.copies[i].source, thread.copies[i].nbytes);
    thread.copies.erase(thread.copies.begin(), thread.copies.begin() + count);
}

void run_thread() {
    state.launch->invoke(state.launch->arguments);
    Thread& self = current();
    Warp& warp = state.warps[self.warp];
    warp.ready &= ~(1u << self.place.lane);
    // Copies that it did not wait for never arrive.
    if (--state.running == 0) switch_context(self.context, state.main);
    give_way();
    __builtin_unreachable();
}

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
    state.waited = false;
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
    if (launch.in_graph && !state.waited)
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

#if defined(EMULATOR_OWN_SWITCH)

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGVTALRM};
struct sigaction before[4];
pthread_t runner;

void on_fault(int signal, siginfo_t* info, void* data) {
    if (!pthread_equal(runner, pthread_self())) {
        // Not ours: the alarm goes where it belongs, and a fault happens again and then ends the process.
        if (signal == SIGVTALRM)
            pthread_kill(runner, signal);
        else
            ::signal(signal, SIG_DFL);
        return;
    }
    if (signal == SIGSEGV && learn_write(info->si_addr)) return;
    ucontext_t* context = static_cast<ucontext_t*>(data);
    char where[200];
    describe_address(info->si_addr, where, sizeof where);
    const char* what = "reached ";
    Thread& self = current();
    unsigned char* stack = state.stacks + (&self - state.threads) * STACK;
    unsigned char* address = static_cast<unsigned char*>(info->si_addr);
    if (signal == SIGSEGV && is_forbidden(address)) {
        what = "reached, before any thread of its block called wait_for_previous, ";
    } else if (signal == SIGVTALRM) {
        what = "does not end; blocks must not wait for other blocks, nor threads without a barrier or __nanosleep";
        where[0] = 0;
    } else if (signal == SIGILL) {
        what = "did what is undefined: a misaligned address, an index outside an array or a shift by too much";
        where[0] = 0;
    } else if (address >= stack && address < stack + sysconf(_SC_PAGESIZE)) {
        what = "needs more stack than the emulator has";
        where[0] = 0;
    }
    state.message = format("%s, thread %u: %s%s", block_name().c_str(), self.place.thread.x, what, where);
    if (state.copying) state.message += " in " + site_name(*state.copying);
    state.code = context->uc_mcontext.gregs[REG_RIP];
    context->uc_mcontext.gregs[REG_RSP] = reinterpret_cast<greg_t>(state.main);
    context->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&emulator_resume);
}

void set_alarm(unsigned seconds) {
    itimerval timer = {};
    timer.it_value.tv_sec = seconds;
    setitimer(ITIMER_VIRTUAL, &timer, nullptr);
}

void catch_faults() {
    runner = pthread_self();
    static std::vector<unsigned char> stack(64 * 1024);
    stack_t alternative = {};
    alternative.ss_sp = stack.data();
    alternative.ss_size = stack.size();
    sigaltstack(&alternative, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &action, &before[i]);
    set_alarm(state.launch->seconds);
}

void release_faults() {
    set_alarm(0);
    for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &before[i], nullptr);
}

#else

void catch_faults() {}
void release_faults() {}

#endif

void run_blocks(const Launch& launch) {
    unsigned blocks = launch.size[0] * launch.size[1] * launch.size[2];
    std::vector<unsigned> order(blocks);
    std::iota(order.begin(), order.end(), 0u);
    for (unsigned i = blocks; i > 1; i--) std::swap(order[i - 1], order[random_number() % i]);
    for (unsigned index : order) {
        run_block(index);
        if (!state.message.empty()) return;
    }
    if (const void* damaged = emulator_damaged())
        state.message = format("%s: wrote beside the allocation at %p of %zu bytes", launch.name, damaged,
                               emulator_nbytes(damaged));
}

}  // namespace

namespace emulator {
extern "C" {

Place* emulator_now;
Grid emulator_grid;

void emulator_meet(Perform perform, unsigned mask, void* operand, const Site& site) {
    Thread& self = current();
    Warp& warp = state.warps[self.warp];
    unsigned lane = self.place.lane, bit = 1u << lane;
    unsigned asked = mask;
    mask &= warp.exists;
    if (!(mask & bit)) stop_here(site_name(site) + format(" with mask %08x, which leaves lane %u out", asked, lane));
    warp.operands[lane] = operand;
    warp.meetings[lane] = {perform, mask, site};
    warp.waiting |= bit;
    if ((warp.waiting & mask) == mask) {
        bool same = true;
        for (unsigned left = mask; left; left &= left - 1) {
            const Meeting& other = warp.meetings[__builtin_ctz(left)];
            if (other.mask == mask && other.perform != perform)
                stop_here(site_name(site) + ", where lane " + std::to_string(__builtin_ctz(left)) + " of its warp is in " +
                          site_name(other.site));
            same &= other.mask == mask;
        }
        if (same) {
            perform(warp.operands, mask);
            warp.waiting &= ~mask;
            warp.ready |= mask;
            return;
        }
    }
    warp.ready &= ~bit;
    give_way();
}

void emulator_meet_all(Perform perform, void* operand, const Site& site) {
    if (state.warps[current().warp].exists != 0xffffffffu) stop_here(site_name(site) + " in a warp of less than 32 threads");
    emulator_meet(perform, 0xffffffffu, operand, site);
}

int emulator_barrier(char kind, int predicate, const Site& site) {
    Thread& self = current();
    unsigned t = self.place.thread.x;
    Barrier& b = state.barrier;
    if (b.arrived == 0) b.kind = kind;
    if (b.kind != kind)
        for (unsigned other = 0; other < state.launch->threads; other++)
            if (state.at_barrier[other])
                stop_here(site_name(site) + format(", where thread %u is in ", other) +
                          site_name(state.barrier_sites[other]));
    b.arrived++;
    b.any |= predicate != 0;
    b.all &= predicate != 0;
    b.count += predicate != 0;
    if (b.arrived == state.launch->threads) {
        b = {0, 0, 1, 0, kind == '|' ? b.any : kind == '&' ? b.all : b.count, 0};
        memset(state.at_barrier, 0, state.launch->threads);
        for (unsigned w = 0; w * 32 < state.launch->threads; w++) {
            state.warps[w].ready = state.warps[w].exists;
            state.ready_warps |= 1u << w;
        }
        state.downwards = random_number() & 1;
        emulator_yield();
    } else {
        state.at_barrier[t] = true;
        state.barrier_sites[t] = site;
        state.warps[self.warp].ready &= ~(1u << self.place.lane);
        give_way();
    }
    return state.barrier.result;
}

void emulator_yield() {
    Thread& self = current();
    unsigned count = __builtin_popcount(state.ready_warps);
    unsigned warp = nth_bit(state.ready_warps, random_number() % count);
    switch_to(self, pick_lane(warp, self.place.lane));
}

void emulator_copy(void* shared, const void* global, int nbytes, const Site& site) {
    if (!emulator_is_shared(shared)) stop_here(site_name(site) + " to an address that is not in shared memory");
    uintptr_t low = reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global);
    if (low % nbytes != 0) stop_here(site_name(site) + format(" with an address that is no multiple of %d", nbytes));
    // A fault would otherwise show only at the wait.
    state.copying = &site;
    unsigned char first = *static_cast<const volatile unsigned char*>(global);
    (void)first;
    state.copying = nullptr;
    fill_poison(shared, nbytes);
    current().copies.push_back({shared, global, nbytes});
}

void emulator_copy_commit() {
    Thread& self = current();
    self.groups.push_back(self.copies.size());
}

void emulator_copy_wait(int pending) {
    Thread& self = current();
    if (self.groups.size() <= size_t(pending)) return;
    size_t done = self.groups.size() - pending, copies = self.groups[done - 1];
    do_copies(self, copies);
    self.groups.erase(self.groups.begin(), self.groups.begin() + done);
    for (size_t& end : self.groups) end -= copies;
}

void emulator_wait_for_previous() {
    current().waited = true;
    if (!state.waited) allow_written();
    state.waited = true;
}

bool emulator_is_shared(const void* address) {
    return size_t(static_cast<const unsigned char*>(address) - state.shared) < state.shared_bytes;
}

void emulator_fail(const Site& site, const char* text) { stop_here(site_name(site) + " " + text); }

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
    // The variables may be padded to the alignment of the dynamic part.
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
