// float16 pairs in words, read through the device's own float16.
fn halves(word: u32) -> vec2<f32> { return vec2<f32>(bitcast<vec2<f16>>(word)); }
