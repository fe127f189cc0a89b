// Seeded numbers that are the same on every machine and with every standard library: whole-number arithmetic only.
#pragma once

#include <cstdint>

namespace check {

// splitmix64 (Steele, Lea, Flood 2014).
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x632BE59BD9B4E019u) {}

    std::uint64_t next() {
        state_ += 0x9E3779B97F4A7C15u;
        std::uint64_t z = state_;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        return z ^ z >> 31;
    }
    std::int64_t below(std::int64_t limit) {
        return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(limit));
    }
    // About normal with a deviation of 1: the sum of four 16-bit numbers. One in 64 is 16 times as large, as in models.
    float value() {
        const std::uint64_t word = next();
        std::int32_t sum = 0;
        for (int i = 0; i < 4; ++i) sum += static_cast<std::int16_t>(static_cast<std::uint16_t>(word >> (16 * i)));
        const float x = static_cast<float>(sum) * (1.0f / 37837.0f);
        return below(64) == 0 ? 16.0f * x : x;
    }

private:
    std::uint64_t state_;
};

}  // namespace check
