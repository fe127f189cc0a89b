// A persistent pool of threads that run the stages of a program, one after the other.
#pragma once

#include <cstdint>
#include <memory>

namespace shohin {

// Runs items begin to end - 1 as worker number `worker` (0 is the caller).
struct Task {
    void (*run)(void *context, int worker, std::int64_t begin, std::int64_t end);
    void *context;
};

enum class Outcome { finished, cancelled, interrupted };

class Pool {
public:
    explicit Pool(int threads);  // threads - 1 are started; the caller is the last one
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int threads() const { return threads_; }
    // End the session in progress at its next chunk; safe from any thread.
    void cancel();
    // Start afresh in a forked child, where the parent's threads do not exist.
    void revive();

    // Exclusive use of the pool. Other callers wait in the constructor.
    class Session {
    public:
        // `poll` is called on this thread at most every 50 ms; false interrupts. It may take the interpreter's lock.
        Session(Pool &pool, bool (*poll)(void *), void *context);
        ~Session();
        Session(const Session &) = delete;
        Session &operator=(const Session &) = delete;
        // Run all items and return when they are complete, or dropped because of cancel, poll or an exception,
        // which is rethrown here.
        Outcome run(std::int64_t items, const Task &task);

    private:
        struct State *state_;
    };

private:
    friend class Session;
    int threads_;
    long process_;
    std::unique_ptr<struct State> state_;
};

}  // namespace shohin
