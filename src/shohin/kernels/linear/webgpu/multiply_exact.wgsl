// A block of a tile in float32.

fn load_rows(t: u32, first: u32, count: u32, b: u32) {}

fn add_block(piece: u32, n: array<u32, EACH_N>, b: u32, first: u32, m: u32) {
    var sum: array<f32, EACH_M * EACH_N>;
    var all: array<f32, EACH_M>;
    for (var p = 0u; p < QUADS; p++) {
        var fours: array<vec4<f32>, EACH_M>;
        for (var i = 0u; i < EACH_M; i++) {
            fours[i] = row_inputs[min(first + m + i * THREADS_M, ROWS_OF_X - 1u) * (BLOCKS * QUADS) + b * QUADS + p];
            if AFFINE { all[i] = dot_onto(fours[i], vec4(1.0f), all[i]); }
        }
        for (var j = 0u; j < EACH_N; j++) {
            let four = weights_of(piece, n[j], b, p);
            for (var i = 0u; i < EACH_M; i++) { sum[i * EACH_N + j] = dot_onto(four, fours[i], sum[i * EACH_N + j]); }
        }
    }
    for (var j = 0u; j < EACH_N; j++) {
        let head = head_of(piece, n[j], b);
        for (var i = 0u; i < EACH_M; i++) { add_terms(i * EACH_N + j, terms(sum[i * EACH_N + j], all[i], head)); }
    }
}
