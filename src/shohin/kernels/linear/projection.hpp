// The two stages of every linear op: prepare the rows, then strips of kTile weight rows against chunks of rows.
#pragma once

#include "kernels/linear/dot.hpp"

namespace shohin::SHOHIN_TIER {

// Where an op's operands are. `weights` are consecutive operands.
struct Projection {
    int x = 0;
    int norm = -1;
    int first = 0;
    int weights = 1;
    bool int8 = false;
    bool gather = false;  // row i reads x[wanted[i]]
    float eps = 0;

    std::int64_t capacity(const Call &call) const { return gather ? call.wanted : call.rows; }
    std::int64_t live(const Step &step) const { return gather ? step.wanted_rows : step.rows; }
};

inline Input input_of(const Call &call, const Projection &p, std::uint8_t *base) {
    return lay_out(call.operands + p.first, p.weights, p.capacity(call), p.int8, base);
}

inline Input input_of(const Call &call, const Step &step, const Projection &p, std::uint8_t *base) {
    Input in = input_of(call, p, base);
    in.tables = p.live(step) <= kTableRows;
    return in;
}

inline bool int8_mode(const Call &call, int index) {
    const std::int64_t mode = call.ints[index];
    if (mode != 0 && mode != 1) fail("%s: activation mode %lld is unknown", call.op, static_cast<long long>(mode));
    return mode == 1;
}

// Check x, norm and weights; returns the sum of their rows, and scratch for both stages.
inline Needs prepare_projection(const Call &call, const Projection &p, std::int64_t &n) {
    if (p.weights < 1 || p.weights > kMostWeights)
        fail("%s: %d weights were given, 1 to %d are expected", call.op, p.weights, kMostWeights);
    const std::int64_t k = call[p.x].columns;
    expect_buffer(call, p.x, "x", Kind::f32, call.rows, k, false);
    if (p.norm >= 0 && call[p.norm]) expect_vector(call, p.norm, "norm", k);
    n = 0;
    for (int i = 0; i < p.weights; ++i) n += expect_matrix(call, p.first + i, "a weight", k).rows;
    const Input in = input_of(call, p, nullptr);
    const std::int64_t room = round_up(k, 8) * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t space = static_cast<std::int64_t>(sizeof(Workspace));
    return {in.bytes, room > space ? room : space};
}

inline void prepare_rows(const Call &call, const Step &step, const Projection &p, std::int64_t begin, std::int64_t end,
                         const Scratch &scratch) {
    const Input in = input_of(call, step, p, scratch.shared);
    const float *norm = p.norm >= 0 && call[p.norm] ? call[p.norm].as<float>() : nullptr;
    for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = p.gather ? step.wanted[i] : i;
        fill_row(in, i, call[p.x].as<float>() + row * in.k, norm, p.eps, reinterpret_cast<float *>(scratch.own));
    }
}

inline std::int64_t strips_of(const Operand &weight) { return (weight.rows + kTile - 1) / kTile; }

inline std::int64_t chunks_of(std::int64_t rows) { return (rows + kRowChunk - 1) / kRowChunk; }

// Items of the second stage for a plain list of weights: (chunk of rows, weight, strip).
inline std::int64_t strip_items(const Call &call, const Step &step, const Projection &p) {
    std::int64_t strips = 0;
    for (int i = 0; i < p.weights; ++i) strips += strips_of(call[p.first + i]);
    return strips * chunks_of(p.live(step));
}

// The outputs of one strip: acc [rows][kTile], of which `columns` count, for the outputs from (row, column) on.
struct Strip {
    std::int64_t row, rows, column, columns;
    const float *acc;
};

template <class Emit>
inline void run_strips(const Call &call, const Step &step, const Projection &p, std::int64_t begin, std::int64_t end,
                      const Scratch &scratch, const Emit &emit) {
    const Input in = input_of(call, step, p, scratch.shared);
    auto &space = *reinterpret_cast<Workspace *>(scratch.own);
    const std::int64_t rows = p.live(step), per_chunk = strip_items(call, step, p) / chunks_of(rows);
    for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t m0 = item / per_chunk * kRowChunk, m1 = least(m0 + kRowChunk, rows);
        std::int64_t strip = item % per_chunk, column = 0;
        int w = 0;
        for (; strip >= strips_of(call[p.first + w]); ++w) {
            strip -= strips_of(call[p.first + w]);
            column += call[p.first + w].rows;
        }
        const Operand &weight = call[p.first + w];
        project(weight, strip, in, w, m0, m1, space, space.acc[0]);
        const std::int64_t columns = least(kTile, weight.rows - strip * kTile);
        emit(Strip{m0, m1 - m0, column + strip * kTile, columns, space.acc[0]});
    }
}

inline void put_strip(const Operand &out, const Strip &strip) {
    for (std::int64_t m = 0; m < strip.rows; ++m)
        std::memcpy(out.as<float>() + (strip.row + m) * out.columns + strip.column, strip.acc + m * kTile,
                    static_cast<std::size_t>(strip.columns) * sizeof(float));
}

inline void add_strip(const Operand &out, const Strip &strip) {
    for (std::int64_t m = 0; m < strip.rows; ++m) {
        float *to = out.as<float>() + (strip.row + m) * out.columns + strip.column;
        for (std::int64_t r = 0; r < strip.columns; ++r) to[r] += strip.acc[m * kTile + r];
    }
}

// Stage 1 of every linear op, one item a row; View says where the operands of a call are.
template <Projection (*View)(const Call &)>
constexpr Stage kRowStage = {
    [](const Call &call, const Step &step) { return View(call).live(step); },
    [](const Call &call, const Step &step, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
        prepare_rows(call, step, View(call), begin, end, scratch);
    }};

// Stage 2 of an op that only puts or adds its strips to operand Out.
template <Projection (*View)(const Call &), void (*Emit)(const Operand &, const Strip &), int Out>
constexpr Stage kStripStage = {
    [](const Call &call, const Step &step) { return strip_items(call, step, View(call)); },
    [](const Call &call, const Step &step, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
        run_strips(call, step, View(call), begin, end, scratch, [&](const Strip &strip) { Emit(call[Out], strip); });
    }};

}  // namespace shohin::SHOHIN_TIER
