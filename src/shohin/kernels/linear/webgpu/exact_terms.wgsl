// What a block adds to an output in exact mode, as two factors of one fma.

// sum: of weights without scale times x; inputs: the sum of x.
fn terms(sum: f32, inputs: f32, head: vec2<f32>) -> vec2<f32> {
    if AFFINE { return vec2(fma(head.x, sum, head.y * inputs), 1.0f); }
    return vec2(sum, head.x);
}

fn dot_onto(a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
