#include "pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#if defined(_WIN32)
#include <process.h>
#else
#include <signal.h>
#include <time.h>
#include <unistd.h>
#endif

#if defined(__SSE2__) || defined(_M_X64)
#define SHOHIN_SSE 1
#include <immintrin.h>
#else
#define SHOHIN_SSE 0
#endif

#if defined(__aarch64__) && defined(__GNUC__)
#define SHOHIN_FPCR 1
#else
#define SHOHIN_FPCR 0
#endif

namespace shohin {

namespace {

using Clock = std::chrono::steady_clock;

// Long enough to bridge the pause between two stages, short enough that another process hardly notices.
constexpr std::chrono::microseconds kSpin{40};
constexpr std::chrono::milliseconds kPoll{50};
constexpr std::int64_t kPollNanoseconds = 50'000'000;
constexpr std::int64_t kMostItems = std::int64_t{1} << 31;

long process_id() {
#if defined(_WIN32)
    return static_cast<long>(_getpid());
#else
    return static_cast<long>(getpid());
#endif
}

// For the polls only: asked after every piece of work, where the exact clock would cost a hundredth of a decoded token.
std::int64_t rough_nanoseconds() {
#if defined(CLOCK_MONOTONIC_COARSE)
    timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
#else
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
#endif
}

void relax() {
#if SHOHIN_SSE
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

// Rounding to nearest with denormals, whatever other libraries set on this thread: the same bits on every thread.
class FloatMode {
public:
#if SHOHIN_SSE
    FloatMode() : before_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
    ~FloatMode() { _mm_setcsr(before_); }
#elif SHOHIN_FPCR
    FloatMode() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
        set(0);
    }
    ~FloatMode() { set(before_); }
#else
    FloatMode() {}
    ~FloatMode() {}
#endif
    FloatMode(const FloatMode &) = delete;
    FloatMode &operator=(const FloatMode &) = delete;

private:
#if SHOHIN_SSE
    unsigned before_;
#elif SHOHIN_FPCR
    static void set(std::uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }

    std::uint64_t before_ = 0;
#endif
};

// Signals are the main thread's business: started threads inherit an empty set.
class SignalsBlocked {
public:
#if defined(_WIN32)
    SignalsBlocked() {}
    ~SignalsBlocked() {}
#else
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
#endif
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;
};

}  // namespace

// Work is handed out through one word: the stage's number in the upper half, the items nobody has taken yet in the lower.
// A stage is over when every item is done, so a thread that the system does not schedule holds nobody up: it finds
// nothing left, or a newer stage. A successful claim proves that `task` and `items` are those of the stage in the word,
// because the caller changes them only while no item is out.
struct State {
    explicit State(int thread_count) : threads(thread_count) {
        const unsigned cores = std::thread::hardware_concurrency();
        spin = cores == 0 || static_cast<unsigned>(threads) <= cores ? kSpin : std::chrono::microseconds{0};
        SignalsBlocked blocked;
        try {
            for (int i = 1; i < threads; ++i) workers.emplace_back([this, i] { serve(i); });
        } catch (...) {
            join();
            throw;
        }
    }

    ~State() { join(); }

    void join() {
        {
            std::lock_guard<std::mutex> lock(door);
            stop = true;
        }
        arrived.notify_all();
        for (std::thread &worker : workers) worker.join();
        workers.clear();
    }

    // Take a share of what is left; more than one item while there are many, so that claims are few.
    std::int64_t claim(std::int64_t &begin) {
        std::uint64_t word = work.load(std::memory_order_acquire);
        for (;;) {
            const std::uint64_t left = word & 0xFFFFFFFFu;
            if (left == 0) return 0;
            const std::uint64_t take = std::max<std::uint64_t>(1, left / (4 * static_cast<std::uint64_t>(threads)));
            if (work.compare_exchange_weak(word, word - take, std::memory_order_acq_rel, std::memory_order_acquire)) {
                begin = items - static_cast<std::int64_t>(left);
                return static_cast<std::int64_t>(take);
            }
        }
    }

    bool dropped() const { return cancelled.load(std::memory_order_relaxed) || failed.load(std::memory_order_relaxed); }

    void execute(int worker, std::int64_t begin, std::int64_t count) {
        if (dropped()) return;
        try {
            task.run(task.context, worker, begin, begin + count);
        } catch (...) {
            std::lock_guard<std::mutex> lock(door);
            if (!failed) error = std::current_exception();
            failed = true;
        }
    }

    // One chunk of work by a thread of the pool; false when there is none.
    bool help(int worker) {
        std::int64_t begin = 0;
        const std::int64_t count = claim(begin);
        if (count == 0) return false;
        const std::int64_t all = items;
        execute(worker, begin, count);
        // After this line the caller may be gone on to the next stage: nothing of this one is read any more.
        if (done.fetch_add(count) + count == all && caller_sleeps.load()) {
            std::lock_guard<std::mutex> lock(door);
            finished.notify_all();
        }
        return true;
    }

    void serve(int worker) {
        FloatMode mode;
        for (;;) {
            while (help(worker)) {
            }
            if (stop) return;
            if (wait_spinning([this] { return (work.load() & 0xFFFFFFFFu) != 0 || stop; })) continue;
            std::unique_lock<std::mutex> lock(door);
            ++sleepers;
            arrived.wait(lock, [this] { return (work.load() & 0xFFFFFFFFu) != 0 || stop; });
            --sleepers;
        }
    }

    template <class Ready>
    bool wait_spinning(const Ready &ready) const {
        const Clock::time_point until = Clock::now() + spin;
        do {
            for (int i = 0; i < 64; ++i) {
                if (ready()) return true;
                relax();
            }
        } while (Clock::now() < until);
        return false;
    }

    bool interrupted() {
        if (rough_nanoseconds() < next_poll) return false;
        const bool go_on = poll == nullptr || poll(poll_context);
        next_poll = rough_nanoseconds() + kPollNanoseconds;
        if (!go_on) {
            stopped_by_poll = true;
            cancelled = true;
        }
        return !go_on;
    }

    void share_out(std::int64_t count, const Task &job) {
        task = job;
        items = count;
        done = 0;
        generation = (generation + 1) & 0xFFFFFFFFu;
        work.store(generation << 32 | static_cast<std::uint64_t>(count));
        if (sleepers.load() > 0) {
            std::lock_guard<std::mutex> lock(door);
            arrived.notify_all();
        }
        while (help(0)) interrupted();
        const auto complete = [this] { return done.load() == items; };
        if (wait_spinning(complete)) return;
        std::unique_lock<std::mutex> lock(door);
        caller_sleeps = true;
        while (!complete()) {
            if (finished.wait_for(lock, kPoll, complete)) break;
            lock.unlock();
            interrupted();
            lock.lock();
        }
        caller_sleeps = false;
    }

    void alone(std::int64_t count, const Task &job) {
        task = job;
        const std::int64_t piece = std::max<std::int64_t>(1, count / 16);
        for (std::int64_t begin = 0; begin < count && !dropped(); begin += piece) {
            execute(0, begin, std::min(piece, count - begin));
            interrupted();
        }
    }

    const int threads;
    std::chrono::microseconds spin{0};
    std::vector<std::thread> workers;
    std::mutex turn;  // held for a whole session
    std::atomic<std::thread::id> owner{};

    alignas(64) std::atomic<std::uint64_t> work{0};
    alignas(64) std::atomic<std::int64_t> done{0};
    alignas(64) Task task{};
    std::int64_t items = 0;
    std::uint64_t generation = 0;

    std::mutex door;
    std::condition_variable arrived, finished;
    std::atomic<int> sleepers{0};
    std::atomic<bool> caller_sleeps{false}, stop{false}, cancelled{false}, failed{false};
    std::exception_ptr error;

    bool (*poll)(void *) = nullptr;
    void *poll_context = nullptr;
    bool stopped_by_poll = false;
    std::int64_t next_poll = 0;
};

Pool::Pool(int threads) : threads_(threads), process_(process_id()) {
    if (threads < 1) throw std::invalid_argument("a pool needs at least one thread");
    state_ = std::make_unique<State>(threads);
}

Pool::~Pool() {
    // In a forked child there is nothing to join, and waiting for it would never end.
    if (process_ != process_id()) state_.release();
}

void Pool::revive() {
    if (process_ == process_id()) return;
    state_.release();
    state_ = std::make_unique<State>(threads_);
    process_ = process_id();
}

void Pool::cancel() { state_->cancelled = true; }

Pool::Session::Session(Pool &pool, bool (*poll)(void *), void *context) : state_(pool.state_.get()) {
    if (state_->owner.load() == std::this_thread::get_id())
        throw std::runtime_error("a play was started by a signal handler or callback inside a play of the same device");
    state_->turn.lock();
    state_->owner = std::this_thread::get_id();
    state_->cancelled = false;
    state_->failed = false;
    state_->error = nullptr;
    state_->stopped_by_poll = false;
    state_->poll = poll;
    state_->poll_context = context;
    state_->next_poll = rough_nanoseconds() + kPollNanoseconds;
}

Pool::Session::~Session() {
    state_->error = nullptr;
    state_->owner = std::thread::id();
    state_->turn.unlock();
}

Outcome Pool::Session::run(std::int64_t items, const Task &task) {
    State &state = *state_;
    FloatMode mode;
    if (!state.dropped()) state.interrupted();
    if (state.threads == 1 || items == 1) {
        state.alone(items, task);
    } else if (items > 0) {
        if (items >= kMostItems) throw std::invalid_argument("a stage has more items than the pool counts");
        state.share_out(items, task);
    }
    if (state.failed) {
        const std::exception_ptr error = state.error;
        std::rethrow_exception(error);
    }
    if (state.stopped_by_poll) return Outcome::interrupted;
    return state.cancelled ? Outcome::cancelled : Outcome::finished;
}

}  // namespace shohin
