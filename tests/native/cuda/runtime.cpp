// Threads as fibers. One runs until it waits for others, so a warp's collective costs a switch a lane. Which warp goes on
// after a barrier and which way the lanes take turns comes from the launch's seed.
#include "runtime.hpp"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "memory.hpp"
#include "state.hpp"

namespace emulator {

State state;

uint64_t random_number() {
    state.random += 0x9e3779b97f4a7c15ull;
    uint64_t z = state.random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

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

namespace {

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

}  // namespace

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

// The block says that it reads what only launches before this graph have written.
void emulator_read_early() {
    if (!state.waited && !state.early) allow_written();
    state.early = true;
}

// The block says that it need not wait, because another one does.
void emulator_end_early() { state.excused = true; }

void emulator_wait_for_previous() {
    current().waited = true;
    if (!state.waited && !state.early) allow_written();
    state.waited = state.some_waited = true;
}

bool emulator_is_shared(const void* address) {
    return size_t(static_cast<const unsigned char*>(address) - state.shared) < state.shared_bytes;
}

void emulator_fail(const Site& site, const char* text) { stop_here(site_name(site) + " " + text); }
}

}  // namespace emulator
