// A block of a tile in float32. What a block adds to an output is two factors of one fma.

fn load_rows(t: u32, first: u32, count: u32, b: u32) {}

// Four columns of weights against quad p of a block of a row of x, onto their sums.
fn dots(row: u32, b: u32, p: u32, w: mat4x4<f32>, sum: vec4<f32>) -> vec4<f32> {
    let four = row_inputs[min(row, ROWS_OF_X - 1u) * (BLOCKS * QUADS) + b * QUADS + p];
    return vec4(
        dot_onto(w[0], four, sum.x), dot_onto(w[1], four, sum.y),
        dot_onto(w[2], four, sum.z), dot_onto(w[3], four, sum.w),
    );
}

fn add_block(piece: u32, n: vec4<u32>, b: u32, first: u32, m: u32) {
    let h0 = head_of(piece, n.x, b);
    let h1 = head_of(piece, n.y, b);
    let h2 = head_of(piece, n.z, b);
    let h3 = head_of(piece, n.w, b);
    let row = first + m;
    var part_0 = vec4(0.0f);
    var part_1 = vec4(0.0f);
    var part_2 = vec4(0.0f);
    var part_3 = vec4(0.0f);
    for (var p = 0u; p < QUADS; p++) {
        let w = mat4x4(
            weights_of(piece, n.x, b, p, h0), weights_of(piece, n.y, b, p, h1),
            weights_of(piece, n.z, b, p, h2), weights_of(piece, n.w, b, p, h3),
        );
        part_0 = dots(row, b, p, w, part_0);
        if EACH_M > 1u { part_1 = dots(row + THREADS_M, b, p, w, part_1); }
        if EACH_M > 2u { part_2 = dots(row + 2u * THREADS_M, b, p, w, part_2); }
        if EACH_M > 3u { part_3 = dots(row + 3u * THREADS_M, b, p, w, part_3); }
    }
    let factors = vec4(factor_of_block(h0), factor_of_block(h1), factor_of_block(h2), factor_of_block(h3));
    sum_0 = fma(part_0, factors, sum_0);
    if EACH_M > 1u { sum_1 = fma(part_1, factors, sum_1); }
    if EACH_M > 2u { sum_2 = fma(part_2, factors, sum_2); }
    if EACH_M > 3u { sum_3 = fma(part_3, factors, sum_3); }
}
