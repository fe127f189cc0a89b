#include "fiber.hpp"

#if defined(EMULATOR_OWN_SWITCH)

// With the stack pointer all else that a call keeps changes hands.
asm(R"(
.text
.globl emulator_switch
.globl emulator_resume
.type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
emulator_resume:
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

#endif
