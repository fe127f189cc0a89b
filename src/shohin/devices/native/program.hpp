// A tape resolved for one tier: checked operands, kernels by name, and all the scratch memory it will ever need.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernel.hpp"
#include "pool.hpp"
#include "registry.hpp"

namespace shohin {

// What the caller knows of an operand; `format` is set for weights, whose data are raw bytes.
struct OperandSource {
    std::string kind;  // a dtype or a format's name; empty for no operand
    std::vector<std::int64_t> shape;
    std::uint8_t *data = nullptr;
    std::size_t bytes = 0;
    bool writable = false;
};

struct CallSource {
    std::string op;
    std::vector<OperandSource> operands;
    std::vector<std::int64_t> ints;
    std::vector<double> floats;
};

class Program {
public:
    // Raises std::invalid_argument for a bad operand and std::out_of_range for an op without a kernel.
    Program(std::vector<CallSource> calls, std::int64_t rows, std::int64_t wanted, int threads, const Tier &tier);

    std::int64_t calls() const { return static_cast<std::int64_t>(calls_.size()); }
    std::int64_t scratch_bytes() const { return static_cast<std::int64_t>(scratch_.size()); }
    int threads() const { return threads_; }

    // Raises std::invalid_argument before anything is written if the step does not fit calls first to last - 1.
    void check(std::int64_t first, std::int64_t last, const Step &step) const;
    // Run those calls in an open session; neither allocates nor takes a lock.
    Outcome run(std::int64_t first, std::int64_t last, const Step &step, Pool::Session &session) const;

private:
    struct Bound {
        std::vector<Operand> operands;
        Call call;
        const Kernel *kernel = nullptr;
    };

    void bind(Bound &bound, const CallSource &source, const Tier &tier) const;

    std::vector<CallSource> sources_;
    std::vector<Bound> calls_;
    std::int64_t rows_, wanted_;
    int threads_;
    std::int64_t own_bytes_ = 0;
    std::vector<std::uint8_t> scratch_;
    std::uint8_t *shared_ = nullptr;
    std::uint8_t *own_ = nullptr;
};

}  // namespace shohin
