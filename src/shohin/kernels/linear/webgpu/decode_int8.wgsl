// One row in int8: its codes in workgroup memory, blocks a word apart so that neighbours read different banks.

var<workgroup> x_codes: array<u32, BLOCKS * (QUADS + 1u)>;

fn put_codes(i: u32, word: u32) { x_codes[i / QUADS * (QUADS + 1u) + i % QUADS] = word; }

fn prepare(t: u32, m: u32) { quantise_row(t, m); }

// A word of each of four rows against the quads of x from `at` on.
fn add_words(words: vec4<u32>, at: u32, sum: vec4<i32>) -> vec4<i32> {
    var out = sum;
    for (var s = 0u; s < STEPS; s++) {
        let four = x_codes[at + s];
        out += vec4(
            dot4I8Packed(quad(words.x, s), four), dot4I8Packed(quad(words.y, s), four),
            dot4I8Packed(quad(words.z, s), four), dot4I8Packed(quad(words.w, s), four),
        );
    }
    return out;
}

// Block b of four rows of a piece.
fn block_terms(piece: u32, n: vec4<u32>, b: u32, m: u32) -> array<vec2<f32>, 4> {
    var sum = vec4(0i);
    for (var v = 0u; v < VECTORS; v++) {
        let c0 = codes_of(piece, n.x, b, v);
        let c1 = codes_of(piece, n.y, b, v);
        let c2 = codes_of(piece, n.z, b, v);
        let c3 = codes_of(piece, n.w, b, v);
        let at = b * (QUADS + 1u) + v * 4u * STEPS;
        sum = add_words(vec4(c0.x, c1.x, c2.x, c3.x), at, sum);
        sum = add_words(vec4(c0.y, c1.y, c2.y, c3.y), at + STEPS, sum);
        sum = add_words(vec4(c0.z, c1.z, c2.z, c3.z), at + 2u * STEPS, sum);
        sum = add_words(vec4(c0.w, c1.w, c2.w, c3.w), at + 3u * STEPS, sum);
    }
    let codes = atomicLoad(&sums[b]);
    let scale = scales[b];
    return array(
        terms(sum.x, codes, scale, head_of(piece, n.x, b)), terms(sum.y, codes, scale, head_of(piece, n.y, b)),
        terms(sum.z, codes, scale, head_of(piece, n.z, b)), terms(sum.w, codes, scale, head_of(piece, n.w, b)),
    );
}
