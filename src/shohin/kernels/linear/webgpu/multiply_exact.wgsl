// A block of a tile in float32. What a block adds to an output is two factors of one fma.

fn load_rows(t: u32, first: u32, count: u32, b: u32) {}

fn add_block(piece: u32, n: array<u32, EACH_N>, b: u32, first: u32, m: u32) {
    var sum: array<f32, EACH_M * EACH_N>;
    var heads: array<vec2<f32>, EACH_N>;
    for (var j = 0u; j < EACH_N; j++) { heads[j] = head_of(piece, n[j], b); }
    for (var p = 0u; p < QUADS; p++) {
        var fours: array<vec4<f32>, EACH_M>;
        for (var i = 0u; i < EACH_M; i++) {
            fours[i] = row_inputs[min(first + m + i * THREADS_M, ROWS_OF_X - 1u) * (BLOCKS * QUADS) + b * QUADS + p];
        }
        for (var j = 0u; j < EACH_N; j++) {
            let four = weights_of(piece, n[j], b, p, heads[j]);
            for (var i = 0u; i < EACH_M; i++) { sum[i * EACH_N + j] = dot_onto(four, fours[i], sum[i * EACH_N + j]); }
        }
    }
    for (var j = 0u; j < EACH_N; j++) {
        for (var i = 0u; i < EACH_M; i++) {
            add_terms(i * EACH_N + j, vec2(sum[i * EACH_N + j], factor_of_block(heads[j])));
        }
    }
}
