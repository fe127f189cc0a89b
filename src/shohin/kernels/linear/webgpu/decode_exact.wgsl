// One row in float32, read where it lies.

var<private> factor: f32;

fn prepare(t: u32, m: u32) { factor = factor_of(t, m); }

// Block b of four rows of a piece.
fn block_terms(piece: u32, n: vec4<u32>, b: u32, m: u32) -> array<vec2<f32>, 4> {
    var sum = vec4(0.0f);
    var all = 0.0f;
    for (var p = 0u; p < QUADS; p++) {
        let four = inputs(m, b, p, factor);
        if AFFINE { all = dot_onto(four, vec4(1.0f), all); }
        sum.x = dot_onto(weights_of(piece, n.x, b, p), four, sum.x);
        sum.y = dot_onto(weights_of(piece, n.y, b, p), four, sum.y);
        sum.z = dot_onto(weights_of(piece, n.z, b, p), four, sum.z);
        sum.w = dot_onto(weights_of(piece, n.w, b, p), four, sum.w);
    }
    return array(
        terms(sum.x, all, head_of(piece, n.x, b)), terms(sum.y, all, head_of(piece, n.y, b)),
        terms(sum.z, all, head_of(piece, n.z, b)), terms(sum.w, all, head_of(piece, n.w, b)),
    );
}
