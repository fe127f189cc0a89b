#include "memory.hpp"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <vector>

std::recursive_mutex runtime_lock;

namespace {

constexpr size_t ALIGNMENT = 256;
// Freed allocations whose addresses are kept out of use.
constexpr size_t KEPT = 256;

struct Allocation {
    unsigned char* mapping;
    size_t mapped;   // with the two outer pages
    unsigned char* start;
    size_t nbytes;
    bool live, written;
};

std::map<uintptr_t, Allocation> allocations;   // by the mapping's address
std::vector<uintptr_t> freed;
bool learning, forbidding;

size_t page() {
    static const size_t size = sysconf(_SC_PAGESIZE);
    return size;
}

// The allocation whose mapping holds an address.
Allocation* find(const void* address) {
    auto at = allocations.upper_bound(reinterpret_cast<uintptr_t>(address));
    if (at == allocations.begin()) return nullptr;
    Allocation& found = (--at)->second;
    return static_cast<const unsigned char*>(address) < found.mapping + found.mapped ? &found : nullptr;
}

void protect(const Allocation& a, int access) { mprotect(a.mapping + page(), a.mapped - 2 * page(), access); }

size_t tail(const Allocation& a) { return a.mapping + a.mapped - page() - (a.start + a.nbytes); }

size_t head(const Allocation& a) { return a.start - (a.mapping + page()); }

}  // namespace

void fill_poison(void* memory, size_t nbytes) {
    unsigned char* p = static_cast<unsigned char*>(memory);
    size_t odd = reinterpret_cast<uintptr_t>(p) & 1;
    for (size_t i = 0; i < nbytes && i < 64; i++) p[i] = (i + odd) & 1 ? POISON >> 8 : POISON & 255;
    for (size_t done = 64; done < nbytes; done *= 2) memcpy(p + done, p, done < nbytes - done ? done : nbytes - done);
}

bool is_poison(const void* memory, size_t nbytes) {
    const unsigned char* p = static_cast<const unsigned char*>(memory);
    size_t odd = reinterpret_cast<uintptr_t>(p) & 1;
    for (size_t i = 0; i < nbytes && i < 2; i++)
        if (p[i] != ((i + odd) & 1 ? POISON >> 8 : POISON & 255)) return false;
    return nbytes <= 2 || memcmp(p, p + 2, nbytes - 2) == 0;
}

void describe_address(const void* address, char* text, size_t room) {
    const unsigned char* p = static_cast<const unsigned char*>(address);
    const Allocation* a = find(address);
    if (a == nullptr) {
        snprintf(text, room, "address %p, which is in no device allocation", address);
        return;
    }
    const char* state = a->live ? "" : "freed ";
    if (p < a->start)
        snprintf(text, room, "%zu bytes before a %sallocation of %zu", size_t(a->start - p), state, a->nbytes);
    else if (p >= a->start + a->nbytes)
        snprintf(text, room, "%zu bytes past the end of a %sallocation of %zu", size_t(p - a->start - a->nbytes), state,
                 a->nbytes);
    else
        snprintf(text, room, "byte %zu of a %sallocation of %zu", size_t(p - a->start), state, a->nbytes);
}

void forbid_written() {
    forbidding = true;
    for (auto& [key, a] : allocations)
        if (a.live && a.written) protect(a, PROT_NONE);
}

void allow_written() {
    if (!forbidding) return;
    forbidding = false;
    for (auto& [key, a] : allocations)
        if (a.live && a.written) protect(a, PROT_READ | PROT_WRITE);
}

bool learn_write(const void* address) {
    Allocation* a = find(address);
    if (!learning || a == nullptr || !a->live || a->written) return false;
    const unsigned char* p = static_cast<const unsigned char*>(address);
    if (p < a->mapping + page() || p >= a->mapping + a->mapped - page()) return false;
    a->written = true;
    protect(*a, PROT_READ | PROT_WRITE);
    return true;
}

bool is_forbidden(const void* address) {
    const Allocation* a = find(address);
    return forbidding && a != nullptr && a->live && a->written;
}

extern "C" {

// Poisoned memory at a multiple of 256 bytes that ends as close to a forbidden page as that allows; null if there is
// none.
void* emulator_allocate(size_t nbytes) {
    Held held(runtime_lock);
    size_t whole = (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t inner = (whole + page() - 1) / page() * page();
    size_t mapped = inner + 2 * page();
    void* mapping = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    unsigned char* base = static_cast<unsigned char*>(mapping);
    Allocation a = {base, mapped, base + page() + inner - whole, nbytes, true, false};
    protect(a, PROT_READ | PROT_WRITE);
    fill_poison(base + page(), inner);
    allocations[reinterpret_cast<uintptr_t>(base)] = a;
    return a.start;
}

// False for an address that is no live allocation's.
bool emulator_free(void* pointer) {
    Held held(runtime_lock);
    Allocation* a = find(pointer);
    if (a == nullptr || !a->live || a->start != pointer) return false;
    a->live = false;
    protect(*a, PROT_NONE);
    madvise(a->mapping, a->mapped, MADV_DONTNEED);
    freed.push_back(reinterpret_cast<uintptr_t>(a->mapping));
    if (freed.size() > KEPT) {
        Allocation old = allocations[freed.front()];
        munmap(old.mapping, old.mapped);
        allocations.erase(freed.front());
        freed.erase(freed.begin());
    }
    return true;
}

// Whether bytes lie in one live allocation.
bool emulator_holds(const void* pointer, size_t nbytes) {
    Held held(runtime_lock);
    const Allocation* a = find(pointer);
    const unsigned char* p = static_cast<const unsigned char*>(pointer);
    return a != nullptr && a->live && p >= a->start && p + nbytes <= a->start + a->nbytes;
}

// The start of an allocation whose surroundings a kernel wrote to, or null.
const void* emulator_damaged() {
    for (auto& [key, a] : allocations)
        if (a.live && !(is_poison(a.mapping + page(), head(a)) && is_poison(a.start + a.nbytes, tail(a)))) {
            fill_poison(a.mapping + page(), head(a));
            fill_poison(a.start + a.nbytes, tail(a));
            return a.start;
        }
    return nullptr;
}

size_t emulator_nbytes(const void* pointer) {
    const Allocation* a = find(pointer);
    return a == nullptr ? 0 : a->nbytes;
}

// Between on and off, allocations that kernels write are marked. Launches in graphs then forbid them to a block until
// one of its threads calls wait_for_previous.
void emulator_learn(bool on) {
    Held held(runtime_lock);
    learning = on;
    for (auto& [key, a] : allocations)
        if (a.live && !a.written) protect(a, on ? PROT_READ : PROT_READ | PROT_WRITE);
}

// Marks an allocation as one that kernels write.
void emulator_mark(void* pointer) {
    Held held(runtime_lock);
    if (Allocation* a = find(pointer)) a->written = true;
}
}
