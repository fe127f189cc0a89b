// Four products onto a sum.
fn dot_onto(a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
