// A block of a tile in int8: the codes of its rows of x in workgroup memory, four quads a vector, and a vector between
// two rows so that neighbours read different banks.

const LINE_OF_X = QUADS / 4u + 1u;

var<workgroup> x_codes: array<vec4<u32>, TILE_ROWS * LINE_OF_X>;
var<workgroup> x_scales: array<vec2<u32>, TILE_ROWS>;

// Whole sums of a block, row by row of x, four columns each.
var<private> whole_0: vec4<i32>;
var<private> whole_1: vec4<i32>;
var<private> whole_2: vec4<i32>;
var<private> whole_3: vec4<i32>;

// Block b of the tile's rows, from row `first` on.
fn load_rows(t: u32, first: u32, count: u32, b: u32) {
    const VECTORS_A_ROW = QUADS / 4u;
    for (var i = t; i < count * VECTORS_A_ROW; i += THREADS) {
        let row = i / VECTORS_A_ROW;
        let v = i % VECTORS_A_ROW;
        x_codes[row * LINE_OF_X + v] = row_codes[(first + row) * (BLOCKS * VECTORS_A_ROW) + b * VECTORS_A_ROW + v];
    }
    for (var i = t; i < count; i += THREADS) { x_scales[i] = row_scales[(first + i) * BLOCKS + b]; }
}

fn dot_of(q: vec4<u32>, x: vec4<u32>) -> i32 {
    return dot4I8Packed(q.x, x.x) + dot4I8Packed(q.y, x.y) + dot4I8Packed(q.z, x.z) + dot4I8Packed(q.w, x.w);
}

fn dots(q0: vec4<u32>, q1: vec4<u32>, q2: vec4<u32>, q3: vec4<u32>, x: vec4<u32>) -> vec4<i32> {
    return vec4(dot_of(q0, x), dot_of(q1, x), dot_of(q2, x), dot_of(q3, x));
}

// Four quads of each of four columns against vector `v` of this thread's rows of x.
fn add_quads(q0: vec4<u32>, q1: vec4<u32>, q2: vec4<u32>, q3: vec4<u32>, m: u32, v: u32) {
    whole_0 += dots(q0, q1, q2, q3, x_codes[m * LINE_OF_X + v]);
    if EACH_M > 1u { whole_1 += dots(q0, q1, q2, q3, x_codes[(m + THREADS_M) * LINE_OF_X + v]); }
    if EACH_M > 2u { whole_2 += dots(q0, q1, q2, q3, x_codes[(m + 2u * THREADS_M) * LINE_OF_X + v]); }
    if EACH_M > 3u { whole_3 += dots(q0, q1, q2, q3, x_codes[(m + 3u * THREADS_M) * LINE_OF_X + v]); }
}

// Quads s to s + 3 of a word.
fn four_quads(word: u32, s: u32) -> vec4<u32> {
    return vec4(quad(word, s), quad(word, s + 1u), quad(word, s + 2u), quad(word, s + 3u));
}

// A word of each of four columns, whose first quads meet vector v of x.
fn add_words(words: vec4<u32>, m: u32, v: u32) {
    for (var s = 0u; s < STEPS; s += 4u) {
        add_quads(
            four_quads(words.x, s), four_quads(words.y, s), four_quads(words.z, s), four_quads(words.w, s),
            m, v + s / 4u,
        );
    }
}

// Both quads of two words.
fn two_words(a: u32, b: u32) -> vec4<u32> { return vec4(quad(a, 0u), quad(a, 1u), quad(b, 0u), quad(b, 1u)); }

// A vector of codes of each of four columns, whose first quads meet vector v of x.
fn add_codes(c0: vec4<u32>, c1: vec4<u32>, c2: vec4<u32>, c3: vec4<u32>, m: u32, v: u32) {
    if STEPS == 1u { add_quads(c0, c1, c2, c3, m, v); }
    if STEPS == 2u {
        add_quads(two_words(c0.x, c0.y), two_words(c1.x, c1.y), two_words(c2.x, c2.y), two_words(c3.x, c3.y), m, v);
        add_quads(two_words(c0.z, c0.w), two_words(c1.z, c1.w), two_words(c2.z, c2.w), two_words(c3.z, c3.w), m, v + 1u);
    }
    if STEPS >= 4u {
        add_words(vec4(c0.x, c1.x, c2.x, c3.x), m, v);
        add_words(vec4(c0.y, c1.y, c2.y, c3.y), m, v + STEPS / 4u);
        add_words(vec4(c0.z, c1.z, c2.z, c3.z), m, v + STEPS / 2u);
        add_words(vec4(c0.w, c1.w, c2.w, c3.w), m, v + STEPS / 4u * 3u);
    }
}

fn fused(pair: vec2<f32>, sum: f32) -> f32 { return fma(pair.x, pair.y, sum); }

// What a block adds to four columns of a row of x.
fn add_whole(whole: vec4<i32>, row: u32, h: array<vec2<f32>, 4>, sum: vec4<f32>) -> vec4<f32> {
    let codes = bitcast<i32>(x_scales[row].y);
    let scale = bitcast<f32>(x_scales[row].x);
    return vec4(
        fused(terms(whole.x, codes, scale, h[0]), sum.x), fused(terms(whole.y, codes, scale, h[1]), sum.y),
        fused(terms(whole.z, codes, scale, h[2]), sum.z), fused(terms(whole.w, codes, scale, h[3]), sum.w),
    );
}

fn add_block(piece: u32, n: vec4<u32>, b: u32, first: u32, m: u32) {
    whole_0 = vec4(0i);
    whole_1 = vec4(0i);
    whole_2 = vec4(0i);
    whole_3 = vec4(0i);
    for (var v = 0u; v < VECTORS; v++) {
        add_codes(
            codes_of(piece, n.x, b, v), codes_of(piece, n.y, b, v), codes_of(piece, n.z, b, v), codes_of(piece, n.w, b, v),
            m, v * STEPS,
        );
    }
    let heads = array(head_of(piece, n.x, b), head_of(piece, n.y, b), head_of(piece, n.z, b), head_of(piece, n.w, b));
    sum_0 = add_whole(whole_0, m, heads, sum_0);
    if EACH_M > 1u { sum_1 = add_whole(whole_1, m + THREADS_M, heads, sum_1); }
    if EACH_M > 2u { sum_2 = add_whole(whole_2, m + 2u * THREADS_M, heads, sum_2); }
    if EACH_M > 3u { sum_3 = add_whole(whole_3, m + 3u * THREADS_M, heads, sum_3); }
}
