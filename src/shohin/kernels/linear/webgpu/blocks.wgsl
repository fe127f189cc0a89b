// Weights in blocks: vec4<u32> of codes in the order of the file, then the heads (scales, minima) of all blocks.
//
// Constants: BLOCK weights a block, VECTORS of codes a block, STEPS quads in a word, BITS of a code, MASK of a quad,
// NIBBLES where a word's low and high halves lie 16 weights apart; FACTOR, OFFSET: the weight's code is
// FACTOR * stored - OFFSET; SIGNED bytes; AFFINE heads; BLOCKS in a row; HEADS_i: the word where heads begin.
// A quad is four codes, one a byte: what dot4I8Packed takes.

const QUADS = BLOCK / 4u;

// Quad `s` of a word.
fn quad(word: u32, s: u32) -> u32 { return (word >> (BITS * s)) & MASK; }

// Where in its block quad p begins; its four weights lie SPREAD apart.
const SPREAD = select(STEPS, 1u, NIBBLES);
fn quad_start(p: u32) -> u32 {
    if NIBBLES { return p % 2u * 16u + p / 2u * 4u; }
    return p / STEPS * 4u * STEPS + p % STEPS;
}

fn vector_of(piece: u32, i: u32) -> vec4<u32> {
    if PIECES > 2u && piece == 2u { return weights_2[i]; }
    if PIECES > 1u && piece == 1u { return weights_1[i]; }
    return weights_0[i];
}

fn word_of(piece: u32, i: u32) -> u32 { return vector_of(piece, i / 4u)[i % 4u]; }

// Vector `v` of the codes of a block.
fn codes_of(piece: u32, n: u32, b: u32, v: u32) -> vec4<u32> {
    return vector_of(piece, (n * BLOCKS + b) * VECTORS + v);
}

// Scale and minimum of a block.
fn head_of(piece: u32, n: u32, b: u32) -> vec2<f32> {
    let i = n * BLOCKS + b;
    let heads = select(select(HEADS_0, HEADS_1, piece == 1u), HEADS_2, piece == 2u);
    if AFFINE { return unpack2x16float(word_of(piece, heads + i)); }
    return vec2(unpack2x16float(word_of(piece, heads + i / 2u))[i % 2u], 0.0f);
}

// The four weights of a quad as whole numbers.
fn numbers(bits: u32) -> vec4<f32> {
    if SIGNED { return vec4<f32>(unpack4xI8(bits)); }
    return vec4<f32>(unpack4xU8(bits)) * f32(FACTOR) - f32(OFFSET);
}

// Quad p of a block as numbers that are still to be multiplied by factor_of_block.
fn weights_of(piece: u32, n: u32, b: u32, p: u32, head: vec2<f32>) -> vec4<f32> {
    let word = p / STEPS;
    let whole = numbers(quad(codes_of(piece, n, b, word / 4u)[word % 4u], p % STEPS));
    if AFFINE { return fma(whole, vec4(head.x), vec4(head.y)); }
    return whole;
}

fn factor_of_block(head: vec2<f32>) -> f32 {
    if AFFINE { return 1.0f; }
    return head.x;
}
