// K and V as they are.
fn scale_of(t: u32, base: u32) -> f32 { return 1.0f; }
fn rounded(x: f32, scale: f32) -> f32 { return x; }
