// A row of x in float32, normed where a norm precedes: (x * factor) * norm, in that order (M.3).
//
// The module that includes this has REDUCED threads a workgroup, and x and norm as f32.

fn factor_of(t: u32, m: u32) -> f32 {
    if !NORM { return 1.0f; }
    var squares = 0.0f;
    for (var k = t; k < WIDTH; k += REDUCED) {
        let one = x[m * WIDTH + k];
        squares = fma(one, one, squares);
    }
    return 1.0f / sqrt(sum_of_all(t, squares) / f32(WIDTH) + EPS);
}

fn normed(m: u32, k: u32, factor: f32) -> f32 {
    let one = x[m * WIDTH + k];
    if NORM { return pinned(pinned(one * factor) * norm[k]); }
    return one;
}

// The four inputs that meet quad p of block b; zeros behind the row's end.
fn inputs(m: u32, b: u32, p: u32, factor: f32) -> vec4<f32> {
    var four = vec4(0.0f);
    let start = b * BLOCK + quad_start(p);
    for (var j = 0u; j < 4u; j++) {
        let k = start + j * SPREAD;
        if k < WIDTH { four[j] = normed(m, k, factor); }
    }
    return four;
}
