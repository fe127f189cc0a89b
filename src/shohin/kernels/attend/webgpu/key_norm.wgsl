// The key norm's weight.
fn key_weight(d: u32) -> f32 { return key_norm[d]; }
