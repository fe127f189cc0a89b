// Segmentation faults, traps and the alarm, as messages of the launch that met them.
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "memory.hpp"
#include "state.hpp"

namespace emulator {

#if defined(EMULATOR_OWN_SWITCH)

namespace {

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

}  // namespace

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

}  // namespace emulator
