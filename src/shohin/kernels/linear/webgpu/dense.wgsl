// Weights that are plain numbers, row after row, seen as blocks of 32 in which the last may be short. KIND: 0 float32,
// 1 float16, 2 bfloat16.

const BLOCK = 32u;
const QUADS = 8u;
const SPREAD = 1u;

fn quad_start(p: u32) -> u32 { return 4u * p; }

fn word_of(piece: u32, i: u32) -> u32 {
    if PIECES > 2u && piece == 2u { return weights_2[i]; }
    if PIECES > 1u && piece == 1u { return weights_1[i]; }
    return weights_0[i];
}

fn weight_at(piece: u32, i: u32) -> f32 {
    if KIND == 0u { return bitcast<f32>(word_of(piece, i)); }
    let word = word_of(piece, i / 2u);
    if KIND == 1u { return unpack2x16float(word)[i % 2u]; }
    return bitcast<f32>(select(word << 16u, word & 0xffff0000u, i % 2u == 1u));
}

fn head_of(piece: u32, n: u32, b: u32) -> vec2<f32> { return vec2(1.0f, 0.0f); }
fn factor_of_block(head: vec2<f32>) -> f32 { return 1.0f; }

fn weights_of(piece: u32, n: u32, b: u32, p: u32, head: vec2<f32>) -> vec4<f32> {
    var four = vec4(0.0f);
    for (var j = 0u; j < 4u; j++) {
        let k = b * BLOCK + 4u * p + j;
        if k < WIDTH { four[j] = weight_at(piece, n * WIDTH + k); }
    }
    return four;
}
