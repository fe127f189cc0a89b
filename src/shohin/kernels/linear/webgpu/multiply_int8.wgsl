// A block of a tile in int8: the codes of its rows of x in workgroup memory, blocks a word apart.

var<workgroup> x_codes: array<u32, TILE_ROWS * (QUADS + 1u)>;
var<workgroup> x_scales: array<vec2<u32>, TILE_ROWS>;

// Block b of the tile's rows, from row `first` on.
fn load_rows(t: u32, first: u32, count: u32, b: u32) {
    for (var i = t; i < count * QUADS; i += THREADS) {
        let word = row_codes[(first + i / QUADS) * (BLOCKS * QUADS) + b * QUADS + i % QUADS];
        x_codes[i / QUADS * (QUADS + 1u) + i % QUADS] = word;
    }
    if t < count { x_scales[t] = row_scales[(first + t) * BLOCKS + b]; }
}

fn add_block(piece: u32, n: array<u32, EACH_N>, b: u32, first: u32, m: u32) {
    var sum: array<i32, EACH_M * EACH_N>;
    for (var v = 0u; v < VECTORS; v++) {
        var words: array<vec4<u32>, EACH_N>;
        for (var j = 0u; j < EACH_N; j++) { words[j] = codes_of(piece, n[j], b, v); }
        for (var w = 0u; w < 4u; w++) {
            for (var s = 0u; s < STEPS; s++) {
                let p = (4u * v + w) * STEPS + s;
                var fours: array<u32, EACH_M>;
                for (var i = 0u; i < EACH_M; i++) { fours[i] = x_codes[(m + i * THREADS_M) * (QUADS + 1u) + p]; }
                for (var j = 0u; j < EACH_N; j++) {
                    let stored = quad(words[j][w], s);
                    for (var i = 0u; i < EACH_M; i++) { sum[i * EACH_N + j] += dot4I8Packed(stored, fours[i]); }
                }
            }
        }
    }
    for (var j = 0u; j < EACH_N; j++) {
        let head = head_of(piece, n[j], b);
        for (var i = 0u; i < EACH_M; i++) {
            let of_x = x_scales[m + i * THREADS_M];
            let pair = terms(sum[i * EACH_N + j], bitcast<i32>(of_x.y), bitcast<f32>(of_x.x), head);
            add_terms(i * EACH_N + j, pair);
        }
    }
}
