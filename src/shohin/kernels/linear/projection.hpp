// The two stages of every linear op: prepare the rows, then tiles of eight weight rows against chunks of rows.
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
    const Input in = input_of(call, p, scratch.shared);
    const float *norm = p.norm >= 0 && call[p.norm] ? call[p.norm].as<float>() : nullptr;
    for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = p.gather ? step.wanted[i] : i;
        fill_row(in, i, call[p.x].as<float>() + row * in.k, norm, p.eps, reinterpret_cast<float *>(scratch.own));
    }
}

inline std::int64_t tiles_of(const Operand &weight) { return (weight.rows + kLanes - 1) / kLanes; }

inline std::int64_t chunks_of(std::int64_t rows) { return (rows + kRowChunk - 1) / kRowChunk; }

// Items of the second stage for a plain list of weights: (chunk of rows, weight, tile).
inline std::int64_t tile_items(const Call &call, const Step &step, const Projection &p) {
    std::int64_t tiles = 0;
    for (int i = 0; i < p.weights; ++i) tiles += tiles_of(call[p.first + i]);
    return tiles * chunks_of(p.live(step));
}

// The outputs of one tile: acc [rows][8], of which `columns` count, for the outputs from (row, column) on.
struct Tile {
    std::int64_t row, rows, column, columns;
    const float *acc;
};

template <class Emit>
inline void run_tiles(const Call &call, const Step &step, const Projection &p, std::int64_t begin, std::int64_t end,
                      const Scratch &scratch, const Emit &emit) {
    const Input in = input_of(call, p, scratch.shared);
    auto &space = *reinterpret_cast<Workspace *>(scratch.own);
    const std::int64_t rows = p.live(step), per_chunk = tile_items(call, step, p) / chunks_of(rows);
    for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t m0 = item / per_chunk * kRowChunk, m1 = least(m0 + kRowChunk, rows);
        std::int64_t tile = item % per_chunk, column = 0;
        int w = 0;
        for (; tile >= tiles_of(call[p.first + w]); ++w) {
            tile -= tiles_of(call[p.first + w]);
            column += call[p.first + w].rows;
        }
        const Operand &weight = call[p.first + w];
        project(weight, tile, in, w, m0, m1, space.panel, space.acc[0]);
        const std::int64_t columns = least(kLanes, weight.rows - tile * kLanes);
        emit(Tile{m0, m1 - m0, column + tile * kLanes, columns, space.acc[0]});
    }
}

inline void put_tile(const Operand &out, const Tile &tile) {
    for (std::int64_t m = 0; m < tile.rows; ++m)
        std::memcpy(out.as<float>() + (tile.row + m) * out.columns + tile.column, tile.acc + m * kLanes,
                    static_cast<std::size_t>(tile.columns) * sizeof(float));
}

inline void add_tile(const Operand &out, const Tile &tile) {
    for (std::int64_t m = 0; m < tile.rows; ++m) {
        float *to = out.as<float>() + (tile.row + m) * out.columns + tile.column;
        for (std::int64_t r = 0; r < tile.columns; ++r) to[r] += tile.acc[m * kLanes + r];
    }
}

// Stage 1 of every linear op, one item a row; View says where the operands of a call are.
template <Projection (*View)(const Call &)>
constexpr Stage kRowStage = {
    [](const Call &call, const Step &step) { return View(call).live(step); },
    [](const Call &call, const Step &step, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
        prepare_rows(call, step, View(call), begin, end, scratch);
    }};

// Stage 2 of an op that only puts or adds its tiles to operand Out.
template <Projection (*View)(const Call &), void (*Emit)(const Operand &, const Tile &), int Out>
constexpr Stage kTileStage = {
    [](const Call &call, const Step &step) { return tile_items(call, step, View(call)); },
    [](const Call &call, const Step &step, std::int64_t begin, std::int64_t end, const Scratch &scratch) {
        run_tiles(call, step, View(call), begin, end, scratch, [&](const Tile &tile) { Emit(call[Out], tile); });
    }};

}  // namespace shohin::SHOHIN_TIER
