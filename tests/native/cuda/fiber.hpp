// Switching between stacks. By hand on x86-64, where it takes a few nanoseconds; ucontext elsewhere, where every switch
// is a system call.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)
#define EMULATOR_OWN_SWITCH

using Context = void*;   // the stack pointer; the registers that a call keeps lie above it

extern "C" void emulator_switch(Context* from, Context to);
// Where a context goes on once the stack pointer is set.
extern "C" void emulator_resume();

inline void switch_context(Context& from, Context& to) { emulator_switch(&from, to); }

inline void start_context(Context& context, unsigned char* stack, size_t nbytes, void (*run)()) {
    uint64_t* p = reinterpret_cast<uint64_t*>(reinterpret_cast<uintptr_t>(stack + nbytes) & ~uintptr_t(15));
    *--p = 0;   // run never returns; the stack is aligned as after a call
    *--p = reinterpret_cast<uint64_t>(run);
    for (int i = 0; i < 6; i++) *--p = 0;
    context = p;
}

#else

#include <ucontext.h>

using Context = ucontext_t;

inline void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }

inline void start_context(Context& context, unsigned char* stack, size_t nbytes, void (*run)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = nbytes;
    context.uc_link = nullptr;
    makecontext(&context, run, 0);
}

#endif
