// One row in float32, read where it lies.

var<private> factor: f32;

fn prepare(t: u32, m: u32) { factor = factor_of(t, m); }

// Block b of four rows of a piece.
fn block_terms(piece: u32, n: vec4<u32>, b: u32, m: u32) -> array<vec2<f32>, 4> {
    let h0 = head_of(piece, n.x, b);
    let h1 = head_of(piece, n.y, b);
    let h2 = head_of(piece, n.z, b);
    let h3 = head_of(piece, n.w, b);
    var sum = vec4(0.0f);
    for (var p = 0u; p < QUADS; p++) {
        let four = inputs(m, b, p, factor);
        sum.x = dot_onto(weights_of(piece, n.x, b, p, h0), four, sum.x);
        sum.y = dot_onto(weights_of(piece, n.y, b, p, h1), four, sum.y);
        sum.z = dot_onto(weights_of(piece, n.z, b, p, h2), four, sum.z);
        sum.w = dot_onto(weights_of(piece, n.w, b, p, h3), four, sum.w);
    }
    return array(
        vec2(sum.x, factor_of_block(h0)), vec2(sum.y, factor_of_block(h1)),
        vec2(sum.z, factor_of_block(h2)), vec2(sum.w, factor_of_block(h3)),
    );
}
